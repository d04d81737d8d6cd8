//! When to check whether a server that does not answer is stopped (SIGSTOP, or a debugger), and which stop is reported.

use std::time::Duration;

use crate::time::Moment;

/// Time without an answer before a timer for the first check is set. Most requests are answered earlier, and cost no timer
/// of their own.
const SETTLE: Duration = Duration::from_secs(1);
/// Time without an answer before the first check.
const FIRST: Duration = Duration::from_secs(10);
/// Longest time between two checks.
const LONGEST: Duration = Duration::from_secs(300);

/// The times of the checks: 10 s after the server last spoke, then 20 s, 40 s and so on later, at most 5 min. The kernel
/// tells only its parent that a process was stopped, so there is no event to wait for (rule 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checks {
    next: Moment,
    distance: Duration,
}

impl Checks {
    /// Checks for a request that is pending, and a server that is silent, since this moment.
    fn since(moment: Moment) -> Checks {
        Checks {
            next: moment + FIRST,
            distance: FIRST,
        }
    }

    /// When to check next.
    fn next(&self) -> Moment {
        self.next
    }

    /// The server was checked.
    fn checked(&mut self, now: Moment) {
        self.distance = LONGEST.min(self.distance * 2);
        self.next = now + self.distance;
    }
}

/// Since when the server owes an answer and is silent, and which stop was reported.
#[derive(Debug, Default)]
pub(super) struct StoppedCheck {
    timer: Timer,
    /// The server has spoken since the timer was set.
    spoke: bool,
    /// The process that was reported: each stop is reported once.
    reported: Option<u32>,
}

/// A request that is answered soon costs no timer of its own: the timer of an earlier request fires within a second, and
/// finds nothing to do. A timer for longer is cancelled when no request is pending.
#[derive(Debug, Default)]
enum Timer {
    #[default]
    Off,
    /// Whether the request is still pending [`SETTLE`] later.
    Settling {
        since: Moment,
    },
    Checks(Checks),
}

/// What follows from the time.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Check,
    /// The timer for a check was cancelled.
    Cancelled,
}

impl StoppedCheck {
    pub(super) fn server_spoke(&mut self) {
        self.spoke = true;
    }

    /// Whether a timer of several seconds is set.
    pub(super) fn has_long_timer(&self) -> bool {
        matches!(self.timer, Timer::Checks(_))
    }

    pub(super) fn next_timeout(&self) -> Option<Moment> {
        match &self.timer {
            Timer::Off => None,
            Timer::Settling { since } => Some(*since + SETTLE),
            Timer::Checks(checks) => Some(checks.next()),
        }
    }

    /// Sets the timer while a request is pending.
    pub(super) fn advance(&mut self, pending: bool, now: Moment) -> Due {
        match &self.timer {
            Timer::Off if !pending => {}
            Timer::Off => self.begin(now),
            Timer::Settling { .. } if !pending => self.timer = Timer::Off,
            Timer::Settling { since } if now >= *since + SETTLE => match self.spoke {
                true => self.begin(now),
                false => self.timer = Timer::Checks(Checks::since(*since)),
            },
            Timer::Settling { .. } => {}
            Timer::Checks(_) if !pending => {
                self.timer = Timer::Off;
                return Due::Cancelled;
            }
            Timer::Checks(_) if self.spoke => {
                self.reported = None;
                self.begin(now);
                return Due::Cancelled;
            }
            Timer::Checks(checks) if now >= checks.next() => return Due::Check,
            Timer::Checks(_) => {}
        }
        Due::Nothing
    }

    /// The server was checked: `true` if the process that was found stopped is to be reported.
    pub(super) fn checked(&mut self, stopped: Option<u32>, now: Moment) -> bool {
        if let Timer::Checks(checks) = &mut self.timer {
            checks.checked(now);
        }
        let is_news = self.reported != stopped;
        self.reported = stopped;
        is_news && stopped.is_some()
    }

    fn begin(&mut self, since: Moment) {
        self.spoke = false;
        self.timer = Timer::Settling { since };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_timer_is_set_only_while_a_request_is_pending() {
        let mut check = StoppedCheck::default();
        assert_eq!(check.advance(false, Moment::START), Due::Nothing);
        assert_eq!(check.next_timeout(), None);
        assert_eq!(check.advance(true, Moment::START), Due::Nothing);
        assert_eq!(check.next_timeout(), Some(Moment::START + SETTLE));
        assert_eq!(check.advance(false, Moment::START), Due::Nothing);
        assert_eq!(check.next_timeout(), None);
    }

    #[test]
    fn a_server_that_speaks_is_not_checked() {
        let mut check = StoppedCheck::default();
        let _ = check.advance(true, Moment::START);
        check.server_spoke();
        let later = Moment::START + SECOND;
        assert_eq!(check.advance(true, later), Due::Nothing);
        assert_eq!(check.next_timeout(), Some(later + SETTLE));
    }

    #[test]
    fn a_silent_server_is_checked_10_s_after_the_request_and_each_stop_is_reported_once() {
        let mut check = StoppedCheck::default();
        let _ = check.advance(true, Moment::START);
        let mut now = Moment::START + SECOND;
        assert_eq!(check.advance(true, now), Due::Nothing);
        now = Moment::START + 10 * SECOND;
        assert_eq!(check.next_timeout(), Some(now));
        assert_eq!(check.advance(true, now), Due::Check);
        assert!(check.checked(Some(7), now));
        now = now + 20 * SECOND;
        assert_eq!(check.advance(true, now), Due::Check);
        assert!(!check.checked(Some(7), now));
        // It runs again: another stop is news.
        check.server_spoke();
        assert_eq!(check.advance(true, now), Due::Cancelled);
        let _ = check.advance(true, now + SECOND);
        assert_eq!(check.advance(true, now + 10 * SECOND), Due::Check);
        assert!(check.checked(Some(7), now + 10 * SECOND));
    }

    #[test]
    fn checks_come_after_10_s_and_then_at_doubling_distance_up_to_5_minutes() {
        let mut checks = Checks::since(Moment::START);
        let mut last = Moment::START;
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(checks.next() - last, Duration::from_secs(seconds));
            last = checks.next();
            checks.checked(last);
        }
    }
}
