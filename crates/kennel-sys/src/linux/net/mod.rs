//! TCP sockets of this network namespace, and Unix sockets by path.
//!
//! TCP sockets are listed by netlink (`sock_diag`), where the kernel filters them, or, if that is not available, read from
//! `/proc/net/tcp` and `tcp6`. Both list IPv4, IPv6, and IPv4 through an IPv6 socket.

mod diag;
mod proc_net;
mod unix_listeners;

use std::collections::HashSet;
use std::io;

use super::procfs::require_our_own;
use crate::kernel::features;
use crate::net::{Ports, Query, Side, TcpSocket, TcpState};
pub use unix_listeners::listens_at;

/// The numbers that Linux uses for these states.
const STATES: [(TcpState, u8); 6] = [
    (TcpState::Established, 1),
    (TcpState::FinWait1, 4),
    (TcpState::FinWait2, 5),
    (TcpState::TimeWait, 6),
    (TcpState::CloseWait, 8),
    (TcpState::Listen, LISTEN),
];

/// The number of a listening socket, also of a Unix socket.
pub(super) const LISTEN: u8 = 10;
/// The number of a connected socket, also of a Unix socket.
pub(super) const ESTABLISHED: u8 = 1;

/// The number of a state.
pub(super) fn number_of(state: TcpState) -> u8 {
    let known = STATES.iter().find(|(known, _)| *known == state);
    known.map_or(0, |(_, number)| *number)
}

/// The state with this number, if it is one of [`STATES`].
pub(super) fn state_of(number: u8) -> Option<TcpState> {
    let known = STATES.iter().find(|(_, known)| *known == number)?;
    Some(known.0)
}

/// The TCP sockets that match `query`.
pub(crate) fn tcp_sockets(query: &Query) -> io::Result<Vec<TcpSocket>> {
    if features().sock_diag
        && let Ok(mut rows) = diag::rows(query)
    {
        // A kernel may not filter.
        rows.retain(|row| query.wants(row));
        return Ok(rows);
    }
    proc_net::rows(query)
}

/// The inodes of the listening sockets in the network namespace of a process. Read from its `/proc`, which does not show the
/// peers of Unix sockets.
pub(crate) fn listening_in_namespace_of(pid: u32) -> io::Result<HashSet<u64>> {
    require_our_own()?;
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/net/{name}"));
    let unix = read("unix")?;
    let mut listening: HashSet<u64> = unix_listeners::listening(&unix).map(|it| it.0).collect();
    let query = Query {
        state: TcpState::Listen,
        ports: Ports::Any,
    };
    for name in ["tcp", "tcp6"] {
        // A kernel without IPv6 has no such file.
        let text = read(name).unwrap_or_default();
        let sockets = proc_net::parse(&String::from_utf8_lossy(&text), &query);
        listening.extend(sockets.iter().map(|socket| socket.inode));
    }
    Ok(listening)
}

/// The answers of both sources.
#[cfg(test)]
pub(crate) fn each_source(query: &Query) -> [Vec<TcpSocket>; 2] {
    let rows = [diag::rows(query), proc_net::rows(query)];
    rows.map(|rows| rows.expect("an answer"))
}
