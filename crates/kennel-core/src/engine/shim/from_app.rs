//! Handles lines of the app.

use super::upstream::{Next, Upstream};
use super::{Listing, Shim, millis_until};
use crate::engine::shim::{Action, Sharing};
use crate::message::{Line, Message};
use crate::mux::{self, Opening};
use crate::session::Verdict;
use crate::time::Moment;

impl Shim {
    /// Handles a line of the app. Carry out the actions that follow before writing the line.
    pub fn handle_app_line<'a>(&mut self, line: impl Into<Line<'a>>, now: Moment) -> Verdict {
        let line = line.into();
        if !self.introduced {
            self.handle_first_request(line, now);
        }
        let may_wake = self.upstream.hibernates() || self.upstream.needs_a_request();
        if may_wake && needs_server(line) {
            self.wake(now);
            if !self.is_too_early(now) {
                self.retry_given_up_server();
                self.expect_upstream(now);
            }
        }
        let requests = self.session.requests();
        let verdict = self.session.handle_app_line(line);
        if self.session.requests() != requests {
            self.last_used = now;
        }
        if self.upstream.hibernates() && self.session.queue_is_full() {
            // Otherwise no more input would be read, not even a request.
            self.wake(now);
        }
        verdict
    }

    /// Handles the end of the app's input.
    pub(super) fn app_closed(&mut self) {
        self.session.handle_app_eof();
        if self.upstream.hibernates() {
            // No request will start the server any more.
            self.session.give_up("it was stopped", "");
        }
    }

    /// Takes the app's name from its first request, and whether the session may share.
    fn handle_first_request(&mut self, line: Line<'_>, now: Moment) {
        let message = match Message::parse(line) {
            // Other messages do not decide it, unless the queue is full and no request would be read.
            Ok(Message::Notification(_) | Message::Response(_))
                if !self.session.queue_is_full() =>
            {
                return;
            }
            message => message,
        };
        self.introduced = true;
        self.client_name = message.as_ref().ok().and_then(mux::client_name);
        let Some(sharing) = self.settings.sharing.as_ref().filter(|it| it.modern_only) else {
            return;
        };
        let opening = message.as_ref().ok().map(mux::opening);
        if !matches!(opening, Some(Opening::Modern(_) | Opening::Probe)) {
            self.why_dedicated = Some(sharing.why.clone());
            self.sharing = Sharing::Dedicated;
        }
        if let Upstream::Unintroduced = self.upstream {
            self.upstream = Upstream::Waiting { until: now };
        }
    }

    /// Starts the hibernating server again for a request.
    pub(super) fn wake(&mut self, now: Moment) {
        self.upstream = match self.upstream {
            Upstream::Hibernating => Upstream::Waiting { until: now },
            Upstream::Draining(Next::Hibernate) => Upstream::Draining(Next::Start { at: now }),
            _ => return,
        };
        self.session.expect_upstream();
        self.actions.push_back(Action::List(Listing::Nothing));
    }

    /// Whether the restart limit does not allow another server yet. The error response says when it does.
    fn is_too_early(&mut self, now: Moment) -> bool {
        if !self.upstream.needs_a_request() {
            return false;
        }
        let wait = millis_until(self.retry_at, now);
        self.session.set_retry_after(wait);
        wait.is_some()
    }

    /// Tries again, on request, after the upstream was given up.
    fn expect_upstream(&mut self, now: Moment) {
        if self.upstream.needs_a_request() && !self.session.app_is_done() {
            self.session.expect_upstream();
            self.upstream = Upstream::Waiting {
                until: self.limit.next_attempt(now),
            };
        }
    }
}

/// Whether a line needs a server: the session itself answers pings, and notifications can wait.
fn needs_server(line: Line<'_>) -> bool {
    match Message::parse(line) {
        Ok(Message::Request(request)) => !request.method.is("ping"),
        Ok(Message::Batch(_)) => true,
        Ok(Message::Notification(_) | Message::Response(_)) | Err(_) => false,
    }
}
