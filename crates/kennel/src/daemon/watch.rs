//! Ends as events: of a process, of a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use kennel_sys::process::ProcessRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::moments;

/// How often is looked where the kernel offers no event (rule 10), unless `KENNEL_SWEEP` says otherwise.
pub(super) const SWEEP: Duration = Duration::from_secs(30);

/// Waits until `process` has ended.
pub(super) async fn end_of(process: &ProcessRef, sweep: Duration) {
    if let Some(fd) = process.exit_fd()
        && let Ok(exit) = registered(fd, Interest::READABLE)
        && exit.readable().await.is_ok()
    {
        return;
    }
    while process.is_alive() {
        moments::after(sweep).await;
    }
}

/// Waits until any of `processes` has ended; for ever, if there is none.
pub(super) async fn end_of_any(processes: &[&ProcessRef], sweep: Duration) {
    match processes {
        [] => std::future::pending().await,
        [one] => end_of(one, sweep).await,
        [one, rest @ ..] => tokio::select! {
            () = end_of(one, sweep) => {}
            () = Box::pin(end_of_any(rest, sweep)) => {}
        },
    }
}

/// Waits until the other end of a socket is closed for good, without reading from it.
pub(super) async fn hangup(socket: impl AsFd) -> io::Result<()> {
    // A second descriptor: the first is registered already, and wakes for other things.
    let socket = socket.as_fd().try_clone_to_owned()?;
    let socket = registered(socket.as_fd(), Interest::WRITABLE)?;
    loop {
        let mut guard = socket.writable().await?;
        if guard.ready().is_write_closed() {
            return Ok(());
        }
        guard.clear_ready();
    }
}

/// Whether the other end is closed for good, and not only for writing.
pub(super) fn is_hung_up(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let looked = poll(&mut fds, Some(&Timespec::default()));
    looked.is_err() || fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// A descriptor in the event loop, for as long as it is borrowed.
#[expect(
    deprecated,
    reason = "unsound only where the descriptor can change behind it: a borrowed one cannot, and what replaces it is `unsafe`"
)]
pub(super) fn registered(
    fd: BorrowedFd<'_>,
    interest: Interest,
) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    AsyncFd::with_interest(fd, interest)
}
