//! When the servers of a daemon start again after a loss.

use std::collections::BTreeMap;

use crate::engine::RestartLimit;
use crate::mux::Class;
use crate::time::Moment;

/// What there is one server of at a time: two of one class might share a store. A private one is its session's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotKey {
    class: Class,
    session: Option<String>,
}

impl SlotKey {
    /// The slot of a class, and of the session that opened it.
    pub(super) fn new(class: &Class, session: &str) -> SlotKey {
        SlotKey {
            class: class.clone(),
            session: (!class.is_shared()).then(|| session.to_owned()),
        }
    }
}

/// The restart limit of each slot that lost a server within the last minute.
#[derive(Debug, Default)]
pub(super) struct Restarts(BTreeMap<SlotKey, RestartLimit>);

impl Restarts {
    /// When a server may be started that is wanted now.
    pub(super) fn start_at(&self, slot: &SlotKey, now: Moment) -> Moment {
        let limit = self.0.get(slot);
        limit.and_then(RestartLimit::retry_at).unwrap_or(now)
    }

    /// A server was lost. `Err`: too many ended before they answered; the next one starts on request, and then at the
    /// earliest.
    pub(super) fn lost(
        &mut self,
        slot: SlotKey,
        answered: bool,
        now: Moment,
    ) -> Result<Moment, Moment> {
        self.0.retain(|_, limit| !limit.is_forgotten(now));
        let limit = self.0.entry(slot).or_default();
        let next_start = limit.lost(now, answered);
        next_start.ok_or(limit.next_attempt(now))
    }
}
