//! All servers of the daemon, by the session they serve.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

use super::client::Link;

/// The servers, by their warden's pid: from the start until nothing is left of the tree.
#[derive(Debug, Default)]
pub(super) struct Pool {
    running: RefCell<BTreeMap<u32, Entry>>,
    emptied: Notify,
}

/// One server.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) session: String,
    /// The server itself, once it runs.
    pub(super) pid: Option<u32>,
    /// In seconds since 1970.
    pub(super) since: u64,
    /// How long its ladder takes at most.
    pub(super) ladder: Duration,
    pub(super) link: Rc<Link>,
    /// What its client had asked others before it.
    pub(super) asked_before: u64,
}

impl Pool {
    pub(super) fn started(&self, warden: u32, entry: Entry) {
        self.running.borrow_mut().insert(warden, entry);
    }

    pub(super) fn runs_as(&self, warden: u32, pid: u32) {
        if let Some(entry) = self.running.borrow_mut().get_mut(&warden) {
            entry.pid = Some(pid);
        }
    }

    /// Nothing is left of it, and its warden is reaped.
    pub(super) fn ended(&self, warden: u32) {
        self.running.borrow_mut().remove(&warden);
        self.emptied.notify_waiters();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.borrow().is_empty()
    }

    /// The pids of all wardens: our only children.
    pub(super) fn wardens(&self) -> Vec<u32> {
        self.running.borrow().keys().copied().collect()
    }

    /// The longest of all ladders.
    pub(super) fn ladder(&self) -> Duration {
        let running = self.running.borrow();
        running
            .values()
            .map(|entry| entry.ladder)
            .max()
            .unwrap_or_default()
    }

    pub(super) fn each<T>(&self, look: impl FnMut(&Entry) -> T) -> Vec<T> {
        self.running.borrow().values().map(look).collect()
    }

    /// Waits until the session has no server any more: two of one session might share a store.
    pub(super) async fn without(&self, session: &str) {
        let has_one = || {
            let running = self.running.borrow();
            running.values().any(|entry| entry.session == session)
        };
        while has_one() {
            self.emptied.notified().await;
        }
    }
}
