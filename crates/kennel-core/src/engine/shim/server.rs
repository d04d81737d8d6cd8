//! The life of a server of the session's own: start, loss, hibernation, replacement.

use super::upstream::{Next, Upstream};
use super::{Action, Listing, Shim};
use crate::engine::survivors::Survivors;
use crate::session::{Ending, SERVER_RESTARTED, Unsent};
use crate::time::Moment;

impl Shim {
    /// Whether this is a moment at which a server whose files changed may be replaced: nobody waits for it.
    pub fn may_replace_server(&self) -> bool {
        self.has_server()
            && self.session.is_idle()
            && self.session.is_quiet()
            && !self.session.app_is_done()
    }

    pub(super) fn start_server(&mut self) {
        self.ending.server_started();
        self.survivors = Survivors::default();
        self.upstream = Upstream::Dedicated;
        self.actions.push_back(Action::StartServer);
        self.attach();
    }

    /// The server's first process ended, and its stdout is still open: a helper that it started may hold that.
    pub(super) fn server_exited(&mut self, ending: Ending, stdin_closed: bool) {
        self.ending.server_exited(ending);
        if stdin_closed && self.has_server() && !self.session.app_is_done() {
            self.actions.push_back(Action::LoseServer);
        }
        self.survivors.first_process_ended(ending);
    }

    pub(super) fn server_not_started(&mut self, why: &str) {
        let why = format!("the server cannot be started: {why}");
        self.give_up(&why, "");
    }

    /// The session has lost its server. The next one starts when nothing is left of its process tree: two writers on one
    /// store are worse than a late answer.
    pub(super) fn server_lost(
        &mut self,
        unread: usize,
        ending: Option<Ending>,
        stderr: &str,
        now: Moment,
    ) {
        if !self.has_server() {
            return;
        }
        self.upstream = Upstream::Draining(Next::GiveUp);
        self.session.upstream_ended(ending);
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::LastBytes(unread));
        if self.session.app_is_done() {
            return self.give_up("the server ended", stderr);
        }
        // One that exits by itself before anything was ever answered says that it cannot start. A signal says nothing of it.
        let killed = matches!(ending, Some(Ending::Signal(_)));
        match self.limit.lost(now, self.upstream_answered) {
            Some(at) if self.answered_once || killed => {
                self.upstream = Upstream::Draining(Next::Start { at });
            }
            _ => {
                let why = match self.answered_once || killed {
                    true => "the server ended too often before it answered",
                    false => "the server ended before it answered",
                };
                self.give_up_until_retry(why, stderr, now);
            }
        }
    }

    /// Nothing is left of the server.
    pub(super) fn server_tree_empty(&mut self) {
        let Upstream::Draining(next) = self.upstream else {
            return;
        };
        self.upstream = match next {
            Next::Start { at } => {
                self.actions.push_back(Action::List(Listing::Restarted));
                Upstream::Waiting { until: at }
            }
            Next::Attach => {
                // It was stopped: how it ended is not the session's exit code.
                self.ending.server_started();
                self.actions.push_back(Action::UseConnection);
                self.attach();
                Upstream::Attached(Default::default())
            }
            Next::Hibernate => {
                self.ending.server_started();
                Upstream::Hibernating
            }
            Next::GiveUp => Upstream::GaveUp,
        };
    }

    /// The server's files changed, and nobody waits for it: another one takes its place unnoticed.
    pub(super) fn replace_server(&mut self, now: Moment) {
        if self.may_replace_server() {
            self.stop_server();
            self.session
                .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
            self.upstream = Upstream::Draining(Next::Start { at: now });
        }
    }

    /// Stops the server. That is no loss, and does not count for the restart limit.
    pub(super) fn stop_server(&mut self) {
        if self.has_server() {
            self.actions.push_back(Action::StopServer);
            self.upstream = Upstream::Draining(Next::GiveUp);
        }
    }

    /// When the session's own server hibernates, if nothing happens until then. A daemon decides that for its servers.
    pub(super) fn hibernate_at(&self) -> Option<Moment> {
        let after = self.settings.hibernate?;
        (self.has_server() && self.session.is_quiet()).then(|| self.last_used + after)
    }

    /// The server was stopped for good reason, and starts again with the next request. `unsent`: what of the pending
    /// requests it never read.
    pub(super) fn hibernate(&mut self, unsent: Unsent<'_>, now: Moment) {
        let busy = !self.session.is_quiet();
        self.session.upstream_lost(SERVER_RESTARTED, unsent);
        self.abandon_return(now);
        if self.session.app_is_done() && !self.session.owes() {
            return self.give_up("it was stopped", "");
        }
        self.upstream = match self.upstream {
            Upstream::Draining(_) => Upstream::Draining(Next::Hibernate),
            _ => Upstream::Hibernating,
        };
        if busy {
            return self.wake(now);
        }
        let listing = match self.settings.hibernate {
            Some(_) => Listing::Hibernating,
            None => Listing::Nothing,
        };
        self.actions.push_back(Action::List(listing));
    }
}
