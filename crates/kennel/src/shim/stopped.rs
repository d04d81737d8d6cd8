//! A server of the session's own that is stopped while a request is pending: it is reported on stderr, once.

use std::time::Instant;

use super::{Shim, Upstream};
use crate::stopped::{Checks, Reported, SETTLE};

/// Since when the server owes an answer and is silent, and what was reported.
#[derive(Debug, Default)]
pub(super) struct StoppedCheck {
    timer: Timer,
    /// The server has spoken since the timer was set.
    spoke: bool,
    reported: Reported,
}

/// What is waited for. A request that is answered soon costs no timer of its own: the one of an earlier request rings
/// within a second, and finds nothing to do. A timer for longer is turned off when nothing is pending.
#[derive(Debug, Default)]
enum Timer {
    #[default]
    Off,
    /// Whether the request is still pending a second later.
    Settling {
        since: Instant,
    },
    Checks(Checks),
}

impl StoppedCheck {
    pub(super) fn server_spoke(&mut self) {
        self.spoke = true;
    }

    /// When to look next.
    pub(super) fn next(&self) -> Option<Instant> {
        match &self.timer {
            Timer::Off => None,
            Timer::Settling { since } => Some(*since + SETTLE),
            Timer::Checks(checks) => Some(checks.next()),
        }
    }

    /// Sets the timer while a request is pending; whether a check is due.
    fn is_due(&mut self, pending: bool) -> bool {
        match &self.timer {
            _ if !pending => self.timer = Timer::Off,
            Timer::Off => self.begin(Instant::now()),
            Timer::Settling { since } => {
                let (since, now) = (*since, Instant::now());
                if now >= since + SETTLE {
                    match self.spoke {
                        true => self.begin(now),
                        false => self.timer = Timer::Checks(Checks::since(since)),
                    }
                }
            }
            Timer::Checks(_) if self.spoke => {
                self.reported.runs();
                self.begin(Instant::now());
            }
            Timer::Checks(checks) => return Instant::now() >= checks.next(),
        }
        false
    }

    fn begin(&mut self, since: Instant) {
        self.spoke = false;
        self.timer = Timer::Settling { since };
    }
}

impl Shim {
    /// Reports a server that is stopped, if it is time to look.
    pub(super) fn check_for_stop(&mut self) {
        let serves = matches!(&self.server, Some(upstream) if !upstream.lost);
        let pending = serves && self.session.owes();
        let was_long = matches!(self.stopped.timer, Timer::Checks(_));
        let due = self.stopped.is_due(pending);
        if was_long && !matches!(self.stopped.timer, Timer::Checks(_)) {
            self.turn_off_alarm();
        }
        let Some(Upstream { server, .. }) = self.server.as_ref().filter(|_| due) else {
            return;
        };
        // What cannot be looked at is not reported.
        let stopped = server.tree.stopped().unwrap_or_default();
        if let Some(words) = self.stopped.reported.news(stopped) {
            crate::warn(&words);
        }
        if let Timer::Checks(checks) = &mut self.stopped.timer {
            checks.checked(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_set_only_while_a_request_is_pending() {
        let mut check = StoppedCheck::default();
        assert!(!check.is_due(false));
        assert_eq!(check.next(), None);
        assert!(!check.is_due(true));
        assert!(check.next().is_some());
        assert!(!check.is_due(false));
        assert_eq!(check.next(), None);
    }

    #[test]
    fn a_server_that_speaks_is_not_checked() {
        let mut check = StoppedCheck::default();
        let begun = Instant::now() - SETTLE;
        check.begin(begun);
        check.server_spoke();
        assert!(!check.is_due(true));
        assert!(matches!(check.timer, Timer::Settling { since } if since > begun));
        check.timer = Timer::Checks(Checks::since(begun));
        check.server_spoke();
        assert!(!check.is_due(true));
        assert!(matches!(check.timer, Timer::Settling { .. }));
    }

    #[test]
    fn a_silent_server_is_checked_10_s_after_the_request() {
        let mut check = StoppedCheck::default();
        let begun = Instant::now() - SETTLE;
        check.begin(begun);
        assert!(!check.is_due(true));
        assert_eq!(check.next(), Some(Checks::since(begun).next()));
        let long_ago = Instant::now() - std::time::Duration::from_secs(11);
        check.timer = Timer::Checks(Checks::since(long_ago));
        assert!(check.is_due(true));
    }
}
