//! Sockets: sending without a signal, the credentials of a Unix peer, and passing descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

/// Socket option: whether peers may pass descriptors. An accepted socket inherits it from its listener.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Two connected sockets for messages.
pub(crate) fn message_channel() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends to a socket. If it is closed, the result is an error and no signal.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL)
}

/// The pid and the uid of the process at the other end. The pid is 0 if that is in a pid namespace that we cannot see.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, a ucred, into `cred`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((u32::try_from(cred.pid).unwrap_or(0), cred.uid))
}

/// Whether a peer may pass descriptors; an error if the kernel does not have this option.
pub(crate) fn descriptors_allowed(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut allowed: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, an int, into `allowed`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut allowed).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(allowed != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets whether a peer may pass descriptors.
pub(crate) fn allow_descriptors(socket: BorrowedFd<'_>, allowed: bool) -> io::Result<()> {
    let allowed = libc::c_int::from(allowed);
    // SAFETY: the kernel reads an int through the pointer, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const allowed).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
