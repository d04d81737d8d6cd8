//! How long the server takes: from a client's request to its answer.

use std::time::Duration;

use crate::time::Moment;

use super::calls::{Call, Kind};

/// The last answers only, so that it tells of now: what was slow an hour ago is of no more interest.
const REMEMBERED: usize = 64;

/// In microseconds, the oldest overwritten by the newest.
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
        // Of what lasts by its nature, or begins everything, the time says nothing about the rest.
        let Some(asked) = call.asked.filter(|_| !lasts) else {
            return;
        };
        let took = u32::try_from((now - asked).as_micros()).unwrap_or(u32::MAX);
        self.last[self.answers % REMEMBERED] = took;
        self.answers += 1;
    }

    /// What half of them took at most.
    pub(super) fn median(&self) -> Option<Duration> {
        let mut last = self.last[..self.answers.min(REMEMBERED)].to_vec();
        last.sort_unstable();
        let median = last.get(last.len().checked_sub(1)? / 2)?;
        Some(Duration::from_micros(u64::from(*median)))
    }
}
