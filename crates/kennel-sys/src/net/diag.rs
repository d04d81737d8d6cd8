//! Sockets by netlink: one question, a stream of answers, filtered by the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::{Ports, Query, Row, Side};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IPPROTO_TCP: u8 = 6;
const REQUEST_BYTECODE: u16 = 1;

const HEADER: usize = 16;
/// `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// What the kernel fills at once.
const CHUNK: usize = 32 * 1024;

/// The sockets of both families that `query` asks for.
pub(super) fn rows(query: &Query) -> io::Result<Vec<Row>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut rows = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let asked = rustix::net::send(&socket, &request(family, query), SendFlags::empty());
        asked?;
        read_all(&socket, &mut rows)?;
    }
    Ok(rows)
}

/// `nlmsghdr`, `inet_diag_req_v2`, and the filter.
fn request(family: AddressFamily, query: &Query) -> Vec<u8> {
    let filter = filter(query.ports);
    let mut body = vec![family.as_raw() as u8, IPPROTO_TCP, 0, 0];
    body.extend((1u32 << query.state).to_ne_bytes());
    // Of which addresses: of any.
    body.extend([0; 48]);
    if !filter.is_empty() {
        body.extend((4 + filter.len() as u16).to_ne_bytes());
        body.extend(REQUEST_BYTECODE.to_ne_bytes());
        body.extend(&filter);
    }
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
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

fn read_all(socket: &OwnedFd, rows: &mut Vec<Row>) -> io::Result<()> {
    let mut buffer = vec![0u8; CHUNK];
    loop {
        let length = match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let mut rest = &buffer[..length];
        while rest.len() >= HEADER {
            let size = word(rest, 0) as usize;
            if size < HEADER || size > rest.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let (message, kind) = (&rest[..size], u16::from_ne_bytes([rest[4], rest[5]]));
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR if size >= HEADER + 4 => {
                    let errno = (word(message, HEADER) as i32).wrapping_neg();
                    return Err(io::Error::from_raw_os_error(errno));
                }
                SOCK_DIAG_BY_FAMILY if size >= HEADER + ANSWER => {
                    rows.push(row(&message[HEADER..]));
                }
                _ => {}
            }
            // Messages begin at multiples of four.
            rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

fn row(answer: &[u8]) -> Row {
    let big = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    let address = |at: usize| match u16::from(answer[0]) == AddressFamily::INET.as_raw() {
        true => {
            let bytes: [u8; 4] = answer[at..at + 4].try_into().expect("four bytes");
            IpAddr::from(Ipv4Addr::from(bytes))
        }
        false => {
            let bytes: [u8; 16] = answer[at..at + 16].try_into().expect("sixteen bytes");
            IpAddr::from(Ipv6Addr::from(bytes))
        }
    };
    Row {
        state: answer[1],
        local: SocketAddr::new(address(8), big(4)),
        remote: SocketAddr::new(address(24), big(6)),
        timer: Duration::from_millis(u64::from(word(answer, 52))),
        uid: word(answer, 64),
        inode: u64::from(word(answer, 68)),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
