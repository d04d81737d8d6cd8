//! What this network namespace knows of TCP: who listens on a port, and who is connected to it.
//!
//! Asked of the kernel by netlink (`sock_diag`), which hands over only what is asked for; where that cannot
//! be had, read from `/proc/net/tcp` and `tcp6`. Both know IPv4, IPv6, and IPv4 through an IPv6 socket.
//!
//! The kernel tells nobody that a connection ended, but to those who may administer the network
//! (`CAP_NET_ADMIN`). So whoever wants to know looks again (rule 10 names this).

mod diag;
mod proc_net;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::kernel::features;
use crate::linux as os;
use crate::process::ProcessRef;

/// The kernel's numbers for the states that anybody here asks for.
const ESTABLISHED: u8 = 1;
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

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

/// Connections to a set of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sessions {
    /// How many are open: established, from the side of the ports. One whose client has closed is not.
    pub open: usize,
    /// If none is open: how long ago the last one closed, as far as anybody here remembers it. That is
    /// for a minute, and not where it was torn down by a reset, or closed by a client elsewhere.
    pub last_closed: Option<Duration>,
}

/// Every listening socket there is.
pub fn listeners() -> io::Result<Vec<Listener>> {
    let rows = rows(&Query {
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

/// Who is connected to any of `ports`, or was a moment ago.
pub fn sessions(ports: &[u16]) -> io::Result<Sessions> {
    let (Some(&least), Some(&most)) = (ports.iter().min(), ports.iter().max()) else {
        return Ok(Sessions {
            open: 0,
            last_closed: None,
        });
    };
    let ask = |state, side| {
        let ports = Ports::Within { side, least, most };
        rows(&Query { state, ports })
    };
    let is_ours = |port: u16| ports.contains(&port);
    let open = ask(ESTABLISHED, Side::Local)?;
    let open = open.iter().filter(|row| is_ours(row.local.port())).count();
    let mut last_closed = None;
    if open == 0 {
        // Who closed first remembers it: we, or a client on this machine.
        let ours = ask(TIME_WAIT, Side::Local)?;
        let ours = ours.iter().filter(|row| is_ours(row.local.port()));
        let theirs = ask(TIME_WAIT, Side::Remote)?;
        let theirs = theirs.iter().filter(|row| is_ours(row.remote_port));
        last_closed = ours.chain(theirs).map(Row::closed_ago).min();
    }
    Ok(Sessions { open, last_closed })
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

/// What is asked for.
#[derive(Debug, Clone, Copy)]
struct Query {
    state: u8,
    ports: Ports,
}

#[derive(Debug, Clone, Copy)]
enum Ports {
    Any,
    /// Cheap to filter by; whoever asks is exact afterwards.
    Within {
        side: Side,
        least: u16,
        most: u16,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Local,
    Remote,
}

impl Query {
    fn wants(&self, row: &Row) -> bool {
        let within = match self.ports {
            Ports::Any => true,
            Ports::Within { side, least, most } => {
                let port = match side {
                    Side::Local => row.local.port(),
                    Side::Remote => row.remote_port,
                };
                (least..=most).contains(&port)
            }
        };
        within && row.state == self.state
    }
}

/// A socket, as either source tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote_port: u16,
    state: u8,
    /// How long its timer still runs.
    timer: Duration,
    uid: u32,
    inode: u64,
}

impl Row {
    /// For one that is only remembered: since when.
    fn closed_ago(&self) -> Duration {
        REMEMBERED.saturating_sub(self.timer)
    }
}

fn rows(query: &Query) -> io::Result<Vec<Row>> {
    if features().sock_diag
        && let Ok(mut rows) = diag::rows(query)
    {
        // A kernel that does not filter is no reason to be wrong.
        rows.retain(|row| query.wants(row));
        return Ok(rows);
    }
    proc_net::rows(query)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Both sources, each asked alone.
    fn each_source(query: &Query) -> [Vec<Row>; 2] {
        [diag::rows(query).unwrap(), proc_net::rows(query).unwrap()]
    }

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
            assert!((0..10).any(|_| sessions(&[port, 1]).unwrap().open == 1));
            // Ports between those asked for are not asked for; these two are nobody's.
            assert_eq!(sessions(&[1, u16::MAX]).unwrap().open, 0);
            drop(client);
            let closed = sessions(&[port]).unwrap();
            assert_eq!(closed.open, 0, "the client closed it, though we did not");
            drop(server);
            for mut rows in each_source(&at_port(TIME_WAIT, port, Side::Remote)) {
                rows.dedup_by_key(|row| (row.local, row.remote_port));
                assert_eq!(rows.len(), 1, "{place}: the client remembers: {rows:?}");
                assert!(
                    rows[0].closed_ago() < Duration::from_secs(30),
                    "{place}: {rows:?}"
                );
            }
            assert!(sessions(&[port]).unwrap().last_closed.is_some());
        }
    }

    #[test]
    fn what_we_closed_first_is_remembered_by_us() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(
            sessions(&[port]).unwrap(),
            Sessions {
                open: 0,
                last_closed: None
            }
        );
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        drop(listener.accept().unwrap());
        drop(client);
        for rows in each_source(&at_port(TIME_WAIT, port, Side::Local)) {
            assert_eq!(rows.len(), 1);
        }
        assert!(sessions(&[port]).unwrap().last_closed.unwrap() < Duration::from_secs(30));
    }
}
