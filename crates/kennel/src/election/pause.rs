//! Waiting, and hearing meanwhile that nobody waits for us.

use std::os::fd::AsFd;
use std::time::Duration;

use kennel_sys::events::{self, Bell};

/// Waits so long; `false` if nobody wants the outcome any more.
pub(super) fn nap(length: Duration, abandoned: &Bell) -> bool {
    // It fails only where not even waiting is possible: nothing can be decided then.
    events::sleep(&[abandoned.as_fd()], &[], Some(length)).is_ok() && !is_readable(abandoned)
}

/// Whether there is something to read now, be it the end. A bell goes on ringing.
pub(crate) fn is_readable(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
