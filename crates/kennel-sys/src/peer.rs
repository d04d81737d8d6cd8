//! Who is at the other end of a unix socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::net::AddressFamily;

use crate::kernel::features;
use crate::os;
use crate::process::ProcessRef;

/// The process at the other end, as the kernel noted it when the two ends were joined.
#[derive(Debug)]
pub struct Peer {
    /// Its user: what decides whether it may speak to us at all (rule 9).
    pub uid: u32,
    /// Its pid; 0 where it lives in a pid namespace we cannot see into.
    pub pid: u32,
    /// The process itself; `None` if it is gone, or cannot be told from another bearer of its pid.
    pub process: Option<ProcessRef>,
}

impl Peer {
    /// The peer of a connected unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let socket = socket.as_fd();
        // Not rustix's wrapper: a peer in another pid namespace has pid 0, which its type cannot hold.
        let (pid, uid) = os::peer_credentials(socket)?;
        let process = if features().peer_pidfd {
            // Both are of the one who made its end.
            os::peer_process(socket).and_then(|handle| ProcessRef::from_handle(pid, handle))
        } else {
            ProcessRef::open(pid).and_then(|process| still_joined(socket, process))
        };
        Ok(Peer {
            uid,
            pid,
            process: process.ok(),
        })
    }

    /// The peer of our stdin, where stdin is a unix socket; `None` where it is anything else.
    pub fn of_stdin() -> io::Result<Option<Peer>> {
        let stdin = rustix::stdio::stdin();
        if !is_unix_socket(stdin) {
            return Ok(None);
        }
        Peer::of(stdin).map(Some)
    }
}

fn is_unix_socket(fd: BorrowedFd<'_>) -> bool {
    let is_socket = rustix::fs::fstat(fd)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    is_socket
        && rustix::net::getsockname(fd)
            .is_ok_and(|address| address.address_family() == AddressFamily::UNIX)
}

/// A pid alone could be somebody else's by now; while the connection stands, its maker's end is held.
fn still_joined(socket: BorrowedFd<'_>, process: ProcessRef) -> io::Result<ProcessRef> {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    poll(&mut fds, Some(&rustix::time::Timespec::default()))?;
    if fds[0].revents().contains(PollFlags::HUP) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(process)
}
