//! Requests that the session itself sends to the upstream. The app does not notice them.

use std::collections::BTreeMap;

use crate::message::Key;

/// A request of the session itself.
#[derive(Debug)]
pub(super) struct OwnRequest {
    pub(super) why: OwnRequestKind,
    /// Its progress token, if any.
    pub(super) token: Option<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnRequestKind {
    /// Restores the state of an earlier upstream.
    Restore,

    /// Checks whether the tools have changed.
    CompareTools,
}

#[derive(Debug, Default)]
pub(super) struct OwnRequests {
    open: BTreeMap<Key, OwnRequest>,
    last_assigned: u64,
}

impl OwnRequests {
    /// Stores a request and returns its id, which no request of the app in flight has.
    pub(super) fn begin(&mut self, request: OwnRequest, is_taken: impl Fn(&Key) -> bool) -> String {
        loop {
            self.last_assigned += 1;
            let name = format!("kennel-{}", self.last_assigned);
            let key = Key::Text(name.as_str().into());
            if !is_taken(&key) {
                self.open.insert(key, request);
                return format!("\"{name}\"");
            }
        }
    }

    /// Whether this id is in use.
    pub(super) fn is_open(&self, key: &Key) -> bool {
        self.open.contains_key(key)
    }

    /// Removes the request that this response answers.
    pub(super) fn end(&mut self, key: &Key) -> Option<OwnRequest> {
        self.open.remove(key)
    }

    /// Removes all requests, because the upstream is lost.
    pub(super) fn upstream_lost(&mut self) -> impl Iterator<Item = OwnRequest> {
        std::mem::take(&mut self.open).into_values()
    }
}
