//! How much a pipe or a socket holds until it is read.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::sockopt;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

/// How many bytes a pipe holds; `None` for anything else.
pub(crate) fn pipe_size(pipe: BorrowedFd<'_>) -> Option<usize> {
    fcntl_getpipe_size(pipe).ok()
}

/// Makes a pipe hold this many bytes; `false` if that is not possible, for example because a user may have no larger one.
pub(crate) fn set_pipe_size(pipe: BorrowedFd<'_>, bytes: usize) -> bool {
    fcntl_setpipe_size(pipe, bytes).is_ok()
}

/// How many bytes a pipe holds, or a socket takes.
pub(crate) fn buffer_size(channel: BorrowedFd<'_>) -> Option<usize> {
    let of_pipe = pipe_size(channel);
    // The kernel says twice of what it was told, for its own needs.
    of_pipe.or_else(|| Some(sockopt::socket_send_buffer_size(channel).ok()? / 2))
}

/// Makes a pipe hold this many bytes, or a socket take them; `false` if that is not possible.
pub(crate) fn set_buffer_size(channel: BorrowedFd<'_>, bytes: usize) -> bool {
    set_pipe_size(channel, bytes) || sockopt::set_socket_send_buffer_size(channel, bytes).is_ok()
}

/// Number of bytes written to a pipe or Unix socket that the other end has not read. For a socket, the kernel counts
/// memory: whole buffers and their overhead. `None` if it does not report the number.
pub(crate) fn unread_by_peer(output: BorrowedFd<'_>) -> Option<usize> {
    if pipe_size(output).is_some() {
        let unread = rustix::io::ioctl_fionread(output).ok()?;
        return usize::try_from(unread).ok();
    }
    let mut unread: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ of a socket) writes one int to the address, which is that of a live int.
    let result = unsafe { libc::ioctl(output.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
    let is_told = result == 0;
    is_told.then(|| usize::try_from(unread).ok()).flatten()
}
