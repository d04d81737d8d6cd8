//! Times the silence of a server while a request is pending.
//!
//! A silent server may be stopped (SIGSTOP, or a debugger): it is checked 10 s after it last sent something, then 20 s,
//! 40 s and so on later, at most every 5 min. The kernel reports a stop only to the parent, so there is no event to wait
//! for (rule 10).
//!
//! If the first process of a server ended while another process of its tree holds its stdin and stdout, that one may be
//! the real server, behind a launcher that ended, or a helper that inherited stdio. Only the helper never answers, and
//! its stdout stays open: after a time limit, the server counts as lost.

use std::time::Duration;

use crate::session::ServerExit;
use crate::time::Moment;

/// Silence before a timer for the first check is set. Most responses come earlier, and cost no timer.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(1);
/// Silence before the first check.
const FIRST_CHECK: Duration = Duration::from_secs(10);
/// Maximum time between two checks.
const MAX_DISTANCE: Duration = Duration::from_secs(300);

/// Maximum silence after the first process crashed.
const LIMIT_AFTER_CRASH: Duration = Duration::from_secs(10);
/// Maximum silence after the first process exited with code 0: it may have been a launcher that left the server in the
/// background. Longer than apps wait for a response.
const LIMIT_AFTER_SUCCESS: Duration = Duration::from_secs(300);

/// The silence of one server.
#[derive(Debug, Default)]
pub(super) struct SilenceTimer {
    timer: Timer,
    /// Whether the server has sent something since the timer was set.
    has_output: bool,
    /// The stopped process that was reported: each stop is reported once.
    reported: Option<u32>,
    /// When the server counts as lost. `None` while its first process runs.
    limit: Option<Duration>,
}

/// A response within a second costs no timer: the timer of an earlier request fires and finds nothing to do. A longer
/// timer is cancelled when no request is pending.
#[derive(Debug, Default)]
enum Timer {
    #[default]
    Off,
    /// Whether the server is still silent [`FIRST_CHECK_DELAY`] later.
    Settling { since: Moment },
    /// Silent since this time. The next check, and the time since the last.
    Checks {
        since: Moment,
        next: Moment,
        distance: Duration,
    },
}

/// An action that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DueAction {
    Nothing,
    /// Check whether a process of the server is stopped.
    CheckStopped,
    /// The server counts as lost, though its stdout is open.
    Lost,
    /// A timer of several seconds was cancelled.
    TimerCancelled,
}

impl SilenceTimer {
    /// Records output of the server.
    pub(super) fn handle_output(&mut self) {
        self.has_output = true;
    }

    /// Records the exit of the first process. The silence of the others counts from the next [`advance`](Self::advance).
    pub(super) fn handle_first_process_exit(&mut self, exit: ServerExit) {
        self.timer = Timer::Off;
        self.limit = Some(match exit {
            ServerExit::Code(0) => LIMIT_AFTER_SUCCESS,
            _ => LIMIT_AFTER_CRASH,
        });
    }

    /// Whether a timer of several seconds is set.
    pub(super) fn has_long_timer(&self) -> bool {
        matches!(self.timer, Timer::Checks { .. })
    }

    pub(super) fn next_timeout(&self) -> Option<Moment> {
        match &self.timer {
            Timer::Off => None,
            Timer::Settling { since } => Some(*since + FIRST_CHECK_DELAY),
            Timer::Checks { since, next, .. } => Some(match self.limit {
                Some(limit) => (*since + limit).min(*next),
                None => *next,
            }),
        }
    }

    /// Sets or clears the timer; `pending`: a request waits for the server.
    pub(super) fn advance(&mut self, pending: bool, now: Moment) -> DueAction {
        match &self.timer {
            Timer::Off if !pending => {}
            Timer::Off => self.begin(now),
            Timer::Settling { .. } if !pending => self.timer = Timer::Off,
            Timer::Settling { since } if now >= *since + FIRST_CHECK_DELAY => match self.has_output
            {
                true => self.begin(now),
                false => {
                    let since = *since;
                    self.timer = Timer::Checks {
                        since,
                        next: since + FIRST_CHECK,
                        distance: FIRST_CHECK,
                    };
                    return self.advance(pending, now);
                }
            },
            Timer::Settling { .. } => {}
            Timer::Checks { .. } if !pending => {
                self.timer = Timer::Off;
                return DueAction::TimerCancelled;
            }
            Timer::Checks { .. } if self.has_output => {
                self.reported = None;
                self.begin(now);
                return DueAction::TimerCancelled;
            }
            Timer::Checks { since, .. } if self.limit.is_some_and(|it| now >= *since + it) => {
                *self = SilenceTimer::default();
                return DueAction::Lost;
            }
            Timer::Checks { next, .. } if now >= *next => return DueAction::CheckStopped,
            Timer::Checks { .. } => {}
        }
        DueAction::Nothing
    }

    /// Takes the result of a check: the stopped process, if any. Returns whether to report it.
    pub(super) fn handle_check(&mut self, stopped: Option<u32>, now: Moment) -> bool {
        if let Timer::Checks { next, distance, .. } = &mut self.timer {
            *distance = MAX_DISTANCE.min(*distance * 2);
            *next = now + *distance;
        }
        let is_new = self.reported != stopped;
        self.reported = stopped;
        is_new && stopped.is_some()
    }

    fn begin(&mut self, since: Moment) {
        self.has_output = false;
        self.timer = Timer::Settling { since };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_timer_is_set_only_while_a_request_is_pending() {
        let mut silence = SilenceTimer::default();
        assert_eq!(silence.advance(false, Moment::START), DueAction::Nothing);
        assert_eq!(silence.next_timeout(), None);
        assert_eq!(silence.advance(true, Moment::START), DueAction::Nothing);
        assert_eq!(
            silence.next_timeout(),
            Some(Moment::START + FIRST_CHECK_DELAY)
        );
        assert_eq!(silence.advance(false, Moment::START), DueAction::Nothing);
        assert_eq!(silence.next_timeout(), None);
    }

    #[test]
    fn a_server_that_sends_output_is_not_checked() {
        let mut silence = SilenceTimer::default();
        let _ = silence.advance(true, Moment::START);
        silence.handle_output();
        let later = Moment::START + SECOND;
        assert_eq!(silence.advance(true, later), DueAction::Nothing);
        assert_eq!(silence.next_timeout(), Some(later + FIRST_CHECK_DELAY));
    }

    #[test]
    fn a_silent_server_is_checked_10_s_after_the_request_and_each_stop_is_reported_once() {
        let mut silence = SilenceTimer::default();
        let _ = silence.advance(true, Moment::START);
        let mut now = Moment::START + SECOND;
        assert_eq!(silence.advance(true, now), DueAction::Nothing);
        now = Moment::START + 10 * SECOND;
        assert_eq!(silence.next_timeout(), Some(now));
        assert_eq!(silence.advance(true, now), DueAction::CheckStopped);
        assert!(silence.handle_check(Some(7), now));
        now = now + 20 * SECOND;
        assert_eq!(silence.advance(true, now), DueAction::CheckStopped);
        assert!(!silence.handle_check(Some(7), now));
        // It runs again: another stop is reported.
        silence.handle_output();
        assert_eq!(silence.advance(true, now), DueAction::TimerCancelled);
        let _ = silence.advance(true, now + SECOND);
        let later = now + 10 * SECOND;
        assert_eq!(silence.advance(true, later), DueAction::CheckStopped);
        assert!(silence.handle_check(Some(7), later));
    }

    #[test]
    fn checks_come_after_10_s_and_then_at_doubling_distance_up_to_5_minutes() {
        let mut silence = SilenceTimer::default();
        let _ = silence.advance(true, Moment::START);
        let _ = silence.advance(true, Moment::START + SECOND);
        let mut last = Moment::START;
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            let next = silence.next_timeout().expect("a request is pending");
            assert_eq!(next - last, Duration::from_secs(seconds));
            assert_eq!(silence.advance(true, next), DueAction::CheckStopped);
            silence.handle_check(None, next);
            last = next;
        }
    }

    #[test]
    fn survivors_that_are_silent_with_a_request_pending_are_lost_after_10_s() {
        let mut silence = SilenceTimer::default();
        silence.handle_first_process_exit(ServerExit::Signal(11));
        let mut now = Moment::START;
        assert_eq!(silence.advance(true, now), DueAction::Nothing);
        now = now + 9 * SECOND;
        assert_eq!(silence.advance(true, now), DueAction::Nothing);
        // Output starts the time again.
        silence.handle_output();
        assert_eq!(silence.advance(true, now), DueAction::TimerCancelled);
        assert_eq!(silence.advance(true, now + SECOND), DueAction::Nothing);
        assert_eq!(silence.next_timeout(), Some(now + LIMIT_AFTER_CRASH));
        assert_eq!(
            silence.advance(true, now + LIMIT_AFTER_CRASH),
            DueAction::Lost
        );
        let later = now + LIMIT_AFTER_CRASH + SECOND;
        assert_eq!(silence.advance(true, later), DueAction::Nothing);
        assert_eq!(silence.advance(false, later), DueAction::Nothing);
        assert_eq!(silence.next_timeout(), None);
    }

    #[test]
    fn survivors_of_a_first_process_that_exited_with_0_are_lost_after_5_min() {
        let mut silence = SilenceTimer::default();
        let _ = silence.advance(true, Moment::START);
        let _ = silence.advance(true, Moment::START + 100 * SECOND);
        silence.handle_first_process_exit(ServerExit::Code(0));
        let exit = Moment::START + 200 * SECOND;
        let lost = std::iter::successors(Some(exit), |now| Some(*now + SECOND))
            .find(|now| silence.advance(true, *now) == DueAction::Lost);
        assert_eq!(lost, Some(exit + LIMIT_AFTER_SUCCESS));
    }

    #[test]
    fn survivors_without_a_pending_request_are_not_timed() {
        let mut silence = SilenceTimer::default();
        silence.handle_first_process_exit(ServerExit::Code(3));
        let later = Moment::START + 3600 * SECOND;
        assert_eq!(silence.advance(false, later), DueAction::Nothing);
        assert_eq!(silence.next_timeout(), None);
    }
}
