//! How a session begins with an upstream, and what happens to its requests when the upstream is lost.

use crate::message::{Key, Message, Outcome, notification, splice_id};

use super::features::List;
use super::in_flight::{PendingRequest, RequestKind, Unsent};
use super::note::Note;
use super::own_requests::{OwnRequest, OwnRequestKind};
use super::replay::ReplayDecision;
use super::reply::{self, Refusal, SERVER_RESTARTED, SERVER_UNAVAILABLE};
use super::{Phase, Session, progress};

/// Member of `_meta` with the subscription id of a notification (modern).
pub(super) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

impl Session {
    /// Starts with a new upstream. It gets the handshake first, if the app sent one; once it has answered that, the
    /// restored state, the replayed requests and the queue.
    ///
    /// Its response goes to the app only if the app has none yet. A session of protocol 2026-07-28 has no handshake and
    /// continues at once.
    pub fn handle_upstream_attached(&mut self) {
        if self.is_attached() {
            self.handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        }
        self.server_requests.attached();
        (self.ending, self.retry_after) = (None, None);
        self.sent_bytes = 0;
        self.began_a_task = false;
        match &self.handshake {
            Some(handshake) => {
                self.to_upstream.push_back(handshake.request().to_vec());
                self.phase = Phase::Handshaking;
            }
            None => self.open(),
        }
    }

    /// Handles a lost upstream. The requests that [`Replay`](super::Replay) allows are replayed to the next one, and so
    /// are those that it has certainly not received (`unsent`). The others get an error `-32603` with this `reason`
    /// (one word, such as [`SERVER_RESTARTED`]) and an unknown outcome in its data. Server requests are cancelled at
    /// the app. A handshake that the app waits for is sent to the next upstream.
    pub fn handle_upstream_lost(&mut self, reason: &str, unsent: Unsent<'_>) {
        self.detach(reason, None, unsent);
    }

    /// `why`: for people, if the upstream was given up rather than lost.
    fn detach(&mut self, reason: &str, why: Option<&str>, unsent: Unsent<'_>) {
        if !self.is_attached() {
            return;
        }
        self.phase = Phase::Detached;
        self.to_upstream.clear();
        for request in self.own_requests.upstream_lost() {
            self.in_flight.progress.unhide(request.token.as_ref());
        }
        let mut again = Vec::new();
        let mut refused = 0;
        for (key, request, unsent) in self.in_flight.upstream_lost(unsent, self.sent_bytes) {
            match self.decide(&request, unsent) {
                ReplayDecision::Replay => again.push((key, request)),
                ReplayDecision::Pong => self.to_app.push_back(reply::pong(&request.id)),
                ReplayDecision::Refuse => {
                    refused += 1;
                    self.in_flight.ended(&request);
                    let lost = reply::lost_request_error(&request, reason, why, self.ending);
                    self.to_app.push_back(lost);
                }
            }
        }
        if !again.is_empty() || refused > 0 {
            let again = again.len();
            self.notes.push(Note::Lost { again, refused });
        }
        // The latest first: each is put in front of those before it.
        for (key, request) in again.into_iter().rev() {
            let place = self.queue.front();
            let line = self.in_flight.queue_again(key.clone(), request, place);
            self.queue.put_back(place, line, key);
        }
        for shown in self.server_requests.upstream_lost() {
            self.to_app.push_back(reply::cancelled(&shown, reason));
        }
    }

    /// Gives up the upstream. All queued requests are refused, and so are later ones until an upstream is attached or
    /// [expected](Self::expect_upstream) again: error `-32603` with the reason [`SERVER_UNAVAILABLE`], `why` (for
    /// people), and `detail` (the last lines of the server's stderr) in its data. Pings are still answered. The state
    /// to restore and open subscriptions are kept for the next upstream.
    pub fn give_up(&mut self, why: &str, detail: &str) {
        self.detach(SERVER_UNAVAILABLE, Some(why), Unsent::Nothing);
        if self.handshake.as_ref().is_some_and(|it| !it.is_answered()) {
            self.handshake = None;
        }
        let mut refusal = Refusal::new(why, detail, self.ending);
        refusal.retry_after = self.retry_after;
        self.phase = Phase::GivenUp(refusal);
        self.refuse_queued();
    }

    pub(super) fn refuse_queued(&mut self) {
        let Phase::GivenUp(refusal) = &self.phase else {
            return;
        };
        for request in self.in_flight.waiting(self.app_is_done) {
            self.to_app.push_back(refusal.reply_to(&request));
        }
        let in_flight = &self.in_flight;
        self.queue.keep_only(|key| in_flight.stage(key).is_some());
    }

    fn decide(&self, lost: &PendingRequest, unsent: bool) -> ReplayDecision {
        // The app reads no notifications any more.
        let is_unread = self.app_is_done && lost.is_subscription();
        // Some servers exit on this after a handshake.
        let may_exit = self.handshake.is_some() && &*lost.method == "server/discover";
        match is_unread || may_exit {
            true => ReplayDecision::Refuse,
            false => self.replay.decide(lost, unsent, &self.tools),
        }
    }

    /// Starts to send requests. First the state of an earlier upstream is restored.
    pub(super) fn open(&mut self) {
        self.phase = Phase::Open;
        for line in self.server_state.lines() {
            self.send_again(&line, OwnRequestKind::Restore);
        }
        if let Some(listed) = self.tools.listed()
            && self.app_expects_tool_changes()
        {
            let request = listed.request.clone();
            self.send_again(&request, OwnRequestKind::CompareTools);
        }
    }

    /// Handles the response to a request of the session itself.
    pub(super) fn own_request_answered(&mut self, request: &OwnRequest, outcome: &Outcome<'_>) {
        self.in_flight.progress.unhide(request.token.as_ref());
        match (request.why, outcome) {
            (OwnRequestKind::Restore, Outcome::Result(_)) => {}
            (OwnRequestKind::Restore, Outcome::Error(_)) => self.notes.push(Note::StateRefused),
            (OwnRequestKind::CompareTools, Outcome::Result(result)) => {
                if self.tools.differ(result) {
                    self.announce(List::Tools);
                }
            }
            // The app's own request may succeed.
            (OwnRequestKind::CompareTools, Outcome::Error(_)) => {}
        }
    }

    /// Notifies the app that a list may have changed, if it expects that.
    pub(super) fn announce(&mut self, list: List) {
        if list == List::Tools {
            self.tools.forget();
        }
        if self.handshake.is_some() {
            self.to_app.push_back(notification(list.changed(), "{}"));
            return;
        }
        for id in self.in_flight.tool_subscriptions() {
            let id = String::from_utf8_lossy(id);
            let params = format!(r#"{{"_meta":{{"{SUBSCRIPTION}":{id}}}}}"#);
            self.to_app.push_back(notification(list.changed(), &params));
        }
    }

    /// Records what a response says about later requests.
    pub(super) fn record_response(&mut self, request: &PendingRequest, outcome: &Outcome<'_>) {
        // Checked first: most methods say nothing.
        if let RequestKind::Ping | RequestKind::Listen(_) | RequestKind::Other = request.what {
            return;
        }
        let (Outcome::Result(result), Some(line), Some(asked)) =
            (outcome, request.kept(), request.kept_request())
        else {
            return;
        };
        let uri = || {
            let uri = asked.params?.member("uri").ok()??;
            uri.string().map(|uri| uri.into_owned())
        };
        match request.what {
            RequestKind::ListTools => self.tools.record_response(line, &asked, result),
            RequestKind::SetLevel => self.server_state.level_set(request.order, line.to_vec()),
            RequestKind::Subscribe => {
                if let Some(uri) = uri() {
                    self.server_state
                        .subscribed(uri, request.order, line.to_vec());
                }
            }
            RequestKind::Unsubscribe => {
                if let Some(uri) = uri() {
                    self.server_state.unsubscribed(&uri);
                }
            }
            RequestKind::Ping | RequestKind::Listen(_) | RequestKind::Other => {}
        }
    }

    /// Records that a line was sent to the upstream. `message`: its content, if it may contain requests.
    pub(super) fn record_sent(&mut self, line: &[u8], message: Option<&Message<'_>>) {
        // Without its last character it cannot be parsed; without its newline it can, at the end of input.
        let end = self.sent_bytes + line.trim_ascii_end().len() as u64;
        self.sent_bytes += line.len() as u64 + 1;
        let mut sent = |message: &Message<'_>, bytes: &[u8]| {
            if let Message::Request(request) = message {
                self.began_a_task |= request.params.is_some_and(|it| it.may_have("task"));
                self.in_flight.sent(request, bytes, end);
            }
        };
        match message {
            Some(Message::Batch(batch)) => {
                for member in &batch.members {
                    sent(&member.message, member.whole.bytes());
                }
            }
            Some(message) => sent(message, line),
            None => {}
        }
    }

    fn app_expects_tool_changes(&self) -> bool {
        match &self.handshake {
            Some(handshake) => handshake.announces(List::Tools),
            None => self.in_flight.tool_subscriptions().next().is_some(),
        }
    }

    /// Sends a request of the app again, with an id of the session.
    fn send_again(&mut self, line: &[u8], why: OwnRequestKind) {
        let Ok(Message::Request(request)) = Message::parse(line) else {
            return;
        };
        let token = progress::token(request.params);
        if let Some(token) = &token {
            self.in_flight.progress.hide(token);
        }
        let in_flight = &self.in_flight;
        let is_taken = |key: &Key| in_flight.stage(key).is_some();
        let id = self.own_requests.begin(OwnRequest { why, token }, is_taken);
        let line = splice_id(line, &request.id, id.as_bytes());
        self.to_upstream.push_back(line);
    }
}
