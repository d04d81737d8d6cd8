//! How much time there is: a whole run ends in time on any machine, and what it has no time for, it says.

use std::time::{Duration, Instant};

/// What a whole run may take, and a short one. Whatever has begun is finished, so it is less than what is promised.
const FULL: Duration = Duration::from_secs(18 * 60);
const QUICK: Duration = Duration::from_secs(100);

/// When a run began, and when nothing of it may begin any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    begun: Instant,
    end: Option<Instant>,
}

impl Clock {
    /// A single benchmark takes what it takes, within bounds of its own.
    pub(crate) fn start(is_whole: bool, is_quick: bool) -> Clock {
        let begun = Instant::now();
        let time = if is_quick { QUICK } else { FULL };
        Clock {
            begun,
            end: is_whole.then(|| begun + time),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// None: as much as it takes.
    pub(crate) fn left(&self) -> Option<Duration> {
        let end = self.end?;
        Some(end.saturating_duration_since(Instant::now()))
    }

    /// Whether something that takes so long can begin.
    pub(crate) fn has(&self, time: Duration) -> bool {
        self.left().is_none_or(|left| left >= time)
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::start(false, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_run_runs_out_of_time() {
        let whole = Clock::start(true, true);
        assert!(whole.has(QUICK / 2) && !whole.has(QUICK + Duration::from_secs(1)));
        let single = Clock::start(false, true);
        assert!(single.has(FULL * 100) && single.left().is_none());
    }
}
