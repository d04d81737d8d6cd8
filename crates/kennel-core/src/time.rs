//! Time as a value: every call that decides by time takes it as an argument.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in monotonic time: nanoseconds since a start that the caller chose.
///
/// Only moments with the same start can be compared. Arithmetic saturates: a sum ends at [`Moment::END`], and the
/// difference to a later moment is zero. A program derives moments from its monotonic clock, a test makes them up:
///
/// ```
/// use kennel_core::time::Moment;
/// use std::time::{Duration, Instant};
///
/// let start = Instant::now();
/// let now = Moment::START + start.elapsed();
///
/// assert!(now + Duration::from_secs(1) > now);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// The start.
    pub const START: Moment = Moment(0);

    /// The last moment, some 584 years after the start.
    pub const END: Moment = Moment(u64::MAX);

    /// The moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `length` later. `None`: it is past [`Moment::END`].
    pub fn checked_add(self, length: Duration) -> Option<Moment> {
        let nanos = u64::try_from(length.as_nanos()).ok()?;
        self.0.checked_add(nanos).map(Moment)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, length: Duration) -> Moment {
        self.checked_add(length).unwrap_or(Moment::END)
    }
}

impl Sub for Moment {
    type Output = Duration;

    fn sub(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration for people: `250 ms`, `1.5 s`, `60 s`, `30 min`, `2 h 5 min`. Rounded down, so that it never claims more
/// than has passed.
pub(crate) struct HumanDuration(pub(crate) Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, tenths) = (self.0.as_secs(), self.0.subsec_millis() / 100);
        match (seconds, tenths) {
            (0, _) => write!(f, "{} ms", self.0.subsec_millis()),
            (1..10, 1..) => write!(f, "{seconds}.{tenths} s"),
            (1..120, _) => write!(f, "{seconds} s"),
            (120..7200, _) => write!(f, "{} min", seconds / 60),
            (7200.., _) => match (seconds / 3600, seconds / 60 % 60) {
                (hours, 0) => write!(f, "{hours} h"),
                (hours, minutes) => write!(f, "{hours} h {minutes} min"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_moment_counts_from_its_start_and_is_ordered() {
        let later = Moment::START + SECOND;

        assert_eq!(later, Moment::from_nanos(1_000_000_000));
        assert_eq!(later.as_nanos(), 1_000_000_000);
        assert!(Moment::START < later && later < Moment::END);
        assert_eq!(later - Moment::START, SECOND);
    }

    #[test]
    fn no_sum_runs_past_the_end_and_no_difference_is_negative() {
        assert_eq!(Moment::END + SECOND, Moment::END);
        assert_eq!(Moment::START + Duration::MAX, Moment::END);
        assert_eq!(Moment::START - Moment::END, Duration::ZERO);
    }

    #[test]
    fn a_checked_sum_knows_when_it_would_run_past_the_end() {
        let last_second = Moment::from_nanos(u64::MAX - 1_000_000_000);

        assert_eq!(last_second.checked_add(SECOND), Some(Moment::END));
        assert_eq!(last_second.checked_add(SECOND * 2), None);
        assert_eq!(Moment::START.checked_add(Duration::MAX), None);
    }

    #[test]
    fn a_duration_is_spoken_briefly_and_never_rounded_up() {
        for (millis, words) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_999, "1.9 s"),
            (5_000, "5 s"),
            (60_999, "60 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (30 * 60_000, "30 min"),
            (2 * 3_600_000, "2 h"),
            (2 * 3_600_000 + 5 * 60_000, "2 h 5 min"),
        ] {
            assert_eq!(
                HumanDuration(Duration::from_millis(millis)).to_string(),
                words
            );
        }
    }
}
