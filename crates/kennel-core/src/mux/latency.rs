//! Response times of the server.

use std::time::Duration;

use crate::time::Moment;

use super::calls::{Call, Kind};

/// Number of response times that are kept.
const REMEMBERED: usize = 64;

/// The last response times in microseconds; the newest overwrites the oldest.
#[derive(Debug)]
pub(super) struct Latency {
    last: [u32; REMEMBERED],
    answers: usize,
}

impl Default for Latency {
    fn default() -> Latency {
        let last = [0; REMEMBERED];
        Latency { last, answers: 0 }
    }
}

impl Latency {
    pub(super) fn answered(&mut self, call: &Call, now: Moment) {
        let lasts = matches!(
            call.kind,
            Kind::Initialize | Kind::Listen | Kind::Task { .. }
        );
        // Handshakes, subscriptions and tasks say nothing about the time of an ordinary call.
        let Some(asked) = call.asked.filter(|_| !lasts) else {
            return;
        };
        let took = u32::try_from((now - asked).as_micros()).unwrap_or(u32::MAX);
        self.last[self.answers % REMEMBERED] = took;
        self.answers += 1;
    }

    /// The median of the stored times.
    pub(super) fn median(&self) -> Option<Duration> {
        let mut last = self.last[..self.answers.min(REMEMBERED)].to_vec();
        last.sort_unstable();
        let median = last.get(last.len().checked_sub(1)? / 2)?;
        Some(Duration::from_micros(u64::from(*median)))
    }
}
