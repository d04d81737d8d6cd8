//! TCP sockets by netlink, filtered by the kernel.

use std::io;

use rustix::net::AddressFamily;

use super::super::sock_diag::{SockDiag, TcpAnswer, tcp_request};
use super::{Ports, Query, Row, Side};

/// The sockets of both families that `query` asks for.
pub(super) fn rows(query: &Query) -> io::Result<Vec<Row>> {
    let mut diag = SockDiag::open()?;
    let mut rows = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let request = tcp_request(family, 1 << query.state, &filter(query.ports));
        diag.ask(&request, |answer| {
            rows.extend(TcpAnswer::read(answer).map(Row::from));
        })?;
    }
    Ok(rows)
}

/// `least <= port && port <= most`, for the kernel's small machine. Each comparison is two words; its second
/// number is how far to go on if it does not hold, and past the end by one word means no.
fn filter(ports: Ports) -> Vec<u8> {
    let Ports::Within { side, least, most } = ports else {
        return Vec::new();
    };
    let (at_least, at_most) = match side {
        Side::Local => (2u8, 3u8),
        Side::Remote => (4, 5),
    };
    let mut code = Vec::with_capacity(16);
    for (operation, or_else, port) in [(at_least, 20u16, least), (at_most, 12, most)] {
        code.extend([operation, 8]);
        code.extend(or_else.to_ne_bytes());
        code.extend([0, 0]);
        code.extend(port.to_ne_bytes());
    }
    code
}

impl From<TcpAnswer> for Row {
    fn from(answer: TcpAnswer) -> Row {
        let TcpAnswer {
            state,
            local,
            remote,
            timer,
            uid,
            inode,
        } = answer;
        Row {
            local,
            remote,
            state,
            timer,
            uid,
            inode,
        }
    }
}
