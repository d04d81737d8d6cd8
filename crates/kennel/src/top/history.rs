//! Memory and requests over time, for the sparklines.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::listing::Entry;
use crate::ps::words;

/// Maximum number of samples that are kept.
const MAX_SAMPLES: usize = 120;

/// The samples of one entry.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// In bytes.
    pub(super) memory: VecDeque<u64>,
    /// Requests per second, in tenths.
    pub(super) rate: VecDeque<u64>,
    counted: Option<(Instant, BTreeMap<u32, u64>)>,
}

impl Samples {
    fn update(&mut self, entry: &Entry, at: Instant) {
        push(&mut self.memory, words::memory(entry));
        let servers = entry.servers.iter();
        let counts = servers.map(|server| (server.state.pid, server.state.requests));
        let counts: BTreeMap<u32, u64> = counts.collect();
        if let Some((before, counted)) = &self.counted {
            push(
                &mut self.rate,
                rate(counted, &counts, at.duration_since(*before)),
            );
        }
        self.counted = Some((at, counts));
    }
}

/// The samples of all entries, by key.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<String, Samples>);

impl History {
    pub(super) fn update(&mut self, entries: &[Entry], at: Instant) {
        for entry in entries {
            self.0
                .entry(entry.key.clone())
                .or_default()
                .update(entry, at);
        }
        let runs = |key: &String| entries.iter().any(|entry| entry.key == *key);
        self.0.retain(|key, _| runs(key));
    }

    pub(super) fn of(&self, key: &str) -> Option<&Samples> {
        self.0.get(key)
    }

    /// The latest rate, in tenths per second.
    pub(super) fn rate(&self, key: &str) -> u64 {
        let samples = self.of(key);
        samples
            .and_then(|samples| samples.rate.back())
            .copied()
            .unwrap_or(0)
    }
}

/// Tenths of requests per second. A new server starts at zero; an ended one gets no requests.
pub(super) fn rate(before: &BTreeMap<u32, u64>, now: &BTreeMap<u32, u64>, passed: Duration) -> u64 {
    let since = |(pid, count): (&u32, &u64)| {
        let before = before.get(pid).copied().unwrap_or(0);
        count.saturating_sub(before)
    };
    let asked: u64 = now.iter().map(since).sum();
    let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
    asked.saturating_mul(10_000) / millis
}

fn push(into: &mut VecDeque<u64>, value: u64) {
    if into.len() == MAX_SAMPLES {
        into.pop_front();
    }
    into.push_back(value);
}
