//! The daemon's clock, which continues when the daemon becomes a newer build.

use std::time::Instant;

use kennel_core::time::Moment;

/// Converts between this process's clock and the daemon's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    from: Moment,
    start: Instant,
}

impl Clock {
    /// A clock that reads `from` now.
    pub(super) fn start(from: Moment) -> Clock {
        let start = Instant::now();
        Clock { from, start }
    }

    pub(super) fn at(self, at: Instant) -> Moment {
        self.from + at.saturating_duration_since(self.start)
    }

    /// A moment as a time of this process's clock.
    pub(super) fn instant(self, moment: Moment) -> Instant {
        let earlier = self.start.checked_sub(self.from - moment);
        match moment < self.from {
            true => earlier.unwrap_or(self.start),
            false => self.start + (moment - self.from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_moment_and_back_is_the_same_time() {
        let clock = Clock::start(Moment::START + Duration::from_secs(60));
        for seconds in [0, 1, 59, 60, 61, 3600] {
            let moment = Moment::START + Duration::from_secs(seconds);
            let instant = clock.instant(moment);
            assert_eq!(clock.at(instant), moment.max(clock.from));
        }
        let minute = Duration::from_secs(60);
        assert_eq!(
            clock.instant(clock.from),
            clock.instant(Moment::START) + minute
        );
    }
}
