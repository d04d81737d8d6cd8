//! Memory and requests over time: what the sparklines show.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::listing::Entry;
use crate::ps::words;

/// So many looks are remembered.
const KEPT: usize = 120;

/// What was seen of one entry.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// In bytes.
    pub(super) memory: VecDeque<u64>,
    /// Requests per second, in tenths.
    pub(super) rate: VecDeque<u64>,
    counted: Option<(Instant, BTreeMap<u32, u64>)>,
}

impl Past {
    fn saw(&mut self, entry: &Entry, at: Instant) {
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

/// Of everyone who runs, by key.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<String, Past>);

impl History {
    pub(super) fn saw(&mut self, entries: &[Entry], at: Instant) {
        for entry in entries {
            self.0.entry(entry.key.clone()).or_default().saw(entry, at);
        }
        let runs = |key: &String| entries.iter().any(|entry| entry.key == *key);
        self.0.retain(|key, _| runs(key));
    }

    pub(super) fn of(&self, key: &str) -> Option<&Past> {
        self.0.get(key)
    }

    /// The last rate, in tenths per second.
    pub(super) fn rate(&self, key: &str) -> u64 {
        let past = self.of(key);
        past.and_then(|past| past.rate.back()).copied().unwrap_or(0)
    }
}

/// Tenths of requests per second. A server that is new began at nothing; one that is gone is asked nothing.
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
    if into.len() == KEPT {
        into.pop_front();
    }
    into.push_back(value);
}
