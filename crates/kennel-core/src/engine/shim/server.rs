//! The dedicated server: start, loss, hibernation, replacement.

use super::upstream::{Next, Upstream};
use super::{Action, Listing, Shim};
use crate::engine::silence::SilenceTimer;
use crate::session::{SERVER_RESTARTED, ServerExit, Unsent};
use crate::time::Moment;

impl Shim {
    /// Whether a server whose files changed may be replaced now: no request is pending.
    pub fn may_replace_server(&self) -> bool {
        self.has_server()
            && self.session.is_idle()
            && self.session.is_quiet()
            && !self.session.app_is_done()
    }

    pub(super) fn start_server(&mut self) {
        self.ending.server_started();
        self.silence = SilenceTimer::default();
        self.upstream = Upstream::Dedicated;
        self.actions.push_back(Action::StartServer);
        self.attach();
    }

    /// Records the exit of the server's first process while its stdout is open, perhaps held by a helper that it
    /// started.
    pub(super) fn server_exited(&mut self, ending: ServerExit, stdin_closed: bool) {
        self.ending.server_exited(ending);
        if stdin_closed && self.has_server() && !self.session.app_is_done() {
            self.actions.push_back(Action::DeclareServerLost);
        }
        self.silence.handle_first_process_exit(ending);
    }

    pub(super) fn server_not_started(&mut self, why: &str) {
        let why = format!("the server cannot be started: {why}");
        self.give_up(&why, "");
    }

    /// Handles a lost server. The next one starts when its process tree is empty: two writers on one store are worse
    /// than a late response.
    pub(super) fn handle_server_lost(
        &mut self,
        unread: usize,
        ending: Option<ServerExit>,
        stderr: &str,
        now: Moment,
    ) {
        if !self.has_server() {
            return;
        }
        self.upstream = Upstream::Draining(Next::GiveUp);
        self.session.set_server_exit(ending);
        self.session
            .handle_upstream_lost(SERVER_RESTARTED, Unsent::LastBytes(unread));
        if self.session.app_is_done() {
            return self.give_up("the server ended", stderr);
        }
        // A server that exits by itself before its first response cannot start. A signal does not show that.
        let killed = matches!(ending, Some(ServerExit::Signal(_)));
        match self.limit.record_loss(now, self.upstream_answered) {
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

    /// Handles the end of the server's process tree.
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
                // The server was stopped: how it exited is not the session's exit code.
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

    /// Replaces a server whose files changed, if no request is pending.
    pub(super) fn replace_server(&mut self, now: Moment) {
        if self.may_replace_server() {
            self.stop_server();
            self.session
                .handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
            self.upstream = Upstream::Draining(Next::Start { at: now });
        }
    }

    /// Stops the server. This does not count for the restart limit.
    pub(super) fn stop_server(&mut self) {
        if self.has_server() {
            self.actions.push_back(Action::StopServer);
            self.upstream = Upstream::Draining(Next::GiveUp);
        }
    }

    /// When the dedicated server hibernates. A daemon decides that for shared servers.
    pub(super) fn hibernate_at(&self) -> Option<Moment> {
        let after = self.settings.hibernate?;
        (self.has_server() && self.session.is_quiet()).then(|| self.last_used + after)
    }

    /// Records that the server was stopped on purpose, and starts again with the next request. `unsent`: the pending
    /// requests that it has not received.
    pub(super) fn hibernate(&mut self, unsent: Unsent<'_>, now: Moment) {
        let busy = !self.session.is_quiet();
        self.session.handle_upstream_lost(SERVER_RESTARTED, unsent);
        self.abandon_sharing(now);
        if self.session.app_is_done() && !self.session.has_pending_requests() {
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
