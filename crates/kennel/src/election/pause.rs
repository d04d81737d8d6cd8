//! Waiting a little before another look, where the kernel offers no event (rule 10).

use std::os::fd::AsFd;
use std::time::Duration;

use kennel_sys::events::{self, Bell};

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(20);

/// Pauses that grow, and end early when the election is abandoned.
pub(super) struct Pause<'a> {
    next: Duration,
    abandoned: &'a Bell,
}

impl<'a> Pause<'a> {
    pub(super) fn new(abandoned: &'a Bell) -> Pause<'a> {
        let next = SHORTEST;
        Pause { next, abandoned }
    }

    /// Waits a little longer than the last time; `false` if nobody wants the outcome any more.
    pub(super) fn nap(&mut self) -> bool {
        let nap = self.next;
        self.next = (nap * 2).min(LONGEST);
        // It fails only where not even waiting is possible: nothing can be decided then.
        events::sleep(&[self.abandoned.as_fd()], &[], Some(nap)).is_ok()
            && !is_readable(self.abandoned)
    }
}

/// Whether there is something to read now, be it the end. A bell goes on ringing.
pub(super) fn is_readable(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
