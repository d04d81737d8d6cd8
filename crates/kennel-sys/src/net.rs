//! What this network namespace knows of TCP: who listens on a port, and who is connected to it.
//!
//! The kernel tells nobody that a connection ended, but to those who may administer the network
//! (`CAP_NET_ADMIN`). So whoever wants to know looks again (rule 10 names this).

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::os;
pub use crate::os::{ephemeral_ports, listens_at};
use crate::process::ProcessRef;

/// The kernel's numbers for the states that anybody here asks for.
pub(crate) const ESTABLISHED: u8 = 1;
/// It has said that no more comes; the other end may have heard it.
pub(crate) const FIN_WAIT: [u8; 2] = [4, 5];
/// The connection is closed, and this end remembers it.
pub(crate) const TIME_WAIT: u8 = 6;
/// The other end has said that no more comes.
pub(crate) const CLOSE_WAIT: u8 = 8;
pub(crate) const LISTEN: u8 = 10;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    pub(crate) state: u8,
    pub(crate) ports: Ports,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Ports {
    Any,
    /// Cheap to filter by; whoever asks is exact afterwards.
    Within {
        side: Side,
        least: u16,
        most: u16,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Local,
    Remote,
}

impl Query {
    pub(crate) fn wants(&self, row: &Row) -> bool {
        let within = match self.ports {
            Ports::Any => true,
            Ports::Within { side, least, most } => {
                let port = match side {
                    Side::Local => row.local.port(),
                    Side::Remote => row.remote.port(),
                };
                (least..=most).contains(&port)
            }
        };
        within && row.state == self.state
    }
}

/// A socket, as either source tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: u8,
    /// How long its timer still runs.
    pub(crate) timer: Duration,
    pub(crate) uid: u32,
    pub(crate) inode: u64,
}

/// How long the side that closed first remembers a connection.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A socket that takes connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Where it listens.
    pub address: SocketAddr,
    /// The socket's inode: what ties it to the processes that have it open.
    pub inode: u64,
    /// Whose it is.
    pub uid: u32,
}

/// An established connection, from the side that was connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The address that was connected to, in the form that the listener has: IPv4 through a socket of IPv6 is
    /// `::ffff:a.b.c.d`.
    pub local: SocketAddr,
    /// Where it came from.
    pub peer: SocketAddr,
    /// The inode of its socket; 0 until it is accepted.
    pub inode: u64,
    /// The inode of the peer's socket, if the peer is in this network namespace.
    pub peer_inode: Option<u64>,
}

/// A connection that ended a moment ago, as the side that closed it first remembers it: for a minute, and not where it was
/// torn down by a reset, or closed by a client elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The address that was connected to.
    pub address: SocketAddr,
    /// How long ago it closed.
    pub ago: Duration,
    /// Whether the client remembers it, and not the server: the address is in the form that the client used.
    pub by_client: bool,
}

/// Every listening socket there is.
pub fn listeners() -> io::Result<Vec<Listener>> {
    let rows = os::tcp_sockets(&Query {
        state: LISTEN,
        ports: Ports::Any,
    })?;
    Ok(rows
        .into_iter()
        .map(|row| Listener {
            address: row.local,
            inode: row.inode,
            uid: row.uid,
        })
        .collect())
}

/// Connections to any of `ports`, from the side of the ports. One whose client has closed is none; one whose client on this
/// machine has only said that no more comes, and waits for an answer, is one.
pub fn connections(ports: &[u16]) -> io::Result<Vec<Connection>> {
    let mut open = ask(ESTABLISHED, Side::Local, ports)?;
    let mut half_closed = ask(CLOSE_WAIT, Side::Local, ports)?;
    let mut waiting = Vec::new();
    if !half_closed.is_empty() {
        // What a client that is gone has left is nobody's.
        for state in FIN_WAIT {
            waiting.extend(ask(state, Side::Remote, ports)?);
        }
        waiting.retain(|row: &Row| row.inode != 0);
    }
    let waits = |row: &Row| {
        let mut ends = waiting.iter();
        ends.any(|end| {
            plain(end.remote) == plain(row.local) && plain(end.local) == plain(row.remote)
        })
    };
    half_closed.retain(waits);
    open.extend(half_closed);
    // A table is not read in one moment: while others change it, a row may come twice.
    open.sort_by_key(|row| (row.local, row.remote));
    open.dedup_by_key(|row| (row.local, row.remote));
    if open.is_empty() {
        return Ok(Vec::new());
    }
    // The other ends that are in this namespace: the same pair of addresses, turned round.
    let ends = ask(ESTABLISHED, Side::Remote, ports)?;
    let ends: HashMap<(SocketAddr, SocketAddr), u64> = ends
        .into_iter()
        .chain(waiting)
        .map(|row| ((plain(row.remote), plain(row.local)), row.inode))
        .collect();
    let connection = |row: Row| Connection {
        peer_inode: ends.get(&(plain(row.local), plain(row.remote))).copied(),
        local: row.local,
        peer: row.remote,
        inode: row.inode,
    };
    Ok(open.into_iter().map(connection).collect())
}

/// Connections to any of `ports` that ended within the last minute.
pub fn closed(ports: &[u16]) -> io::Result<Vec<Closed>> {
    let by_server = ask(TIME_WAIT, Side::Local, ports)?;
    let by_client = ask(TIME_WAIT, Side::Remote, ports)?;
    let by_server = by_server.iter().map(|row| Closed {
        address: row.local,
        ago: closed_ago(row),
        by_client: false,
    });
    // One to the same port of another machine is none of ours.
    let by_client = by_client.iter().filter(|row| is_here(row.remote.ip()));
    let by_client = by_client.map(|row| Closed {
        address: row.remote,
        ago: closed_ago(row),
        by_client: true,
    });
    Ok(by_server.chain(by_client).collect())
}

/// The listeners, of all there are, that a connection to `address` reaches: those bound to that address, else those
/// bound to every address. Several only where they share a port (`SO_REUSEPORT`).
pub fn reached(all: &[Listener], address: SocketAddr, as_client: bool) -> Vec<&Listener> {
    let rank = |listener: &Listener| -> Option<u8> {
        let (bound, ip) = (listener.address.ip(), address.ip());
        match (bound, ip) {
            _ if listener.address.port() != address.port() => None,
            _ if bound == ip => Some(0),
            // Whoever connects by IPv4 may reach a socket of IPv6, and does not see that.
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

fn ask(state: u8, side: Side, ports: &[u16]) -> io::Result<Vec<Row>> {
    let (Some(&least), Some(&most)) = (ports.iter().min(), ports.iter().max()) else {
        return Ok(Vec::new());
    };
    let wanted = Ports::Within { side, least, most };
    let mut rows = os::tcp_sockets(&Query {
        state,
        ports: wanted,
    })?;
    let ports: HashSet<u16> = ports.iter().copied().collect();
    rows.retain(|row| match side {
        Side::Local => ports.contains(&row.local.port()),
        Side::Remote => ports.contains(&row.remote.port()),
    });
    Ok(rows)
}

/// The address without the difference between IPv4 and IPv4 through IPv6.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether this is an address of this machine.
fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The processes that have one of these sockets open, as far as they let us see.
pub fn holders(inodes: &[u64]) -> io::Result<Vec<ProcessRef>> {
    let holds = |pid| {
        let sockets = os::sockets_of(pid);
        sockets.is_ok_and(|sockets| sockets.iter().any(|inode| inodes.contains(inode)))
    };
    let mut holders = Vec::new();
    for pid in os::processes()? {
        if holds(pid) {
            // Asked again behind the reference: now the answer is about this very process (rule 6).
            let process = ProcessRef::open(pid).ok();
            holders.extend(process.filter(|process| holds(pid) && process.is_alive()));
        }
    }
    Ok(holders)
}

/// The inodes of the sockets a process has open.
pub fn sockets_of(process: &ProcessRef) -> io::Result<Vec<u64>> {
    let sockets = os::sockets_of(process.pid())?;
    match process.is_alive() {
        true => Ok(sockets),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Whether connections wait in the queue of a Unix socket that `process` listens at. An error if it ended, or cannot be seen.
pub fn unix_connections_wait(process: &ProcessRef) -> io::Result<bool> {
    let all = os::Sockets::all();
    let sockets = sockets_of(process)?.into_iter();
    let mut sockets = sockets.filter_map(|inode| all.get(inode));
    Ok(sockets.any(|socket| socket.listening && socket.unread))
}

/// How long ago a connection that is only remembered was closed.
fn closed_ago(row: &Row) -> Duration {
    REMEMBERED.saturating_sub(row.timer)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::os::each_source;

    fn at_port(state: u8, port: u16, side: Side) -> Query {
        let (least, most) = (port, port);
        let ports = Ports::Within { side, least, most };
        Query { state, ports }
    }

    #[test]
    fn both_sources_know_a_listener_by_address_inode_and_owner() {
        for place in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(place).unwrap();
            let address = listener.local_addr().unwrap();
            let me = ProcessRef::me().unwrap();
            for rows in each_source(&at_port(LISTEN, address.port(), Side::Local)) {
                let row = rows.iter().find(|row| row.local == address);
                let row = row.unwrap_or_else(|| panic!("{place}: {rows:?}"));
                assert_eq!(row.uid, rustix::process::geteuid().as_raw());
                assert!(sockets_of(&me).unwrap().contains(&row.inode));
                let holders = holders(&[row.inode]).unwrap();
                assert_eq!(holders.len(), 1);
                assert_eq!(holders[0].pid(), me.pid());
            }
        }
    }

    #[test]
    fn a_connection_counts_once_whatever_family_it_came_by() {
        for (place, client) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            // IPv4 through a socket of IPv6.
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::1"),
        ] {
            let listener = TcpListener::bind(place).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((client, port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            for mut rows in each_source(&at_port(ESTABLISHED, port, Side::Local)) {
                // A table is not read in one moment: while others change it, a row may come twice.
                rows.dedup_by_key(|row| row.inode);
                assert_eq!(rows.len(), 1, "{place}: {rows:?}");
            }
            let found = connections(&[port, 1]).unwrap();
            assert_eq!(found.len(), 1, "{place}: {found:?}");
            assert_eq!(plain(found[0].peer), client.local_addr().unwrap());
            let me = ProcessRef::me().unwrap();
            let sockets = sockets_of(&me).unwrap();
            assert!(sockets.contains(&found[0].inode));
            assert!(sockets.contains(&found[0].peer_inode.expect("the client is here")));
            // Ports between those asked for are not asked for; these two are nobody's.
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
            for mut rows in each_source(&at_port(TIME_WAIT, port, Side::Remote)) {
                rows.dedup_by_key(|row| (row.local, row.remote));
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
            // What a socket of IPv4 accepted was not meant for one of IPv6; a client cannot tell.
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
        // Set aside for documentation.
        assert!(!is_here("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn what_we_closed_first_is_remembered_by_us() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connections(&[port]).unwrap(), []);
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let address = client.local_addr().unwrap();
        drop(listener.accept().unwrap());
        drop(client);
        for rows in each_source(&at_port(TIME_WAIT, port, Side::Local)) {
            // The port may have been another test's within the last minute.
            let ours = rows.iter().filter(|row| row.remote == address);
            assert_eq!(ours.count(), 1, "{rows:?}");
        }
        let closed = closed(&[port]).unwrap();
        let is_recent = |it: &Closed| !it.by_client && it.ago < Duration::from_secs(30);
        assert!(closed.iter().any(is_recent), "{closed:?}");
    }
}
