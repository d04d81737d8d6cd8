//! A session without an upstream that wants none for now: its server was stopped by a person, or hibernates. The
//! session stays, and the next request starts the server again.

use std::time::{Duration, Instant};

use kennel_core::session::{SERVER_RESTARTED, Unsent};

use super::{Shim, Upstream};

/// How long ago a session was last of use, where that matters.
#[derive(Debug)]
pub(super) struct Hibernation {
    after: Duration,
    used: Instant,
}

impl Hibernation {
    pub(super) fn after(after: Duration) -> Hibernation {
        Hibernation {
            after,
            used: Instant::now(),
        }
    }

    fn due(&self) -> Instant {
        self.used + self.after
    }
}

impl Shim {
    /// The app asked something, or was answered.
    pub(super) fn is_of_use(&mut self) {
        if let Some(hibernation) = &mut self.hibernation {
            hibernation.used = Instant::now();
        }
    }

    /// When its own server is to be put to rest, if nothing happens until then. A daemon decides that for its servers.
    pub(super) fn next_rest(&self) -> Option<Instant> {
        let serves = matches!(&self.server, Some(upstream) if !upstream.lost);
        let hibernation = self.hibernation.as_ref()?;
        (serves && self.session.is_quiet()).then(|| hibernation.due())
    }

    pub(super) fn rest_if_due(&mut self) {
        if self.next_rest().is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.put_down_own();
        self.rest(Unsent::Nothing);
    }

    /// Our own server ends, and is not lost: it costs no budget.
    pub(super) fn put_down_own(&mut self) {
        if let Some(Upstream { server, lost }) = &mut self.server {
            *lost = true;
            server.stdin = None;
            let _ = server.tree.stop();
        }
    }

    /// That is no crash, and costs no budget; what waits still wants an answer.
    pub(super) fn rest(&mut self, unsent: Unsent<'_>) {
        self.link = None;
        self.given_up = false;
        if self.for_now.is_none() {
            // It asked after the one that is gone now.
            self.election = None;
        }
        let busy = !self.session.is_quiet();
        self.session.upstream_lost(SERVER_RESTARTED, unsent);
        if self.session.app_is_done() && !self.session.owes() {
            return self.session.give_up("it was stopped", "");
        }
        self.resting = true;
        match busy {
            true => self.wake(),
            false => self.write_down_rest(),
        }
    }

    /// Somebody asks for something.
    pub(super) fn wake(&mut self) {
        if std::mem::take(&mut self.resting) {
            self.session.upstream_expected();
            self.next_start = Some(Instant::now());
            self.listed = None;
        }
    }

    /// For `kennel ps`. Nothing else depends on it.
    fn write_down_rest(&mut self) {
        match self.hibernation.is_some() {
            true => self.list_at_rest(),
            false => self.listed = None,
        }
    }
}
