//! How often a server may be started again (lesson 36: without a budget, that is a fork bomb).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many starts after a loss...
const MOST: usize = 5;
/// ...within this time.
const WITHIN: Duration = Duration::from_secs(60);
/// The second start waits this long, and each further one twice as long. The first does not wait.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The restarts of late.
#[derive(Debug, Default)]
pub(crate) struct Budget(VecDeque<Instant>);

impl Budget {
    /// When the server may be started again, or `None` if that was too often; counts as a start.
    pub(crate) fn spend(&mut self, now: Instant) -> Option<Instant> {
        while self.0.front().is_some_and(|&start| now - start >= WITHIN) {
            self.0.pop_front();
        }
        let wait = match self.0.len() {
            0 => Duration::ZERO,
            earlier if earlier < MOST => FIRST_WAIT * (1 << (earlier - 1)),
            _ => return None,
        };
        self.0.push_back(now + wait);
        Some(now + wait)
    }

    /// Whether nothing of it counts any more.
    pub(crate) fn is_forgotten(&self, now: Instant) -> bool {
        self.0
            .iter()
            .all(|&start| now.saturating_duration_since(start) >= WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_restarts_in_a_minute_each_later_than_the_last_and_then_none() {
        let mut budget = Budget::default();
        let start = Instant::now();
        let waits: Vec<_> = (0..5)
            .map(|_| budget.spend(start).unwrap() - start)
            .collect();
        let millis: Vec<_> = waits.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [0, 100, 200, 400, 800]);
        assert_eq!(budget.spend(start), None);
        assert!(budget.spend(start + WITHIN).is_some());
    }
}
