//! The log level and subscriptions that the app set at the server (legacy). Each later upstream gets the same requests,
//! with other ids.
//!
//! The modern era has no such state: every request contains its log level, and a subscription is a request that stays
//! in flight.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct ServerState {
    level: Option<SetupRequest>,
    /// Subscriptions by URI.
    subscriptions: BTreeMap<String, SetupRequest>,
    bytes: usize,
}

/// A request that succeeded, as the app sent it.
#[derive(Debug)]
struct SetupRequest {
    order: u64,
    line: Vec<u8>,
}

impl ServerState {
    /// Maximum bytes that are stored. A subscription beyond it ends with its server.
    const LIMIT: usize = 1 << 20;

    /// Stores the request that set the log level, unless a later one did.
    pub(super) fn level_set(&mut self, order: u64, line: Vec<u8>) {
        if self
            .level
            .as_ref()
            .is_none_or(|before| before.order < order)
        {
            self.level = Some(SetupRequest { order, line });
        }
    }

    pub(super) fn subscribed(&mut self, uri: String, order: u64, line: Vec<u8>) {
        self.unsubscribed(&uri);
        let length = uri.len() + line.len();
        if self.bytes + length <= ServerState::LIMIT {
            self.bytes += length;
            self.subscriptions.insert(uri, SetupRequest { order, line });
        }
    }

    pub(super) fn unsubscribed(&mut self, uri: &str) {
        if let Some(before) = self.subscriptions.remove(uri) {
            self.bytes -= uri.len() + before.line.len();
        }
    }

    /// The requests to send again: the level, then subscriptions in order.
    pub(super) fn lines(&self) -> Vec<Vec<u8>> {
        let mut subscriptions: Vec<&SetupRequest> = self.subscriptions.values().collect();
        subscriptions.sort_by_key(|request| request.order);
        let all = self.level.iter().chain(subscriptions);
        all.map(|request| request.line.clone()).collect()
    }
}
