//! Trying again, for a bounded moment, where the kernel offers no event for the end of it (rule 10).

use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_micros(200);

/// A budget of time that starts with the first [`pause`](Patience::pause).
#[derive(Debug)]
pub(crate) struct Patience {
    budget: Duration,
    end: Option<Instant>,
}

impl Patience {
    pub(crate) fn of(budget: Duration) -> Patience {
        Patience { budget, end: None }
    }

    /// Waits one small step and says "try again"; `false`, at once, when the budget is used up.
    pub(crate) fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= *self.end.get_or_insert(now + self.budget) {
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
