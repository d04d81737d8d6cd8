//! The restart limit: when a lost server, or daemon, is started again. One rule for a session's own server and for shared
//! ones; docs/SURVIVAL.md states it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// This many servers in a row may end before they answer anything; the next one starts only on request.
const FRUITLESS: u32 = 5;
/// Restarts count for the backoff this long.
const WITHIN: Duration = Duration::from_secs(60);
/// The second restart waits this long, and each further one twice as long. The first does not wait.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait after a server that had answered: an app should not notice more than that.
const LONGEST_AFTER_WORK: Duration = Duration::from_millis(500);
/// The longest wait after a server that had not: it is broken, and somebody has to mend it.
const LONGEST: Duration = Duration::from_secs(10);

/// Recent restarts, and what follows from them.
#[derive(Debug, Default)]
pub struct RestartLimit {
    restarts: VecDeque<Moment>,
    /// How many servers in a row ended before they answered anything.
    fruitless: u32,
    not_before: Option<Moment>,
}

impl RestartLimit {
    /// A server was lost; `answered` if it had answered anything since its start. Returns when the next one starts.
    /// `None`: it starts only on request, and not before [`retry_at`](Self::retry_at).
    pub fn lost(&mut self, now: Moment, answered: bool) -> Option<Moment> {
        let is_old = |start: &Moment| now - *start >= WITHIN;
        while self.restarts.front().is_some_and(is_old) {
            self.restarts.pop_front();
        }
        self.fruitless = match answered {
            true => 0,
            false => self.fruitless.saturating_add(1),
        };
        let earlier = self.restarts.len();
        let after_work = backoff(earlier).min(LONGEST_AFTER_WORK);
        // Servers that worked before say nothing against the one that failed now: only failures in a row do.
        let failed_before = self.fruitless.saturating_sub(1) as usize;
        let after_failures = backoff(earlier.min(failed_before)).min(LONGEST);
        let wait = after_work.max(after_failures);
        self.restarts.push_back(now + wait);
        self.not_before = Some(now + wait);
        // As many as matter for the longest wait.
        if self.restarts.len() > 16 {
            self.restarts.pop_front();
        }
        (self.fruitless <= FRUITLESS).then_some(now + wait)
    }

    /// Before this, not even a request starts a server.
    pub fn retry_at(&self) -> Option<Moment> {
        self.not_before
    }

    /// When a request that comes now has a server started.
    pub fn next_attempt(&self, now: Moment) -> Moment {
        self.not_before.map_or(now, |at| at.max(now))
    }

    /// Whether nothing of it counts any more.
    pub fn is_forgotten(&self, now: Moment) -> bool {
        let is_old = |start: &Moment| now - *start >= WITHIN;
        self.restarts.iter().all(is_old)
    }
}

/// How long the next start waits after so many before it.
fn backoff(earlier: usize) -> Duration {
    match earlier {
        0 => Duration::ZERO,
        _ => FIRST_WAIT * (1 << (earlier - 1).min(10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(answered: bool, losses: usize) -> (Vec<u128>, RestartLimit) {
        let mut limit = RestartLimit::default();
        let now = Moment::START;
        let lost = (0..losses).map_while(|_| limit.lost(now, answered));
        let waits = lost.map(|at| (at - now).as_millis()).collect();
        (waits, limit)
    }

    #[test]
    fn a_server_that_had_answered_is_started_again_within_half_a_second_however_often() {
        let (waits, _) = waits(true, 57);
        assert_eq!(waits[..5], [0, 100, 200, 400, 500]);
        assert_eq!(waits.len(), 57);
        assert!(waits[5..].iter().all(|wait| *wait == 500));
    }

    #[test]
    fn after_five_that_never_answered_only_a_request_starts_another_and_not_before_its_time() {
        let (waits, mut limit) = waits(false, 99);
        assert_eq!(waits, [0, 100, 200, 400, 800]);
        let mut now = Moment::START;
        assert!(limit.retry_at().is_some_and(|at| at > now));
        assert_eq!(Some(limit.next_attempt(now)), limit.retry_at());
        for _ in 0..20 {
            now = limit.next_attempt(now);
            assert_eq!(limit.lost(now, false), None);
        }
        assert!(limit.next_attempt(now) - now <= LONGEST);
        // One that works again has the short waits.
        let next = limit.lost(now, true).expect("it starts by itself");
        assert!(next - now <= LONGEST_AFTER_WORK);
    }

    #[test]
    fn only_failures_in_a_row_make_the_wait_long() {
        let (_, mut limit) = waits(true, 57);
        let now = Moment::START;
        let failures = (0..6).map_while(|_| limit.lost(now, false));
        let waits: Vec<u128> = failures.map(|at| (at - now).as_millis()).collect();
        assert_eq!(waits, [500, 500, 500, 500, 800]);
        assert_eq!(limit.next_attempt(now) - now, Duration::from_millis(1600));
    }

    #[test]
    fn losses_count_for_a_minute() {
        let (_, mut limit) = waits(true, 5);
        let later = Moment::START + WITHIN + LONGEST;
        assert!(limit.is_forgotten(later));
        assert_eq!(limit.lost(later, true), Some(later));
    }
}
