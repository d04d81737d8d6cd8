//! TCP sockets by netlink, filtered by the kernel.

use std::io;

use rustix::net::AddressFamily;

use super::super::sock_diag::{SockDiag, tcp_request, tcp_socket};
use super::{Ports, Query, Side, TcpSocket, number_of};

/// The IPv4 and IPv6 sockets that match `query`.
pub(super) fn rows(query: &Query) -> io::Result<Vec<TcpSocket>> {
    let mut diag = SockDiag::open()?;
    let mut rows = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let request = tcp_request(family, 1 << number_of(query.state), &filter(query.ports));
        diag.request(&request, |answer| {
            rows.extend(tcp_socket(answer));
        })?;
    }
    Ok(rows)
}

/// `min <= port && port <= max` in the bytecode of `inet_diag`. Each comparison has two words. Its second number is how far
/// to jump if it does not hold; a jump to one word past the end rejects the socket.
fn filter(ports: Ports) -> Vec<u8> {
    let Ports::Within { side, min, max } = ports else {
        return Vec::new();
    };
    let (at_least, at_most) = match side {
        Side::Local => (2u8, 3u8),
        Side::Remote => (4, 5),
    };
    let mut code = Vec::with_capacity(16);
    for (operation, or_else, port) in [(at_least, 20u16, min), (at_most, 12, max)] {
        code.extend([operation, 8]);
        code.extend(or_else.to_ne_bytes());
        code.extend([0, 0]);
        code.extend(port.to_ne_bytes());
    }
    code
}
