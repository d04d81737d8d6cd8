//! Which sockets are listened on, and who is connected to them, in our network namespace: by `sock_diag`.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;

use rustix::net::AddressFamily;

use super::net::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT, LISTEN};
use super::procfs::lossy_text;
use super::sock_diag::{SockDiag, TcpAnswer, UnixAnswer, tcp_request, u32_at, unix_request};
use crate::kernel::features;

/// What is asked about a unix socket: its name, its peer, and who waits to be accepted.
const SHOW_NAME_PEER_WAITING: u32 = 0x1 | 0x4 | 0x8;
const ATTRIBUTE_NAME: u16 = 0;
const ATTRIBUTE_PEER: u16 = 2;
const ATTRIBUTE_WAITING: u16 = 3;

/// The listening and connected sockets of our network namespace, as they were at one moment.
#[derive(Debug)]
pub(crate) struct Connections {
    unix: Vec<UnixSocket>,
    tcp: Vec<TcpSocket>,
}

#[derive(Debug, PartialEq, Eq)]
struct UnixSocket {
    inode: u64,
    listens: bool,
    /// What it is bound to. A socket that was accepted has the name of the one that accepted it.
    name: Vec<u8>,
    /// The inode at the other end; 0 for one that was not accepted yet.
    peer: Option<u64>,
    /// The inodes of those who wait to be accepted.
    waiting: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct TcpSocket {
    inode: u64,
    state: u8,
    local: SocketAddr,
    remote: SocketAddr,
}

impl Connections {
    /// Asks the kernel; an error where it does not answer.
    pub(crate) fn now() -> io::Result<Connections> {
        if !features().sock_diag {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut connections = Connections {
            unix: Vec::new(),
            tcp: Vec::new(),
        };
        let mut diag = SockDiag::open()?;
        let unix = unix_request(1 << ESTABLISHED | 1 << LISTEN, SHOW_NAME_PEER_WAITING);
        diag.ask(&unix, |answer| {
            connections.unix.extend(unix_socket(answer));
        })?;
        let states = [ESTABLISHED, CLOSE_WAIT, LISTEN].into_iter();
        let states = states.chain(FIN_WAIT);
        let states = states.fold(0u32, |all, state| all | 1 << state);
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            diag.ask(&tcp_request(family, states, &[]), |answer| {
                connections.tcp.extend(tcp_socket(answer));
            })?;
        }
        Ok(connections)
    }

    /// The inode at the other end of a unix socket.
    pub(crate) fn unix_peer_of(&self, inode: u64) -> Option<u64> {
        let socket = self.unix.iter().find(|socket| socket.inode == inode)?;
        socket.peer.filter(|&peer| peer != 0)
    }

    /// Whether a socket in `listening` has a connection whose other end is none of `inside`. Connections that were
    /// accepted belong to `inside` themselves.
    pub(crate) fn has_peer_outside(&self, listening: &[u64], inside: &HashSet<u64>) -> bool {
        self.has_unix_peer_outside(listening, inside)
            || self.has_tcp_peer_outside(listening, inside)
    }

    fn has_unix_peer_outside(&self, listening: &[u64], inside: &HashSet<u64>) -> bool {
        let outside = |inode: u64| inode != 0 && !inside.contains(&inode);
        let listeners = self.unix.iter();
        let mut listeners = listeners.filter(|it| it.listens && listening.contains(&it.inode));
        listeners.any(|listener| {
            let is_accepted = |it: &&UnixSocket| {
                !it.listens && inside.contains(&it.inode) && it.name == listener.name
            };
            let mut accepted = self.unix.iter().filter(is_accepted);
            listener.waiting.iter().any(|&inode| outside(inode))
                || accepted.any(|socket| socket.peer.is_some_and(outside))
        })
    }

    fn has_tcp_peer_outside(&self, listening: &[u64], inside: &HashSet<u64>) -> bool {
        let listeners = self.tcp.iter();
        let mut listeners =
            listeners.filter(|it| it.state == LISTEN && listening.contains(&it.inode));
        listeners.any(|listener| {
            let connected = self.tcp.iter().filter(|socket| {
                let here = socket.local.port() == listener.local.port()
                    && (listener.local.ip().is_unspecified()
                        || listener.local.ip() == socket.local.ip());
                let connected = [ESTABLISHED, CLOSE_WAIT].contains(&socket.state);
                // One that was not accepted yet has no inode.
                connected && here && (socket.inode == 0 || inside.contains(&socket.inode))
            });
            let mut connected = connected;
            connected.any(|socket| {
                let is_other_end =
                    |it: &&TcpSocket| it.local == socket.remote && it.remote == socket.local;
                match self.tcp.iter().find(is_other_end) {
                    Some(end) if end.inode != 0 => !inside.contains(&end.inode),
                    // It is on another machine, or nobody's any more: then it has said so.
                    _ => socket.state == ESTABLISHED,
                }
            })
        })
    }
}

/// The listening sockets of the network namespace of a process, by their inodes: read from its `/proc`, which shows
/// no peers of unix sockets.
pub(crate) fn listening_in_namespace_of(pid: u32) -> io::Result<HashSet<u64>> {
    super::procfs::require_our_own()?;
    let read = |name: &str| lossy_text(format!("/proc/{pid}/net/{name}"));
    let mut listening = HashSet::new();
    listening.extend(read("unix")?.lines().filter_map(listening_unix));
    for name in ["tcp", "tcp6"] {
        // A kernel without IPv6 has no such file.
        let text = read(name).unwrap_or_default();
        listening.extend(text.lines().filter_map(listening_tcp));
    }
    Ok(listening)
}

/// `Num RefCount Protocol Flags Type St Inode Path`: a flag says that it accepts connections.
fn listening_unix(line: &str) -> Option<u64> {
    const ACCEPTS: u32 = 1 << 16;
    let mut fields = line.split_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    (flags & ACCEPTS != 0).then_some(inode)
}

/// `sl local remote st tx:rx tr:when retransmits uid timeout inode`.
fn listening_tcp(line: &str) -> Option<u64> {
    let mut fields = line.split_whitespace();
    let state = u8::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(5)?.parse().ok()?;
    (state == LISTEN).then_some(inode)
}

/// The network namespace of a process; an error where it may not be seen.
pub(crate) fn network_namespace_of(pid: &str) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(std::fs::metadata(format!("/proc/{pid}/ns/net"))?.ino())
}

fn unix_socket(answer: &[u8]) -> Option<UnixSocket> {
    let answer = UnixAnswer::read(answer)?;
    let mut socket = UnixSocket {
        inode: answer.inode,
        listens: answer.state == LISTEN,
        name: Vec::new(),
        peer: None,
        waiting: Vec::new(),
    };
    for (kind, value) in answer.attributes() {
        match kind {
            ATTRIBUTE_NAME => socket.name = value.to_vec(),
            ATTRIBUTE_PEER => socket.peer = u32_at(value, 0).map(u64::from),
            ATTRIBUTE_WAITING => {
                let inodes = value.chunks_exact(4).filter_map(|word| u32_at(word, 0));
                socket.waiting = inodes.map(u64::from).collect();
            }
            _ => {}
        }
    }
    Some(socket)
}

fn tcp_socket(answer: &[u8]) -> Option<TcpSocket> {
    let answer = TcpAnswer::read(answer)?;
    // IPv4 through an IPv6 socket is IPv4: the other end says so.
    let plain = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    Some(TcpSocket {
        inode: answer.inode,
        state: answer.state,
        local: plain(answer.local),
        remote: plain(answer.remote),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn inode(fd: RawFd) -> u64 {
        let meta = std::fs::metadata(format!("/proc/self/fd/{fd}"));
        meta.expect("an own descriptor").ino()
    }

    fn seen(listener: u64, inside: &[u64]) -> bool {
        let inside: HashSet<u64> = inside.iter().copied().collect();
        let now = Connections::now().expect("this kernel has sock_diag");
        now.has_peer_outside(&[listener], &inside)
    }

    #[test]
    fn a_unix_client_is_outside_unless_its_socket_is_inside() {
        let name = format!("kennel-sockets-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixListener::bind_addr(&address).expect("a free name");
        let at = inode(listener.as_raw_fd());
        assert!(!seen(at, &[at]), "nobody is connected");
        let client = UnixStream::connect_addr(&address).expect("it listens");
        let client_at = inode(client.as_raw_fd());
        assert!(seen(at, &[at]), "it waits to be accepted");
        assert!(!seen(at, &[at, client_at]), "one of us waits");
        let (accepted, _) = listener.accept().expect("it waits");
        let accepted_at = inode(accepted.as_raw_fd());
        assert!(seen(at, &[at, accepted_at]));
        assert!(!seen(at, &[at, accepted_at, client_at]));
        drop(client);
        assert!(!seen(at, &[at, accepted_at]), "it hung up");
        let listening = listening_in_namespace_of(std::process::id()).expect("our own");
        assert!(listening.contains(&at) && !listening.contains(&accepted_at));
    }

    #[test]
    fn a_tcp_client_is_outside_unless_its_socket_is_inside() {
        for (place, client) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
        ] {
            let listener = TcpListener::bind(place).expect("a free port");
            let port = listener.local_addr().expect("bound").port();
            let at = inode(listener.as_raw_fd());
            assert!(!seen(at, &[at]), "{place}: nobody is connected");
            let client = TcpStream::connect((client, port)).expect("it listens");
            let client_at = inode(client.as_raw_fd());
            assert!(seen(at, &[at]), "{place}: it waits to be accepted");
            let (accepted, _) = listener.accept().expect("it waits");
            let accepted_at = inode(accepted.as_raw_fd());
            assert!(seen(at, &[at, accepted_at]), "{place}");
            assert!(!seen(at, &[at, accepted_at, client_at]), "{place}");
            client.shutdown(Shutdown::Write).expect("it is connected");
            assert!(
                seen(at, &[at, accepted_at]),
                "{place}: it waits for an answer"
            );
            assert!(!seen(at, &[at, accepted_at, client_at]), "{place}");
            drop(client);
            assert!(!seen(at, &[at, accepted_at]), "{place}: it hung up");
            let listening = listening_in_namespace_of(std::process::id()).expect("our own");
            assert!(listening.contains(&at) && !listening.contains(&accepted_at));
        }
    }

    #[test]
    fn being_a_client_of_somebody_outside_serves_nobody() {
        let outside = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ours = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = outside.local_addr().expect("bound");
        let client = TcpStream::connect(address).expect("it listens");
        let (at, client_at) = (inode(ours.as_raw_fd()), inode(client.as_raw_fd()));
        assert!(!seen(at, &[at, client_at]));
    }
}
