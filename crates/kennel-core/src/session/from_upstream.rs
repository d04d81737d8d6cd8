//! Handles lines of the upstream.

use std::borrow::Cow;
use std::ops::ControlFlow;

use crate::message::repair::{self, RecoveredFields};
use crate::message::{
    Batch, Id, Key, Line, Malformed, Message, Notification, Outcome, Request, Response,
};

use crate::note::LineNote;

use super::batch::{self, Edit};
use super::in_flight::{Acknowledged, Stage, Unsent};
use super::loss::SUBSCRIPTION;
use super::note::{Note, Side};
use super::server_requests::AppId;
use super::{Phase, Session, Verdict, reply};

/// The action for a message of the upstream.
enum UpstreamAction {
    /// Send it to the app.
    Pass,

    /// Send it to the app with another id.
    PassAs(Edit),

    /// Drop it.
    Drop,

    /// Drop it and disconnect from the upstream.
    Abandon,
}

impl Session {
    /// Handles a line of the upstream.
    ///
    /// Responses to pending requests pass, and so do errors without an id. Late, duplicate and unknown responses are
    /// dropped, and so is what the app got from an earlier upstream: acknowledgements and progress. Server requests
    /// pass, each with an id that no request of an earlier upstream had; one with an id that some SDKs drop or that is
    /// in flight is answered with `-32600`. A malformed line is repaired, replaced by an error response, or dropped:
    /// some apps disconnect on malformed lines.
    pub fn handle_upstream_line<'a>(&mut self, line: impl Into<Line<'a>>) -> Verdict {
        let whole = line.into();
        let line = whole.bytes();
        if !self.is_attached() {
            self.notes.push(Note::Stale);
            return Verdict::Drop;
        }
        let verdict = match Message::parse(whole) {
            Ok(message) => self.message_from_upstream(line, &message),
            Err(why) => self.malformed_from_upstream(line, why),
        };
        if verdict == Verdict::Abandon {
            self.handle_upstream_lost(reply::SERVER_RESTARTED, Unsent::Nothing);
        }
        self.queue_in_order(line, verdict)
    }

    fn message_from_upstream(&mut self, line: &[u8], message: &Message<'_>) -> Verdict {
        match message {
            Message::Batch(batch) => self.batch_from_upstream(batch),
            message => match self.decide_upstream_message(message) {
                UpstreamAction::Pass => Verdict::Forward,
                UpstreamAction::PassAs(edit) => Verdict::Replace(edit.of_line(line)),
                UpstreamAction::Drop => Verdict::Drop,
                UpstreamAction::Abandon => Verdict::Abandon,
            },
        }
    }

    /// Handles a line that is not a message. If its text can be repaired, the repaired line is handled. A line with
    /// `NaN` or `Infinity` that is a message otherwise passes byte for byte: the upstream is a dedicated server, because
    /// a daemon does not send such lines, and the app decides what it reads. Else the side that waits for it gets an error: the app, if it was meant as a response; the server, if it was meant as a
    /// request.
    fn malformed_from_upstream(&mut self, line: &[u8], why: Malformed) -> Verdict {
        if let Some(repaired) = repair::repaired(line, why) {
            self.notes.push(LineNote::Repaired(Side::Upstream, why));
            let Ok(message) = Message::parse(&repaired) else {
                return Verdict::Drop;
            };
            return match self.message_from_upstream(&repaired, &message) {
                Verdict::Forward => Verdict::Replace(repaired),
                other => other,
            };
        }
        // Some apps read these numbers. Without Kennel they would get them.
        if let Some(finite) = repair::with_finite_numbers(line, why)
            && let Ok(message) = Message::parse(&finite)
            && !matches!(message, Message::Batch(_))
        {
            return self.message_from_upstream(line, &message);
        }
        self.notes.push(LineNote::Malformed(Side::Upstream, why));
        let Some(meant) = RecoveredFields::of(line) else {
            return self.malformed_batch_from_upstream(line, why);
        };
        if meant.id.is_some() && meant.has_method {
            let is_open = |key: &Key| self.server_requests.is_open(key);
            for refused in reply::malformed(line, why, is_open) {
                self.reply_to_server(refused);
            }
            return Verdict::Drop;
        }
        let mut errors = Vec::new();
        for id in meant.answers() {
            if self.error_instead(&id, why, &mut errors).is_break() {
                return Verdict::Abandon;
            }
        }
        let last = errors.pop();
        self.to_app.extend(errors);
        last.map_or(Verdict::Drop, Verdict::Replace)
    }

    /// Handles a malformed or too long batch. Each request that waits for a response in it gets an error.
    fn malformed_batch_from_upstream(&mut self, line: &[u8], why: Malformed) -> Verdict {
        let mut errors = Vec::new();
        let mut done = ControlFlow::Continue(());
        repair::for_each_element(line, |member| {
            for id in member.answers() {
                done = self.error_instead(&id, why, &mut errors);
                if done.is_break() {
                    return done;
                }
            }
            match self.in_flight.is_empty() && !self.is_handshaking() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        if why == Malformed::LongBatch {
            for refused in reply::malformed(line, why, |_| false) {
                self.reply_to_server(refused);
            }
        }
        match (done, batch::join(errors)) {
            (ControlFlow::Break(()), errors) => {
                self.to_app.extend(errors);
                Verdict::Abandon
            }
            (ControlFlow::Continue(()), Some(errors)) => Verdict::Replace(errors),
            (ControlFlow::Continue(()), None) => Verdict::Drop,
        }
    }

    /// Adds the error in place of the upstream's response with this id, if a request waits for it. Breaks if the
    /// upstream must be disconnected.
    fn error_instead(
        &mut self,
        id: &str,
        why: Malformed,
        errors: &mut Vec<Vec<u8>>,
    ) -> ControlFlow<()> {
        let instead = reply::malformed_answer(id.as_bytes(), why);
        let Ok(message) = Message::parse(&instead) else {
            return ControlFlow::Continue(());
        };
        match self.message_from_upstream(&instead, &message) {
            Verdict::Forward => errors.push(instead),
            Verdict::Replace(other) => errors.push(other),
            Verdict::Drop => {}
            Verdict::Abandon => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn is_handshaking(&self) -> bool {
        matches!(self.phase, Phase::Handshaking)
    }

    /// Queues a line for the app behind the lines that are queued already.
    fn queue_in_order(&mut self, line: &[u8], verdict: Verdict) -> Verdict {
        if self.to_app.is_empty() {
            return verdict;
        }
        match verdict {
            Verdict::Forward => self.to_app.push_back(line.to_vec()),
            Verdict::Replace(other) => self.to_app.push_back(other),
            Verdict::Drop | Verdict::Abandon => return verdict,
        }
        Verdict::Drop
    }

    fn batch_from_upstream(&mut self, batch: &Batch<'_>) -> Verdict {
        let mut untouched = true;
        let mut kept = Vec::new();
        for member in &batch.members {
            match self.decide_upstream_message(&member.message) {
                UpstreamAction::Pass => kept.push(Cow::Borrowed(member.whole.bytes())),
                UpstreamAction::PassAs(edit) => {
                    untouched = false;
                    kept.push(Cow::Owned(edit.of_member(member)));
                }
                UpstreamAction::Drop => untouched = false,
                UpstreamAction::Abandon => {
                    self.to_app.extend(batch::join(kept));
                    return Verdict::Abandon;
                }
            }
        }
        // Before the messages are joined: a long batch is not copied in vain.
        if untouched {
            return Verdict::Forward;
        }
        batch::join(kept).map_or(Verdict::Drop, Verdict::Replace)
    }

    fn decide_upstream_message(&mut self, message: &Message<'_>) -> UpstreamAction {
        match message {
            Message::Request(request) => self.request_from_upstream(request),
            Message::Notification(notification) => self.notification_from_upstream(notification),
            Message::Response(response) => self.response_from_upstream(response),
            // Batches are split before, and do not nest.
            Message::Batch(_) => UpstreamAction::Drop,
        }
    }

    fn request_from_upstream(&mut self, request: &Request<'_>) -> UpstreamAction {
        let id = request.id;
        if let Some(refused) = reply::long_server_id(id.raw()) {
            self.reply_to_server(refused);
            return UpstreamAction::Drop;
        }
        let key = id.key();
        if !key.is_acceptable() {
            self.reply_to_server(reply::odd_id(id.raw()));
            self.notes.push(LineNote::OddId(Side::Upstream, key));
            return UpstreamAction::Drop;
        }
        if self.server_requests.is_open(&key) {
            self.reply_to_server(reply::duplicate_id(id.raw(), &key));
            self.notes.push(LineNote::DuplicateId(Side::Upstream, key));
            return UpstreamAction::Drop;
        }
        if self.server_requests.is_full() {
            self.reply_to_server(reply::too_many(id.raw()));
            return UpstreamAction::Drop;
        }
        forward_as(&id, self.server_requests.ask(&id, key))
    }

    /// Answers a server request in place of the app.
    fn reply_to_server(&mut self, line: Vec<u8>) {
        if !self.to_upstream.reply(line) {
            self.notes.push(Note::ReplyDropped);
        }
    }

    fn notification_from_upstream(&mut self, notification: &Notification<'_>) -> UpstreamAction {
        let passes = match &*notification.method.name() {
            "notifications/progress" => self.in_flight.progress.passes(notification),
            "notifications/subscriptions/acknowledged" => self.acknowledged(notification),
            "notifications/tools/list_changed" => {
                self.tools.forget();
                true
            }
            _ => true,
        };
        if !passes {
            return UpstreamAction::Drop;
        }
        let id = match notification.cancelled() {
            Ok(Some(id)) => id,
            Ok(None) => return UpstreamAction::Pass,
            Err(why) => {
                self.notes.push(LineNote::Malformed(Side::Upstream, why));
                return UpstreamAction::Drop;
            }
        };
        let key = id.key();
        if let Some(shown) = self.server_requests.cancel(&key) {
            return forward_as(&id, shown);
        }
        // Since 2026-07-28 a server may end a subscription this way, which is a request of the app. No other request: a
        // server request with this id may just have been answered.
        if self.in_flight.is_subscription(&key) {
            self.in_flight.cancel(&key);
            return UpstreamAction::Pass;
        }
        if let Some(meant) = self.in_flight.sent_with_same_number(&key)
            && self.in_flight.is_subscription(&meant)
        {
            let new = self.in_flight.spelled(&meant).unwrap_or_default();
            self.in_flight.cancel(&meant);
            return forward_as(&id, AppId::Replaced(new));
        }
        self.notes
            .push(LineNote::UnknownCancel(Side::Upstream, key));
        UpstreamAction::Drop
    }

    /// Records an acknowledged subscription. Returns `false` if an earlier upstream has already acknowledged it to the
    /// app.
    fn acknowledged(&mut self, notification: &Notification<'_>) -> bool {
        let member = |path: &[&str]| notification.params?.at(path).ok().flatten();
        let subscription = member(&["_meta", SUBSCRIPTION]).and_then(|id| id.key());
        let Some(mut key) = subscription else {
            return true;
        };
        if self.in_flight.stage(&key).is_none()
            && let Some(meant) = self.in_flight.sent_with_same_number(&key)
        {
            key = meant;
        }
        let Some(state) = self.in_flight.acknowledged(&key) else {
            return true;
        };
        if let Acknowledged::Again { tools } = *state {
            *state = Acknowledged::Yes { tools };
            return false;
        }
        let tools = member(&["notifications", "toolsListChanged"]);
        let tools = tools.is_some_and(|it| it.text() == "true");
        *state = Acknowledged::Yes { tools };
        true
    }

    fn response_from_upstream(&mut self, response: &Response<'_>) -> UpstreamAction {
        // It answers no request. Only the app can tell what it is about, as without Kennel.
        if response.is_error_without_id() {
            return UpstreamAction::Pass;
        }
        let Some(id) = response.id else {
            self.notes
                .push(LineNote::UnknownAnswer(Side::Upstream, None));
            return UpstreamAction::Drop;
        };
        let key = id.key();
        if let Some(action) = self.answered(&key, &response.outcome) {
            return action;
        }
        // Some servers answer the id 1 as "1" or 1.0, which the official clients accept.
        if let Some(meant) = self.pending_with_same_number(&key) {
            let new = self.in_flight.spelled(&meant).unwrap_or_default();
            match self.answered(&meant, &response.outcome) {
                Some(UpstreamAction::Pass) => return forward_as(&id, AppId::Replaced(new)),
                Some(other) => return other,
                None => {}
            }
        }
        let note = LineNote::UnknownAnswer(Side::Upstream, Some(key));
        self.notes.push(note);
        UpstreamAction::Drop
    }

    fn pending_with_same_number(&self, key: &Key) -> Option<Key> {
        if let (Phase::Handshaking, Some(handshake)) = (&self.phase, &self.handshake)
            && key.as_number().is_some()
            && key.as_number() == handshake.key().as_number()
        {
            return Some(handshake.key().clone());
        }
        self.in_flight.sent_with_same_number(key)
    }

    /// Handles a response by id. `None`: no such request is pending.
    fn answered(&mut self, key: &Key, outcome: &Outcome<'_>) -> Option<UpstreamAction> {
        if let (Phase::Handshaking, Some(handshake)) = (&self.phase, &self.handshake)
            && handshake.key() == key
        {
            return Some(self.repeated_handshake_answered(outcome));
        }
        if let Some(request) = self.own_requests.end(key) {
            self.own_request_answered(&request, outcome);
            return Some(UpstreamAction::Drop);
        }
        self.era.answered(key, outcome);
        match self.in_flight.stage(key)? {
            Stage::Sent | Stage::Cancelled => {
                if let Some(request) = self.in_flight.remove(key) {
                    self.record_response(&request, outcome);
                }
                Some(UpstreamAction::Pass)
            }
            Stage::Handshake => Some(self.handshake_answered(outcome)),
            // It was not sent yet.
            Stage::Queued(_) => None,
        }
    }

    /// Handles the response to an `initialize` that the session sent again.
    fn repeated_handshake_answered(&mut self, outcome: &Outcome<'_>) -> UpstreamAction {
        let handshake = self
            .handshake
            .as_mut()
            .expect("a handshake is repeated_handshake_answered with");
        let answered = handshake.is_answered();
        match outcome {
            Outcome::Error(_) if answered => {
                self.notes.push(Note::HandshakeRefused);
                return UpstreamAction::Abandon;
            }
            Outcome::Error(_) => {}
            Outcome::Result(result) => {
                let initialized = handshake.confirmation().map(<[u8]>::to_vec);
                let changed = handshake.answered_again(result);
                self.to_upstream.extend(initialized);
                for list in changed {
                    self.announce(list);
                }
            }
        }
        self.open();
        match answered {
            true => UpstreamAction::Drop,
            false => self.handshake_answered(outcome),
        }
    }

    /// Handles the response to `initialize` that the app waits for.
    fn handshake_answered(&mut self, outcome: &Outcome<'_>) -> UpstreamAction {
        if let Some(handshake) = &mut self.handshake {
            self.in_flight.remove(&handshake.key().clone());
            match outcome {
                Outcome::Result(result) => handshake.answer(result),
                // The app may send another one.
                Outcome::Error(_) => self.handshake = None,
            }
        }
        UpstreamAction::Pass
    }
}

fn forward_as(id: &Id<'_>, shown: AppId) -> UpstreamAction {
    match shown {
        AppId::Unchanged => UpstreamAction::Pass,
        AppId::Replaced(new) => UpstreamAction::PassAs(Edit {
            place: id.part().range(),
            new,
        }),
    }
}
