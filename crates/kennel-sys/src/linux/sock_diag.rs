//! The netlink client of `sock_diag`: lists the sockets of our network namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::net::state_of;
use crate::net::TcpSocket;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const IPPROTO_TCP: u8 = 6;
const REQUEST_BYTECODE: u16 = 1;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct unix_diag_msg`, before the attributes of a socket.
const UNIX_ANSWER: usize = 16;
/// `struct inet_diag_msg`.
const TCP_ANSWER: usize = 72;
/// Size of the receive buffer: the kernel sends no more at once.
const CHUNK: usize = 1 << 16;

/// A netlink connection to `sock_diag`.
#[derive(Debug)]
pub(super) struct SockDiag {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl SockDiag {
    pub(super) fn open() -> io::Result<SockDiag> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        let buffer = vec![0; CHUNK];
        Ok(SockDiag { socket, buffer })
    }

    /// Sends one request, and calls `each` with every answer.
    pub(super) fn request(&mut self, body: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend(REQUEST_DUMP.to_ne_bytes());
        request.extend([0; 8]);
        request.extend(body);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        loop {
            let room = &mut self.buffer[..];
            let length = match rustix::net::recv(&self.socket, room, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((length, _)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let mut rest = &self.buffer[..length];
            while let (Some(size), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
                let size = size as usize;
                let Some(answer) = rest.get(HEADER..size) else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                match kind {
                    DONE => return Ok(()),
                    ERROR => {
                        let errno = u32_at(answer, 0).map_or(0, |errno| errno as i32);
                        return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
                    }
                    SOCK_DIAG_BY_FAMILY => each(answer),
                    _ => {}
                }
                rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// A request for Unix sockets in these states (one bit each), with the attributes in `show`.
pub(super) fn unix_request(states: u32, show: u32) -> Vec<u8> {
    let mut body = vec![AddressFamily::UNIX.as_raw() as u8, 0, 0, 0];
    body.extend(states.to_ne_bytes());
    // Any inode.
    body.extend([0; 4]);
    body.extend(show.to_ne_bytes());
    // No cookie.
    body.extend([0; 8]);
    body
}

/// A request for TCP sockets in these states (one bit each) that pass a filter. An empty filter passes all.
pub(super) fn tcp_request(family: AddressFamily, states: u32, filter: &[u8]) -> Vec<u8> {
    let mut body = vec![family.as_raw() as u8, IPPROTO_TCP, 0, 0];
    body.extend(states.to_ne_bytes());
    // Any address.
    body.extend([0; 48]);
    if !filter.is_empty() {
        body.extend((4 + filter.len() as u16).to_ne_bytes());
        body.extend(REQUEST_BYTECODE.to_ne_bytes());
        body.extend(filter);
    }
    body
}

/// An answer about a Unix socket.
pub(super) struct UnixAnswer<'a> {
    pub(super) inode: u64,
    pub(super) state: u8,
    attributes: &'a [u8],
}

impl<'a> UnixAnswer<'a> {
    pub(super) fn read(answer: &'a [u8]) -> Option<UnixAnswer<'a>> {
        Some(UnixAnswer {
            inode: u64::from(u32_at(answer, 4)?),
            state: *answer.get(2)?,
            attributes: answer.get(UNIX_ANSWER..)?,
        })
    }

    /// The kind and the value of each attribute.
    pub(super) fn attributes(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.attributes;
        std::iter::from_fn(move || {
            let (length, kind) = (usize::from(u16_at(rest, 0)?), u16_at(rest, 2)?);
            let value = rest.get(4..length).unwrap_or_default();
            let next = length.max(4).next_multiple_of(4);
            rest = rest.get(next..).unwrap_or_default();
            Some((kind, value))
        })
    }
}

/// Parses an answer about a TCP socket. `None` if it is too short or has an unknown state.
pub(super) fn tcp_socket(answer: &[u8]) -> Option<TcpSocket> {
    let answer = answer.get(..TCP_ANSWER)?;
    let is_four = u16::from(answer[0]) == AddressFamily::INET.as_raw();
    let address = |at: usize, port: usize| {
        let ip = match is_four {
            true => {
                let bytes: [u8; 4] = answer[at..at + 4].try_into().ok()?;
                IpAddr::from(Ipv4Addr::from(bytes))
            }
            false => {
                let bytes: [u8; 16] = answer[at..at + 16].try_into().ok()?;
                IpAddr::from(Ipv6Addr::from(bytes))
            }
        };
        let port = u16::from_be_bytes([answer[port], answer[port + 1]]);
        Some(SocketAddr::new(ip, port))
    };
    Some(TcpSocket {
        state: state_of(answer[1])?,
        local: address(8, 4)?,
        remote: address(24, 6)?,
        timer: Duration::from_millis(u64::from(u32_at(answer, 52)?)),
        uid: u32_at(answer, 64)?,
        inode: u64::from(u32_at(answer, 68)?),
    })
}

/// The 32-bit number at an offset, in the byte order of this machine.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
