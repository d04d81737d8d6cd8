//! When a daemon's lost servers start again.

use std::collections::BTreeMap;

use crate::engine::RestartLimit;
use crate::mux::Class;
use crate::time::Moment;

/// Identifies a server that must not run twice: two servers of one class might share a store. A private server belongs to
/// its session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotKey {
    class: Class,
    session: Option<String>,
}

impl SlotKey {
    /// The key of a class, or of a private server of a session.
    pub(super) fn new(class: &Class, session: &str) -> SlotKey {
        SlotKey {
            class: class.clone(),
            session: (!class.is_shared()).then(|| session.to_owned()),
        }
    }
}

/// The restart limit of each slot that lost a server within the last minute. It outlives the session of a private
/// server: a session that reconnects keeps its limit.
#[derive(Debug, Default)]
pub(super) struct Restarts(BTreeMap<SlotKey, RestartLimit>);

impl Restarts {
    /// When a server that is needed now may start.
    pub(super) fn start_at(&mut self, slot: &SlotKey, now: Moment) -> Moment {
        self.drop_old(now);
        let limit = self.0.get(slot);
        limit.and_then(RestartLimit::retry_at).unwrap_or(now)
    }

    /// Records a lost server, and returns when the next one starts. `Err`: too many exited before they answered; the
    /// next one starts on request, and not before this time.
    pub(super) fn record_loss(
        &mut self,
        slot: SlotKey,
        answered: bool,
        now: Moment,
    ) -> Result<Moment, Moment> {
        self.drop_old(now);
        let limit = self.0.entry(slot).or_default();
        let next_start = limit.record_loss(now, answered);
        next_start.ok_or(limit.next_attempt(now))
    }
    fn drop_old(&mut self, now: Moment) {
        self.0.retain(|_, limit| !limit.is_forgotten(now));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_session_that_comes_back_waits_and_one_that_does_not_is_dropped_after_a_minute() {
        let mut restarts = Restarts::default();
        let slot = |session: &str| SlotKey::new(&Class::private(), session);
        let now = Moment::START;
        let lost = (0..3).map(|_| restarts.record_loss(slot("first"), true, now));
        let next = lost.last().expect("three losses").expect("it starts again");
        assert!(next > now);
        assert_eq!(restarts.start_at(&slot("first"), now), next);
        assert_eq!(restarts.start_at(&slot("second"), now), now);
        let later = next + Duration::from_secs(60);
        assert_eq!(restarts.start_at(&slot("second"), later), later);
        assert!(restarts.0.is_empty(), "{restarts:?}");
    }
}
