//! TCP sockets of this network namespace, and Unix sockets by path.
//!
//! TCP sockets are asked of the kernel by netlink (`sock_diag`), which hands over only what is asked for; where that cannot
//! be had, they are read from `/proc/net/tcp` and `tcp6`. Both know IPv4, IPv6, and IPv4 through an IPv6 socket.

mod diag;
mod proc_net;
mod unix_listeners;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::kernel::features;
pub use unix_listeners::listens_at;

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
    fn wants(&self, row: &Row) -> bool {
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

/// The TCP sockets that `query` asks for.
pub(crate) fn tcp_sockets(query: &Query) -> io::Result<Vec<Row>> {
    if features().sock_diag
        && let Ok(mut rows) = diag::rows(query)
    {
        // A kernel that does not filter is no reason to be wrong.
        rows.retain(|row| query.wants(row));
        return Ok(rows);
    }
    proc_net::rows(query)
}

/// Both sources, each asked alone.
#[cfg(test)]
pub(crate) fn each_source(query: &Query) -> [Vec<Row>; 2] {
    let rows = [diag::rows(query), proc_net::rows(query)];
    rows.map(|rows| rows.expect("an answer"))
}
