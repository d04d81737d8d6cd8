//! What follows from a line of the upstream.

use std::borrow::Cow;
use std::ops::ControlFlow;

use crate::message::repair::{self, Meant};
use crate::message::{
    Batch, Id, Key, Line, Malformed, Message, Notification, Outcome, Request, Response,
};

use super::batch::{self, Edit};
use super::in_flight::{Acknowledged, Stage, Unsent};
use super::loss::SUBSCRIPTION;
use super::note::{Note, Side};
use super::reverse::Shown;
use super::{Phase, Session, Verdict, reply};

/// What becomes of one message of the upstream.
enum Fate {
    /// It goes to the app.
    Pass,

    /// The same, with another id.
    PassAs(Edit),

    /// It goes nowhere.
    Stop,

    /// It goes nowhere, and no other of this upstream does.
    Abandon,
}

impl Session {
    /// A line of the upstream.
    ///
    /// Answers pass if somebody waits for them, and errors without an id; a late, second or unknown answer is dropped, and so is what
    /// the app has heard from an earlier upstream: acknowledgements, and how far a request has come. The
    /// server's own requests pass, each under an id that no earlier upstream's request had; one
    /// whose id some SDKs drop, or that is open already, is answered with `-32600` instead. A
    /// bad line is repaired, answered in its place, or dropped: some apps disconnect on one.
    pub fn from_upstream<'a>(&mut self, line: impl Into<Line<'a>>) -> Verdict {
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
            self.upstream_lost(reply::SERVER_RESTARTED, Unsent::Nothing);
        }
        self.behind_what_waits(line, verdict)
    }

    fn message_from_upstream(&mut self, line: &[u8], message: &Message<'_>) -> Verdict {
        match message {
            Message::Batch(batch) => self.batch_from_upstream(batch),
            message => match self.judge_upstream(message) {
                Fate::Pass => Verdict::Forward,
                Fate::PassAs(edit) => Verdict::Replace(edit.of_line(line)),
                Fate::Stop => Verdict::Drop,
                Fate::Abandon => Verdict::Abandon,
            },
        }
    }

    /// A line that is no message. If its text can be repaired, it is one. Else whoever waits for it gets an error: the
    /// app where it was meant as an answer, the server where it was meant as a request.
    fn malformed_from_upstream(&mut self, line: &[u8], why: Malformed) -> Verdict {
        if let Some(repaired) = repair::repaired(line, why) {
            self.notes.push(Note::Repaired(Side::Upstream, why));
            let Ok(message) = Message::parse(&repaired) else {
                return Verdict::Drop;
            };
            return match self.message_from_upstream(&repaired, &message) {
                Verdict::Forward => Verdict::Replace(repaired),
                other => other,
            };
        }
        self.notes.push(Note::Malformed(Side::Upstream, why));
        let Some(meant) = Meant::of(line) else {
            return self.malformed_batch_from_upstream(line, why);
        };
        if meant.id.is_some() && meant.has_method {
            let is_open = |key: &Key| self.reverse.is_open(key);
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

    /// A batch that is malformed or too long. Those who wait for the answers in it get an error each.
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
            match self.in_flight.is_empty() && !self.is_greeting() {
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

    /// Adds the error that the app is to hear in the place of the upstream's answer under this id, if anybody waits for
    /// that. Breaks if the upstream has to go.
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

    fn is_greeting(&self) -> bool {
        matches!(self.phase, Phase::Greeting)
    }

    /// A line does not overtake what the app was to be told before it.
    fn behind_what_waits(&mut self, line: &[u8], verdict: Verdict) -> Verdict {
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
            match self.judge_upstream(&member.message) {
                Fate::Pass => kept.push(Cow::Borrowed(member.whole.bytes())),
                Fate::PassAs(edit) => {
                    untouched = false;
                    kept.push(Cow::Owned(edit.of_member(member)));
                }
                Fate::Stop => untouched = false,
                Fate::Abandon => {
                    self.to_app.extend(batch::join(kept));
                    return Verdict::Abandon;
                }
            }
        }
        // Before it is put together again: a long one is not copied for nothing.
        if untouched {
            return Verdict::Forward;
        }
        batch::join(kept).map_or(Verdict::Drop, Verdict::Replace)
    }

    fn judge_upstream(&mut self, message: &Message<'_>) -> Fate {
        match message {
            Message::Request(request) => self.request_from_upstream(request),
            Message::Notification(notification) => self.notification_from_upstream(notification),
            Message::Response(response) => self.response_from_upstream(response),
            // No batch is in a batch, and a whole one is judged by its members.
            Message::Batch(_) => Fate::Stop,
        }
    }

    fn request_from_upstream(&mut self, request: &Request<'_>) -> Fate {
        let id = request.id;
        if let Some(refused) = reply::long_server_id(id.raw()) {
            self.reply_to_server(refused);
            return Fate::Stop;
        }
        let key = id.key();
        if !key.is_acceptable() {
            self.reply_to_server(reply::odd_id(id.raw()));
            self.notes.push(Note::OddId(Side::Upstream, key));
            return Fate::Stop;
        }
        if self.reverse.is_open(&key) {
            self.reply_to_server(reply::duplicate_id(id.raw(), &key));
            self.notes.push(Note::DuplicateId(Side::Upstream, key));
            return Fate::Stop;
        }
        if self.reverse.is_full() {
            self.reply_to_server(reply::too_many(id.raw()));
            return Fate::Stop;
        }
        pass_as(&id, self.reverse.ask(&id, key))
    }

    /// Answers a request of the server in the session's own name.
    fn reply_to_server(&mut self, line: Vec<u8>) {
        if !self.to_upstream.reply(line) {
            self.notes.push(Note::ReplyDropped);
        }
    }

    fn notification_from_upstream(&mut self, notification: &Notification<'_>) -> Fate {
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
            return Fate::Stop;
        }
        let id = match notification.cancelled() {
            Ok(Some(id)) => id,
            Ok(None) => return Fate::Pass,
            Err(why) => {
                self.notes.push(Note::Malformed(Side::Upstream, why));
                return Fate::Stop;
            }
        };
        let key = id.key();
        if let Some(shown) = self.reverse.cancel(&key) {
            return pass_as(&id, shown);
        }
        // Since 2026-07-28 a server may end a subscription this way, which is a request of the app. No
        // other: the server's own request with that id may just have been answered.
        if self.in_flight.is_subscription(&key) {
            self.in_flight.cancel(&key);
            return Fate::Pass;
        }
        if let Some(meant) = self.in_flight.sent_with_same_number(&key)
            && self.in_flight.is_subscription(&meant)
        {
            let new = self.in_flight.spelled(&meant).unwrap_or_default();
            self.in_flight.cancel(&meant);
            return pass_as(&id, Shown::As(new));
        }
        self.notes.push(Note::UnknownCancel(Side::Upstream, key));
        Fate::Stop
    }

    /// A subscription is open. `false`: the app knows, from an earlier upstream.
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

    fn response_from_upstream(&mut self, response: &Response<'_>) -> Fate {
        // It answers no request. What it is about only the app can tell, as it would without Kennel.
        if response.is_error_without_id() {
            return Fate::Pass;
        }
        let Some(id) = response.id else {
            self.notes.push(Note::UnknownAnswer(Side::Upstream, None));
            return Fate::Stop;
        };
        let key = id.key();
        if let Some(fate) = self.answered(&key, &response.outcome) {
            return fate;
        }
        // Some servers answer the id 1 as "1" or 1.0, which the official clients accept.
        if let Some(meant) = self.pending_with_same_number(&key) {
            let new = self.in_flight.spelled(&meant).unwrap_or_default();
            match self.answered(&meant, &response.outcome) {
                Some(Fate::Pass) => return pass_as(&id, Shown::As(new)),
                Some(other) => return other,
                None => {}
            }
        }
        let note = Note::UnknownAnswer(Side::Upstream, Some(key));
        self.notes.push(note);
        Fate::Stop
    }

    fn pending_with_same_number(&self, key: &Key) -> Option<Key> {
        if let (Phase::Greeting, Some(handshake)) = (&self.phase, &self.handshake)
            && key.as_number().is_some()
            && key.as_number() == handshake.key().as_number()
        {
            return Some(handshake.key().clone());
        }
        self.in_flight.sent_with_same_number(key)
    }

    /// The upstream answered the request with this id. `None`: it has no such request.
    fn answered(&mut self, key: &Key, outcome: &Outcome<'_>) -> Option<Fate> {
        if let (Phase::Greeting, Some(handshake)) = (&self.phase, &self.handshake)
            && handshake.key() == key
        {
            return Some(self.greeted(outcome));
        }
        if let Some(errand) = self.errands.end(key) {
            self.errand_done(&errand, outcome);
            return Some(Fate::Stop);
        }
        self.era.answered(key, outcome);
        match self.in_flight.stage(key)? {
            Stage::Sent | Stage::Cancelled => {
                if let Some(request) = self.in_flight.remove(key) {
                    self.learn(&request, outcome);
                }
                Some(Fate::Pass)
            }
            Stage::Handshake => Some(self.handshake_answered(outcome)),
            // What was not asked cannot be answered.
            Stage::Queued(_) => None,
        }
    }

    /// The answer to an `initialize` that was sent by us.
    fn greeted(&mut self, outcome: &Outcome<'_>) -> Fate {
        let handshake = self
            .handshake
            .as_mut()
            .expect("a handshake is greeted with");
        let answered = handshake.is_answered();
        match outcome {
            Outcome::Error(_) if answered => {
                self.notes.push(Note::HandshakeRefused);
                return Fate::Abandon;
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
            true => Fate::Stop,
            false => self.handshake_answered(outcome),
        }
    }

    /// The answer to `initialize` that the app waits for.
    fn handshake_answered(&mut self, outcome: &Outcome<'_>) -> Fate {
        if let Some(handshake) = &mut self.handshake {
            self.in_flight.remove(&handshake.key().clone());
            match outcome {
                Outcome::Result(result) => handshake.answer(result),
                // There is nothing to say again: the app may begin another one.
                Outcome::Error(_) => self.handshake = None,
            }
        }
        Fate::Pass
    }
}

fn pass_as(id: &Id<'_>, shown: Shown) -> Fate {
    match shown {
        Shown::AsItIs => Fate::Pass,
        Shown::As(new) => Fate::PassAs(Edit {
            place: id.part().range(),
            new,
        }),
    }
}
