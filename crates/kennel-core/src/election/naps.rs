//! Waiting a little before another look, where the kernel offers no event (rule 10).

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(20);

/// Naps that grow.
#[derive(Debug)]
pub(super) struct Naps {
    next: Duration,
}

impl Naps {
    pub(super) fn new() -> Naps {
        Naps { next: SHORTEST }
    }

    /// A little longer than the last one.
    pub(super) fn next(&mut self) -> Duration {
        let nap = self.next;
        self.next = LONGEST.min(nap * 2);
        nap
    }
}
