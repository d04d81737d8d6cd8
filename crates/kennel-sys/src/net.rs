//! TCP in this network namespace: listening sockets and connections.
//!
//! The kernel reports the end of a connection only to processes that may administer the network (`CAP_NET_ADMIN`). So
//! callers must poll (an exception that rule 10 names).

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::os;
pub use crate::os::{ephemeral_ports, listens_at};
use crate::process::ProcessRef;

/// The state of a TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TcpState {
    Established,
    /// This end sends no more, and the other end has not acknowledged that.
    FinWait1,
    /// This end sends no more, and the other end has acknowledged that.
    FinWait2,
    /// The connection is closed. This end, which closed it first, keeps it for a minute.
    TimeWait,
    /// The other end sends no more.
    CloseWait,
    Listen,
}

/// The TCP sockets to list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    pub(crate) state: TcpState,
    pub(crate) ports: Ports,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Ports {
    Any,
    /// A range, which the kernel can filter by. It may contain other ports than those wanted.
    Within {
        side: Side,
        min: u16,
        max: u16,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Local,
    Remote,
}

impl Query {
    pub(crate) fn wants(&self, socket: &TcpSocket) -> bool {
        let within = match self.ports {
            Ports::Any => true,
            Ports::Within { side, min, max } => {
                let port = match side {
                    Side::Local => socket.local.port(),
                    Side::Remote => socket.remote.port(),
                };
                (min..=max).contains(&port)
            }
        };
        within && socket.state == self.state
    }
}

/// A TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: TcpState,
    /// The time until its timer fires.
    pub(crate) timer: Duration,
    pub(crate) uid: u32,
    pub(crate) inode: u64,
}

/// Time for which the side that closed first keeps a closed connection.
const TIME_WAIT: Duration = Duration::from_secs(60);

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The inode of the socket, by which its holders are found.
    pub inode: u64,
    /// The uid of its owner.
    pub uid: u32,
}

/// An established connection, seen from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The address that the client connected to, in the form of the listener: IPv4 through an IPv6 socket is
    /// `::ffff:a.b.c.d`.
    pub local: SocketAddr,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The inode of its socket; 0 until it is accepted.
    pub inode: u64,
    /// The inode of the peer's socket, if the peer is in this network namespace.
    pub peer_inode: Option<u64>,
}

/// A connection that was closed within the last minute. The side that closed it first keeps it for a minute, unless it was
/// reset or that side is on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The address that the client connected to.
    pub address: SocketAddr,
    /// The time since it was closed.
    pub age: Duration,
    /// Whether the client closed it first: then the address is in the form that the client used.
    pub by_client: bool,
}

/// Lists all listening sockets.
pub fn listeners() -> io::Result<Vec<Listener>> {
    let rows = os::tcp_sockets(&Query {
        state: TcpState::Listen,
        ports: Ports::Any,
    })?;
    Ok(rows
        .into_iter()
        .map(|socket| Listener {
            address: socket.local,
            inode: socket.inode,
            uid: socket.uid,
        })
        .collect())
}

/// Connections to any of `ports`, seen from the server. A connection that its client has closed does not count. It counts
/// if the client, on this machine, only sends no more, and waits for an answer.
pub fn connections(ports: &[u16]) -> io::Result<Vec<Connection>> {
    let mut open = query(TcpState::Established, Side::Local, ports)?;
    let mut half_closed = query(TcpState::CloseWait, Side::Local, ports)?;
    let mut waiting = Vec::new();
    if !half_closed.is_empty() {
        // A connection end without an inode belongs to a client that is gone.
        for state in [TcpState::FinWait1, TcpState::FinWait2] {
            waiting.extend(query(state, Side::Remote, ports)?);
        }
        waiting.retain(|socket: &TcpSocket| socket.inode != 0);
    }
    let waits = |socket: &TcpSocket| {
        let mut ends = waiting.iter();
        ends.any(|end| {
            plain(end.remote) == plain(socket.local) && plain(end.local) == plain(socket.remote)
        })
    };
    half_closed.retain(waits);
    open.extend(half_closed);
    // The table changes while it is read, so a socket may be listed twice.
    open.sort_by_key(|socket| (socket.local, socket.remote));
    open.dedup_by_key(|socket| (socket.local, socket.remote));
    if open.is_empty() {
        return Ok(Vec::new());
    }
    // The other ends in this namespace have the same two addresses, swapped.
    let ends = query(TcpState::Established, Side::Remote, ports)?;
    let ends: HashMap<(SocketAddr, SocketAddr), u64> = ends
        .into_iter()
        .chain(waiting)
        .map(|socket| ((plain(socket.remote), plain(socket.local)), socket.inode))
        .collect();
    let connection = |socket: TcpSocket| Connection {
        peer_inode: ends
            .get(&(plain(socket.local), plain(socket.remote)))
            .copied(),
        local: socket.local,
        peer: socket.remote,
        inode: socket.inode,
    };
    Ok(open.into_iter().map(connection).collect())
}

/// Connections to any of `ports` that ended within the last minute.
pub fn closed(ports: &[u16]) -> io::Result<Vec<Closed>> {
    let by_server = query(TcpState::TimeWait, Side::Local, ports)?;
    let by_client = query(TcpState::TimeWait, Side::Remote, ports)?;
    let by_server = by_server.iter().map(|socket| Closed {
        address: socket.local,
        age: closed_ago(socket),
        by_client: false,
    });
    // Leave out clients of the same port on another machine.
    let by_client = by_client
        .iter()
        .filter(|socket| is_here(socket.remote.ip()));
    let by_client = by_client.map(|socket| Closed {
        address: socket.remote,
        age: closed_ago(socket),
        by_client: true,
    });
    Ok(by_server.chain(by_client).collect())
}

/// The listeners that a connection to `address` reaches: those bound to that address, else those bound to every address.
/// There are several only if they share a port (`SO_REUSEPORT`).
pub fn reached(all: &[Listener], address: SocketAddr, as_client: bool) -> Vec<&Listener> {
    let rank = |listener: &Listener| -> Option<u8> {
        let (bound, ip) = (listener.address.ip(), address.ip());
        match (bound, ip) {
            _ if listener.address.port() != address.port() => None,
            _ if bound == ip => Some(0),
            // A client that connects by IPv4 may reach an IPv6 socket, and does not see that.
            (IpAddr::V6(_), IpAddr::V4(_)) if as_client && bound.to_canonical() == ip => Some(0),
            (IpAddr::V4(_), IpAddr::V4(_)) if bound.is_unspecified() => Some(1),
            (IpAddr::V6(_), IpAddr::V6(_)) if bound.is_unspecified() => Some(1),
            (IpAddr::V6(_), IpAddr::V4(_)) if as_client && bound.is_unspecified() => Some(2),
            _ => None,
        }
    };
    let best = all.iter().filter_map(rank).min();
    let is_best = |listener: &&Listener| best.is_some() && rank(listener) == best;
    all.iter().filter(is_best).collect()
}

fn query(state: TcpState, side: Side, ports: &[u16]) -> io::Result<Vec<TcpSocket>> {
    let (Some(&min), Some(&max)) = (ports.iter().min(), ports.iter().max()) else {
        return Ok(Vec::new());
    };
    let wanted = Ports::Within { side, min, max };
    let mut rows = os::tcp_sockets(&Query {
        state,
        ports: wanted,
    })?;
    let ports: HashSet<u16> = ports.iter().copied().collect();
    rows.retain(|socket| match side {
        Side::Local => ports.contains(&socket.local.port()),
        Side::Remote => ports.contains(&socket.remote.port()),
    });
    Ok(rows)
}

/// The address with IPv4 through IPv6 written as IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether this is an address of this machine.
fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The visible processes that have one of these sockets open.
pub fn holders(inodes: &[u64]) -> io::Result<Vec<ProcessRef>> {
    let holds = |pid| {
        let sockets = os::sockets_of(pid);
        sockets.is_ok_and(|sockets| sockets.iter().any(|inode| inodes.contains(inode)))
    };
    let mut holders = Vec::new();
    for pid in os::processes()? {
        if holds(pid) {
            // Checked again after the process was opened, so the answer is about this process (rule 6).
            let process = ProcessRef::open(pid).ok();
            holders.extend(process.filter(|process| holds(pid) && process.is_alive()));
        }
    }
    Ok(holders)
}

/// The inodes of the open sockets of a process.
pub fn sockets_of(process: &ProcessRef) -> io::Result<Vec<u64>> {
    let sockets = os::sockets_of(process.pid())?;
    match process.is_alive() {
        true => Ok(sockets),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Whether connections are in the queue of a Unix socket on which `process` listens. An error if it ended or cannot be
/// seen.
pub fn unix_connections_wait(process: &ProcessRef) -> io::Result<bool> {
    Ok(os::has_waiting_connections(&sockets_of(process)?))
}

/// The time since a connection in TIME-WAIT was closed.
fn closed_ago(socket: &TcpSocket) -> Duration {
    TIME_WAIT.saturating_sub(socket.timer)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::os::each_source;

    fn at_port(state: TcpState, port: u16, side: Side) -> Query {
        let (min, max) = (port, port);
        let ports = Ports::Within { side, min, max };
        Query { state, ports }
    }

    #[test]
    fn both_sources_list_a_listener_with_address_inode_and_owner() {
        for place in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(place).unwrap();
            let address = listener.local_addr().unwrap();
            let me = ProcessRef::me().unwrap();
            for rows in each_source(&at_port(TcpState::Listen, address.port(), Side::Local)) {
                let socket = rows.iter().find(|socket| socket.local == address);
                let socket = socket.unwrap_or_else(|| panic!("{place}: {rows:?}"));
                assert_eq!(socket.uid, rustix::process::geteuid().as_raw());
                assert!(sockets_of(&me).unwrap().contains(&socket.inode));
                let holders = holders(&[socket.inode]).unwrap();
                assert_eq!(holders.len(), 1);
                assert_eq!(holders[0].pid(), me.pid());
            }
        }
    }

    #[test]
    fn a_connection_counts_once_for_each_address_family() {
        for (place, client) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            // IPv4 through an IPv6 socket.
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::1"),
        ] {
            let listener = TcpListener::bind(place).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((client, port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            for mut rows in each_source(&at_port(TcpState::Established, port, Side::Local)) {
                // The table changes while it is read, so a socket may be listed twice.
                rows.dedup_by_key(|socket| socket.inode);
                assert_eq!(rows.len(), 1, "{place}: {rows:?}");
            }
            let found = connections(&[port, 1]).unwrap();
            assert_eq!(found.len(), 1, "{place}: {found:?}");
            assert_eq!(plain(found[0].peer), client.local_addr().unwrap());
            let me = ProcessRef::me().unwrap();
            let sockets = sockets_of(&me).unwrap();
            assert!(sockets.contains(&found[0].inode));
            assert!(sockets.contains(&found[0].peer_inode.expect("the client is here")));
            // Ports between those in the list are not in the answer; these two are unused.
            assert_eq!(connections(&[1, u16::MAX]).unwrap(), []);
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(
                connections(&[port]).unwrap(),
                found,
                "it waits for an answer"
            );
            drop(client);
            let left = connections(&[port]).unwrap();
            assert_eq!(left, [], "the client closed it, though we did not");
            drop(server);
            for mut rows in each_source(&at_port(TcpState::TimeWait, port, Side::Remote)) {
                rows.dedup_by_key(|socket| (socket.local, socket.remote));
                assert_eq!(rows.len(), 1, "{place}: the client remembers: {rows:?}");
                assert!(
                    closed_ago(&rows[0]) < Duration::from_secs(30),
                    "{place}: {rows:?}"
                );
            }
            let closed = closed(&[port]).unwrap();
            assert!(!closed.is_empty() && closed.iter().all(|it| it.by_client));
            let all = listeners().unwrap();
            let reached = reached(&all, closed[0].address, true);
            assert_eq!(reached.len(), 1, "{place}: {reached:?}");
            assert_eq!(reached[0].address, listener.local_addr().unwrap());
        }
    }

    #[test]
    fn a_connection_reaches_the_listener_bound_to_its_address_before_one_bound_to_all() {
        let listener = |text: &str, inode| Listener {
            address: text.parse().unwrap(),
            inode,
            uid: 0,
        };
        let all = [
            listener("127.0.0.1:9500", 1),
            listener("127.0.0.2:9500", 2),
            listener("0.0.0.0:9501", 3),
            listener("127.0.0.2:9501", 4),
            listener("[::]:9502", 5),
            listener("[::]:9503", 6),
            listener("0.0.0.0:9503", 7),
            listener("0.0.0.0:9504", 8),
            listener("0.0.0.0:9504", 9),
        ];
        for (address, as_client, inodes) in [
            ("127.0.0.1:9500", false, &[1][..]),
            ("127.0.0.2:9500", false, &[2]),
            ("127.0.0.3:9500", false, &[]),
            ("127.0.0.1:9501", false, &[3]),
            ("127.0.0.2:9501", false, &[4]),
            ("[::1]:9502", false, &[5]),
            ("[::ffff:127.0.0.1]:9502", false, &[5]),
            // A connection that an IPv4 socket accepted cannot be for an IPv6 socket; a client cannot see the difference.
            ("127.0.0.1:9502", false, &[]),
            ("127.0.0.1:9502", true, &[5]),
            ("127.0.0.1:9503", true, &[7]),
            ("[::ffff:127.0.0.1]:9503", false, &[6]),
            ("127.0.0.1:9504", false, &[8, 9]),
            ("127.0.0.1:9505", true, &[]),
        ] {
            let reached = reached(&all, address.parse().unwrap(), as_client);
            let reached: Vec<u64> = reached.iter().map(|it| it.inode).collect();
            assert_eq!(reached, inodes, "{address}");
        }
    }

    #[test]
    fn an_address_of_another_machine_is_not_here() {
        assert!(is_here("127.0.0.1".parse().unwrap()));
        assert!(is_here("::ffff:127.0.0.2".parse().unwrap()));
        // Reserved for documentation.
        assert!(!is_here("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn a_connection_that_we_closed_first_is_kept_on_our_side() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connections(&[port]).unwrap(), []);
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let address = client.local_addr().unwrap();
        drop(listener.accept().unwrap());
        drop(client);
        for rows in each_source(&at_port(TcpState::TimeWait, port, Side::Local)) {
            // Another test may have used the port within the last minute.
            let ours = rows.iter().filter(|socket| socket.remote == address);
            assert_eq!(ours.count(), 1, "{rows:?}");
        }
        let closed = closed(&[port]).unwrap();
        let is_recent = |it: &Closed| !it.by_client && it.age < Duration::from_secs(30);
        assert!(closed.iter().any(is_recent), "{closed:?}");
    }
}
