//! The process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::net::AddressFamily;

use crate::kernel::features;
use crate::os;
use crate::process::ProcessRef;

/// The process at the other end, as the kernel recorded it when the two ends were connected.
#[derive(Debug)]
pub struct Peer {
    /// Its uid, which decides whether it may connect at all (rule 9).
    pub uid: u32,
    /// Its pid; 0 if it is in a pid namespace that we cannot see.
    pub pid: u32,
    /// The process; `None` if it is gone, or its pid may have been reused.
    pub process: Option<ProcessRef>,
}

impl Peer {
    /// The peer of a connected Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let socket = socket.as_fd();
        // Not rustix's wrapper: a peer in another pid namespace has pid 0, which its type cannot hold.
        let (pid, uid) = os::peer_credentials(socket)?;
        let process = if features().peer_pidfd {
            // Pid and pidfd are both of the process that created the other end.
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

    /// The peer of our stdin; `None` if stdin is not a Unix socket.
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

/// Fails if the connection has ended: then the pid may have been reused. While it is open, its creator's end is held.
fn still_joined(socket: BorrowedFd<'_>, process: ProcessRef) -> io::Result<ProcessRef> {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    poll(&mut fds, Some(&rustix::time::Timespec::default()))?;
    if fds[0].revents().contains(PollFlags::HUP) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(process)
}
