//! TCP sockets of this network namespace, and Unix sockets by path.
//!
//! TCP sockets are asked of the kernel by netlink (`sock_diag`), which hands over only what is asked for; where that cannot
//! be had, they are read from `/proc/net/tcp` and `tcp6`. Both know IPv4, IPv6, and IPv4 through an IPv6 socket.

mod diag;
mod proc_net;
mod unix_listeners;

use std::io;

use crate::kernel::features;
pub(crate) use crate::net::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT, LISTEN, Ports, Query, Row, Side};
pub use unix_listeners::listens_at;

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
