//! Listening and connected sockets of our network namespace, listed by `sock_diag`.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;

use rustix::net::AddressFamily;

use super::net::{ESTABLISHED, LISTEN, number_of};
use super::sock_diag::{SockDiag, UnixAnswer, tcp_request, tcp_socket, u32_at, unix_request};
use crate::kernel::features;
use crate::net::{TcpSocket, TcpState};

/// The requested attributes of a Unix socket: its name, its peer, and the connections in its queue.
const SHOW_NAME_PEER_WAITING: u32 = 0x1 | 0x4 | 0x8;
const ATTRIBUTE_NAME: u16 = 0;
const ATTRIBUTE_PEER: u16 = 2;
const ATTRIBUTE_WAITING: u16 = 3;

/// The listening and connected sockets of our network namespace at one moment.
#[derive(Debug)]
pub(crate) struct Connections {
    unix: Vec<UnixSocket>,
    tcp: Vec<TcpSocket>,
}

#[derive(Debug, PartialEq, Eq)]
struct UnixSocket {
    inode: u64,
    listens: bool,
    /// The name that it is bound to. An accepted socket has the name of its listener.
    name: Vec<u8>,
    /// The inode at the other end; 0 if it was not accepted yet.
    peer: Option<u64>,
    /// The inodes of the connections in its queue.
    waiting: Vec<u64>,
}

impl Connections {
    /// Lists them; an error if the kernel does not answer.
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
        diag.request(&unix, |answer| {
            connections.unix.extend(unix_socket(answer));
        })?;
        let states = [
            TcpState::Established,
            TcpState::CloseWait,
            TcpState::Listen,
            TcpState::FinWait1,
            TcpState::FinWait2,
        ];
        let states = states
            .into_iter()
            .fold(0u32, |all, state| all | 1 << number_of(state));
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            diag.request(&tcp_request(family, states, &[]), |answer| {
                connections
                    .tcp
                    .extend(tcp_socket(answer).map(with_plain_addresses));
            })?;
        }
        Ok(connections)
    }

    /// The inode at the other end of a unix socket.
    pub(crate) fn unix_peer_of(&self, inode: u64) -> Option<u64> {
        let socket = self.unix.iter().find(|socket| socket.inode == inode)?;
        socket.peer.filter(|&peer| peer != 0)
    }

    /// Whether a socket in `listening` has a connection whose other end is not in `inside`. Accepted connections are in
    /// `inside` themselves.
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
            listeners.filter(|it| it.state == TcpState::Listen && listening.contains(&it.inode));
        listeners.any(|listener| {
            let connected = self.tcp.iter().filter(|socket| {
                let here = socket.local.port() == listener.local.port()
                    && (listener.local.ip().is_unspecified()
                        || listener.local.ip() == socket.local.ip());
                let connected =
                    [TcpState::Established, TcpState::CloseWait].contains(&socket.state);
                // A connection that was not accepted yet has no inode.
                connected && here && (socket.inode == 0 || inside.contains(&socket.inode))
            });
            let mut connected = connected;
            connected.any(|socket| {
                let is_other_end =
                    |it: &&TcpSocket| it.local == socket.remote && it.remote == socket.local;
                match self.tcp.iter().find(is_other_end) {
                    Some(end) if end.inode != 0 => !inside.contains(&end.inode),
                    // The other end is on another machine, or was closed: then the state says so.
                    _ => socket.state == TcpState::Established,
                }
            })
        })
    }
}

/// The network namespace of a process; an error if it cannot be seen.
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

/// The socket with plain IPv4 addresses: an IPv6 socket has another form of address for IPv4 than its peer.
fn with_plain_addresses(socket: TcpSocket) -> TcpSocket {
    let plain = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    TcpSocket {
        local: plain(socket.local),
        remote: plain(socket.remote),
        ..socket
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::super::net::listening_in_namespace_of;
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
        assert!(!seen(at, &[at, client_at]), "the waiting client is inside");
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
    fn a_client_of_a_process_outside_is_no_service() {
        let outside = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ours = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = outside.local_addr().expect("bound");
        let client = TcpStream::connect(address).expect("it listens");
        let (at, client_at) = (inode(ours.as_raw_fd()), inode(client.as_raw_fd()));
        assert!(!seen(at, &[at, client_at]));
    }
}
