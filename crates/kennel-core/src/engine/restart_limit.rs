//! The restart limit: when a lost server or daemon is started again. One rule for dedicated and shared servers; see
//! docs/SURVIVAL.md.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// Maximum number of servers in a row that exit before their first response. After that, the next one starts only on
/// request.
const MAX_UNANSWERED: u32 = 5;
/// How long a restart counts for the backoff.
const BACKOFF_WINDOW: Duration = Duration::from_secs(60);
/// Backoff before the second restart; it doubles with each further one. The first restart does not wait.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Maximum backoff after a server that had answered: an app should not notice more.
const MAX_BACKOFF_AFTER_ANSWER: Duration = Duration::from_millis(500);
/// Maximum backoff after a server that had not answered: it is broken until a person fixes it.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Recent restarts, and when the next one is allowed.
#[derive(Debug, Default)]
pub struct RestartLimit {
    restarts: VecDeque<Moment>,
    /// Number of servers in a row that exited before their first response.
    fruitless: u32,
    not_before: Option<Moment>,
}

impl RestartLimit {
    /// Records a lost server; `answered`: it had answered a request. Returns when the next one starts. `None`: it
    /// starts only on request, and not before [`retry_at`](Self::retry_at).
    pub fn record_loss(&mut self, now: Moment, answered: bool) -> Option<Moment> {
        let is_old = |start: &Moment| now - *start >= BACKOFF_WINDOW;
        while self.restarts.front().is_some_and(is_old) {
            self.restarts.pop_front();
        }
        self.fruitless = match answered {
            true => 0,
            false => self.fruitless.saturating_add(1),
        };
        let earlier = self.restarts.len();
        let after_work = backoff(earlier).min(MAX_BACKOFF_AFTER_ANSWER);
        // Earlier servers that answered say nothing against this one: only failures in a row count.
        let failed_before = self.fruitless.saturating_sub(1) as usize;
        let after_failures = backoff(earlier.min(failed_before)).min(MAX_BACKOFF);
        let wait = after_work.max(after_failures);
        self.restarts.push_back(now + wait);
        self.not_before = Some(now + wait);
        // More do not change the backoff.
        if self.restarts.len() > 16 {
            self.restarts.pop_front();
        }
        (self.fruitless <= MAX_UNANSWERED).then_some(now + wait)
    }

    /// The time before which not even a request starts a server.
    pub fn retry_at(&self) -> Option<Moment> {
        self.not_before
    }

    /// When a request that arrives now starts a server.
    pub fn next_attempt(&self, now: Moment) -> Moment {
        self.not_before.map_or(now, |at| at.max(now))
    }

    /// Whether no restart counts any more.
    pub fn is_forgotten(&self, now: Moment) -> bool {
        let is_old = |start: &Moment| now - *start >= BACKOFF_WINDOW;
        self.restarts.iter().all(is_old)
    }
}

/// The backoff after this number of restarts.
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
        let lost = (0..losses).map_while(|_| limit.record_loss(now, answered));
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
            assert_eq!(limit.record_loss(now, false), None);
        }
        assert!(limit.next_attempt(now) - now <= MAX_BACKOFF);
        // One that works again has the short waits.
        let next = limit.record_loss(now, true).expect("it starts by itself");
        assert!(next - now <= MAX_BACKOFF_AFTER_ANSWER);
    }

    #[test]
    fn only_failures_in_a_row_make_the_wait_long() {
        let (_, mut limit) = waits(true, 57);
        let now = Moment::START;
        let failures = (0..6).map_while(|_| limit.record_loss(now, false));
        let waits: Vec<u128> = failures.map(|at| (at - now).as_millis()).collect();
        assert_eq!(waits, [500, 500, 500, 500, 800]);
        assert_eq!(limit.next_attempt(now) - now, Duration::from_millis(1600));
    }

    #[test]
    fn losses_count_for_a_minute() {
        let (_, mut limit) = waits(true, 5);
        let later = Moment::START + BACKOFF_WINDOW + MAX_BACKOFF;
        assert!(limit.is_forgotten(later));
        assert_eq!(limit.record_loss(later, true), Some(later));
    }
}
