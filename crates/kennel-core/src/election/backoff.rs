//! Growing delays between two checks, where the kernel offers no event to wait for (rule 10).

use std::time::Duration;

const FIRST_DELAY: Duration = Duration::from_millis(1);
const MAX_DELAY: Duration = Duration::from_millis(20);

/// Exponential backoff from [`FIRST_DELAY`] to [`MAX_DELAY`].
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { next: FIRST_DELAY }
    }

    /// Returns the next delay, and doubles it for the call after.
    pub(super) fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = MAX_DELAY.min(delay * 2);
        delay
    }
}
