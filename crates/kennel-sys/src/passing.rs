//! Descriptors that a peer passes through a Unix socket (`SCM_RIGHTS`).
//!
//! If the sender has closed a passed descriptor, the receiving process closes it: in a `recv` that does not ask for it, or
//! at the end of the connection. That can block for as long as the sender wants: on a TCP socket with unsent data and
//! `SO_LINGER`, or a file on a FUSE mount whose server does not answer. So a process with untrusted clients refuses
//! descriptors, or, if the kernel cannot do that (before Linux 6.16), closes them on another thread.

use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::net::Shutdown;

use crate::io::Handle;
use crate::kernel::features;
use crate::os;

/// Maximum number of threads that close descriptors at a time. Above that, descriptors stay open.
const MAX_CLOSING: usize = 64;

/// Whether a peer can pass descriptors to this socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    /// The peer cannot pass descriptors, and never could.
    Refused,
    /// The peer can no longer pass descriptors. Those passed before may be in the queue.
    RefusedFromNow,
    /// It can: this kernel cannot refuse descriptors.
    Possible,
    /// It can, and is trusted.
    Allowed,
}

/// Refuses descriptors: a peer that passes one gets an error (`EPERM`).
pub(crate) fn refuse(socket: impl AsFd) -> Passing {
    let socket = socket.as_fd();
    match features()
        .pass_rights
        .then(|| os::descriptors_allowed(socket))
    {
        Some(Ok(false)) => Passing::Refused,
        Some(Ok(true)) if os::allow_descriptors(socket, false).is_ok() => Passing::RefusedFromNow,
        _ => Passing::Possible,
    }
}

/// Accepts descriptors again, from a trusted peer. If they could not be refused, they are accepted anyway.
pub(crate) fn allow(socket: impl AsFd) {
    if features().pass_rights {
        let _ = os::allow_descriptors(socket.as_fd(), true);
    }
}

/// Closes a connection without blocking on descriptors that its peer passed and that were not received.
pub(crate) fn close(socket: OwnedFd) {
    // The peer can send no more from here on. Each descriptor comes with at least one byte.
    let _ = rustix::net::shutdown(&socket, Shutdown::Read);
    match rustix::io::ioctl_fionread(&socket) {
        Ok(0) => drop(socket),
        _ => close_elsewhere(vec![Handle::new(socket)]),
    }
}

/// Closes descriptors on another thread. If no thread can be started they stay open, which is better than to block.
pub fn close_elsewhere(handles: Vec<Handle>) {
    static CLOSING: AtomicUsize = AtomicUsize::new(0);
    // As numbers: if the thread cannot be started, dropping the descriptors would close them here.
    let handles = handles.into_iter().map(Handle::into_inner);
    let numbers: Vec<RawFd> = handles.map(OwnedFd::into_raw_fd).collect();
    if CLOSING.fetch_add(1, Ordering::Relaxed) >= MAX_CLOSING {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let close = move || {
        for number in numbers {
            // SAFETY: it was an `OwnedFd` that was given up above, so it is open and has no other owner.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    };
    let thread = std::thread::Builder::new().name("closing".to_owned());
    if thread.spawn(close).is_err() {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether this kernel can refuse descriptors.
pub fn can_be_refused() -> bool {
    let pair = std::os::unix::net::UnixStream::pair();
    pair.is_ok_and(|(ours, _theirs)| refuse(ours) != Passing::Possible)
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::{Duration, Instant};

    use kennel_testkit::Scope;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

    use super::*;

    /// Passes a descriptor with one byte.
    fn pass(through: &UnixStream, descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let descriptors = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        along.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(
            through,
            &[IoSlice::new(b"x")],
            &mut along,
            SendFlags::empty(),
        )
    }

    /// A socket whose close blocks for this time, and its other end.
    fn lingering(time: Duration) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut full = TcpStream::connect(address).expect("it listens");
        let (other, _) = listener.accept().expect("it connected");
        full.set_nonblocking(true).expect("a socket");
        while full.write(&[0; 65536]).is_ok() {}
        full.set_nonblocking(false).expect("a socket");
        sockopt::set_socket_linger(&full, Some(time)).expect("a socket");
        (full, other)
    }

    #[test]
    fn descriptors_are_refused_by_accepted_sockets_and_still_sent_by_them() {
        if !can_be_refused() {
            return kennel_testkit::skipped("this kernel has no SO_PASSRIGHTS (Linux 6.16)");
        }
        let scope = Scope::new("passing");
        let listener = UnixListener::bind(scope.path("socket")).expect("a socket");
        assert_eq!(refuse(&listener), Passing::RefusedFromNow);
        let client = UnixStream::connect(scope.path("socket")).expect("it listens");
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let early = pass(&client, null.as_fd());
        assert_eq!(early, Err(rustix::io::Errno::PERM));
        let (accepted, _) = listener.accept().expect("it connected");
        assert_eq!(pass(&client, null.as_fd()), early);
        assert_eq!(refuse(&accepted), Passing::Refused);
        assert_eq!(pass(&accepted, null.as_fd()), Ok(1), "the other way");
        allow(&accepted);
        assert_eq!(pass(&client, null.as_fd()), Ok(1));
        assert_eq!(refuse(&accepted), Passing::RefusedFromNow);
    }

    #[test]
    fn a_connection_with_a_descriptor_that_lingers_is_closed_at_once() {
        let (mut far, near) = UnixStream::pair().expect("a pair");
        let (full, _other) = lingering(Duration::from_secs(30));
        pass(&far, full.as_fd()).expect("nobody refuses it");
        drop(full);
        let begin = Instant::now();
        close(near.into());
        let (full, _other) = lingering(Duration::from_secs(30));
        close_elsewhere(vec![Handle::new(full)]);
        assert!(begin.elapsed() < Duration::from_secs(10), "it waited");
        // End of input, or a reset because of the unread byte, which may come only when the descriptor is closed.
        far.set_nonblocking(true).expect("a socket");
        let _ = far.read(&mut [0]);
    }

    #[test]
    fn a_connection_with_nothing_unread_is_closed_here() {
        let (mut far, near) = UnixStream::pair().expect("a pair");
        close(near.into());
        assert_eq!(far.read(&mut [0]).expect("an end"), 0);
    }
}
