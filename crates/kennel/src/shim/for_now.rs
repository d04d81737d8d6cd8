//! Solo for want of a daemon, and only as long as there is none: a session that goes on with a server of its own
//! looks for a daemon again, and comes back at a quiet moment. What its server holds (a store, a port), others need.

use std::time::{Duration, Instant};

use kennel_core::hello::Lost;
use kennel_core::session::{SERVER_RESTARTED, Unsent};

use super::link::Link;
use super::{Sharing, Shim};

/// When it looks for the first time; each further time comes after twice as long, up to [`LONGEST`]. There is no event
/// for "a daemon could be started now" (rule 10).
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// How to be a daemon's client again.
#[derive(Debug)]
pub(super) struct ForNow {
    sharing: Sharing,
    look_at: Instant,
    wait: Duration,
}

impl ForNow {
    fn new(sharing: Sharing) -> ForNow {
        ForNow {
            sharing,
            look_at: Instant::now() + FIRST,
            wait: FIRST,
        }
    }

    fn later(&mut self) {
        self.wait = LONGEST.min(self.wait * 2);
        self.look_at = Instant::now() + self.wait;
    }
}

impl Shim {
    /// Never worse than no Kennel: where no daemon can be had, the session has a server of its own.
    pub(super) fn go_solo(&mut self, why: &str) {
        if let Some(for_now) = &mut self.for_now {
            return for_now.later();
        }
        crate::warn(&format!(
            "no daemon, so this session has a server of its own: {why}"
        ));
        self.for_now = self.sharing.take().map(ForNow::new);
        self.why_solo = Some(why.to_owned());
        self.link = None;
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        self.start_own();
    }

    /// The daemon is there, but lacks what a server's start takes. It is left alone for long: whoever came back
    /// soon would put its own server down for nothing, again and again.
    pub(super) fn go_solo_for_long(&mut self, lost: &Lost) {
        // It may have been taken for stuck meanwhile: what comes of that is of no more interest.
        self.election = None;
        let unsent = Unsent::Told {
            ids: &lost.unsent,
            heard: lost.heard,
        };
        self.session.upstream_lost(&lost.reason, unsent);
        self.go_solo(&format!(
            "the daemon lacks what that takes: {}",
            lost.detail
        ));
        if let Some(for_now) = &mut self.for_now {
            for_now.wait = LONGEST;
            for_now.later();
        }
    }

    /// When to look for a daemon again. Not while somebody waits for an answer: that wakes us, too.
    pub(super) fn next_look_for_a_daemon(&self) -> Option<Instant> {
        let for_now = self.for_now.as_ref()?;
        let may_leave = self.election.is_none() && !self.resting && self.session.is_quiet();
        (may_leave && !self.session.app_is_done()).then_some(for_now.look_at)
    }

    pub(super) fn look_for_a_daemon_if_due(&mut self) {
        if self
            .next_look_for_a_daemon()
            .is_none_or(|at| Instant::now() < at)
        {
            return;
        }
        if let Some(for_now) = &self.for_now {
            let wanted = for_now.sharing.wanted(None);
            self.begin_election(wanted);
        }
    }

    /// There is one. Its server starts when nothing is left of ours: two writers on one store are worse than a
    /// late answer.
    pub(super) fn come_back(&mut self, link: Box<Link>) {
        let Some(mut for_now) = self.for_now.take() else {
            return;
        };
        if !self.session.is_quiet() || self.session.app_is_done() {
            for_now.later();
            self.for_now = Some(for_now);
            return;
        }
        crate::warn("a daemon is there again: this session shares its server");
        self.sharing = Some(for_now.sharing);
        self.why_solo = None;
        self.listed = None;
        self.next_start = None;
        self.resting = false;
        self.put_down_own();
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        self.coming_back = Some(link);
    }

    /// Nothing is left of our own server: the daemon's turn.
    pub(super) fn arrive(&mut self) {
        if self.server.is_none()
            && let Some(link) = self.coming_back.take()
        {
            self.link = Some(link);
            self.session.upstream_attached();
        }
    }
}
