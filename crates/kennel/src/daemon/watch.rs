//! Ends as events: of a process, of a connection.

use std::os::fd::AsFd;
use std::time::Duration;

use kennel_sys::process::ProcessRef;

use super::tasks::{Descriptor, first_of, moments};

/// How often is looked where the kernel offers no event (rule 10), unless `KENNEL_SWEEP` says otherwise.
pub(super) const SWEEP: Duration = Duration::from_secs(30);

/// Waits until `process` has ended.
pub(super) async fn end_of(process: &ProcessRef, sweep: Duration) {
    if let Some(fd) = process.exit_fd()
        && let Ok(exit) = Descriptor::of_input(fd)
    {
        return exit.readable().await;
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
        [one, rest @ ..] => first_of! {
            () = end_of(one, sweep) => {},
            () = Box::pin(end_of_any(rest, sweep)) => {},
        },
    }
}

/// Whether the other end is closed for good, and not only for writing.
pub(super) fn is_hung_up(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let looked = poll(&mut fds, Some(&Timespec::default()));
    looked.is_err() || fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
