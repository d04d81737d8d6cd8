//! Retrying for a limited time, where the kernel offers no event (rule 10).

use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_micros(200);

/// A time limit that starts with the first [`pause`](RetryTime::pause).
#[derive(Debug)]
pub(crate) struct RetryTime {
    remaining: Duration,
    end: Option<Instant>,
}

impl RetryTime {
    pub(crate) fn of(remaining: Duration) -> RetryTime {
        RetryTime {
            remaining,
            end: None,
        }
    }

    /// Waits a short time and returns `true`; returns `false` at once when the limit is reached.
    pub(crate) fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= *self.end.get_or_insert(now + self.remaining) {
            return false;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a contended flock and a directory in the making are no events; bounded by the budget"
        )]
        std::thread::sleep(STEP);
        true
    }
}
