//! What the app set up at the server and counts on: its log level and its subscriptions (legacy). Said again
//! to every later upstream, as the app said it but for the id.
//!
//! The modern era has no such state: its log level is in every request, and a subscription is a request that
//! stays in flight.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Standing {
    level: Option<Said>,
    /// By what is subscribed.
    subscriptions: BTreeMap<String, Said>,
    bytes: usize,
}

/// A request that succeeded, as the app sent it.
#[derive(Debug)]
struct Said {
    order: u64,
    line: Vec<u8>,
}

impl Standing {
    /// How much is remembered. What is past it stands as long as its server does.
    const LIMIT: usize = 1 << 20;

    /// The log level is what this request said, unless a later one has said another.
    pub(super) fn level_set(&mut self, order: u64, line: Vec<u8>) {
        if self
            .level
            .as_ref()
            .is_none_or(|before| before.order < order)
        {
            self.level = Some(Said { order, line });
        }
    }

    pub(super) fn subscribed(&mut self, uri: String, order: u64, line: Vec<u8>) {
        self.unsubscribed(&uri);
        let length = uri.len() + line.len();
        if self.bytes + length <= Standing::LIMIT {
            self.bytes += length;
            self.subscriptions.insert(uri, Said { order, line });
        }
    }

    pub(super) fn unsubscribed(&mut self, uri: &str) {
        if let Some(before) = self.subscriptions.remove(uri) {
            self.bytes -= uri.len() + before.line.len();
        }
    }

    /// What to say again: the level, then subscriptions in the order they were made.
    pub(super) fn lines(&self) -> Vec<Vec<u8>> {
        let mut subscriptions: Vec<&Said> = self.subscriptions.values().collect();
        subscriptions.sort_by_key(|said| said.order);
        let all = self.level.iter().chain(subscriptions);
        all.map(|said| said.line.clone()).collect()
    }
}
