//! Descriptors that a peer passes through a unix socket (`SCM_RIGHTS`).
//!
//! A passed descriptor that its sender has closed is closed by whoever drops it, be it by a `recv` that does not ask for it or
//! by the end of the connection. That can take as long as the sender wants: a TCP socket with unsent data and `SO_LINGER`,
//! a file on a FUSE mount whose server does not answer. So a process that serves strangers refuses them, and where the kernel
//! cannot do that (before Linux 6.16), it has them closed by a thread that nobody waits for.

use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::net::Shutdown;

use crate::kernel::features;
use crate::os;

/// Maximum number of threads that close descriptors at one time. What comes beyond that stays open.
const MOST_CLOSING: usize = 64;

/// Whether a peer can pass descriptors to this socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    /// It cannot, and never could.
    Refused,
    /// It cannot from now on. What it passed before may wait to be received.
    RefusedFromNow,
    /// It can: the kernel has no way to refuse it.
    Possible,
}

/// Refuses descriptors: a peer that passes some gets an error (`EPERM`).
pub fn refuse(socket: impl AsFd) -> Passing {
    let socket = socket.as_fd();
    match features()
        .pass_rights
        .then(|| os::may_pass_descriptors(socket))
    {
        Some(Ok(false)) => Passing::Refused,
        Some(Ok(true)) if os::let_pass_descriptors(socket, false).is_ok() => {
            Passing::RefusedFromNow
        }
        _ => Passing::Possible,
    }
}

/// Takes descriptors again, for a peer that is trusted. Where they could not be refused, they are taken anyway.
pub fn allow(socket: impl AsFd) {
    if features().pass_rights {
        let _ = os::let_pass_descriptors(socket.as_fd(), true);
    }
}

/// Closes a connection without waiting for descriptors that its peer passed and nobody received.
pub fn close(socket: OwnedFd) {
    // From now on the peer can send nothing more. A descriptor comes with a byte at least.
    let _ = rustix::net::shutdown(&socket, Shutdown::Read);
    match rustix::io::ioctl_fionread(&socket) {
        Ok(0) => drop(socket),
        _ => close_elsewhere(vec![socket]),
    }
}

/// Closes descriptors on a thread that nobody waits for. Where no thread can be had they stay open: better than to wait.
pub fn close_elsewhere(descriptors: Vec<OwnedFd>) {
    static CLOSING: AtomicUsize = AtomicUsize::new(0);
    // As numbers: a thread that cannot be started would close them here.
    let numbers: Vec<RawFd> = descriptors.into_iter().map(OwnedFd::into_raw_fd).collect();
    if CLOSING.fetch_add(1, Ordering::Relaxed) >= MOST_CLOSING {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let close = move || {
        for number in numbers {
            // SAFETY: it was an `OwnedFd` that was given up above, so it is open and nobody else's.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    };
    let thread = std::thread::Builder::new().name("closing".to_owned());
    if thread.spawn(close).is_err() {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether this kernel can refuse them.
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

    /// Passes a descriptor, together with a byte.
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

    /// A socket whose close takes this long, and its other end.
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
        close_elsewhere(vec![full.into()]);
        assert!(begin.elapsed() < Duration::from_secs(10), "it waited");
        // An end, or a reset because of the byte that nobody read: it may come as late as the descriptor is closed.
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
