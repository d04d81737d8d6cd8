//! What follows from a line of the app.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::message::repair::{Meant, without_prefix};
use crate::message::reply::INITIALIZE_LIMIT;
use crate::message::{
    Batch, Id, Key, LONGEST_ID, Line, Malformed, Message, Notification, Request, Response,
};

use super::batch::{self, Edit};
use super::handshake::Handshake;
use super::in_flight::Stage;
use super::note::{Note, Side};
use super::reverse::Shown;
use super::{Phase, Session, Verdict, reply};

/// What becomes of one message of the app.
enum Fate {
    /// It goes to the upstream, or waits for one.
    InTurn,

    /// It is for the present upstream alone, and goes ahead of what waits.
    AtOnce,

    /// The same, with another id.
    AtOnceAs(Edit),

    /// It goes nowhere.
    Stop,
}

impl Session {
    /// A line of the app.
    ///
    /// Requests whose id some SDKs drop, or that is in flight, and a second `initialize` are
    /// answered with `-32600` and go no further. While there is no upstream, lines wait, and pings
    /// are answered here. A cancelled request that still waits is forgotten together with its
    /// cancellation, and gets no answer: the protocol wants none, and the app does not listen for
    /// one. A line that is no message, or that begins with `!`, goes no further, and is answered with an error
    /// unless it is blank or was meant as a notification or an answer.
    pub fn from_app<'a>(&mut self, line: impl Into<Line<'a>>) -> Verdict {
        let whole = line.into();
        let line = whole.bytes();
        match Message::parse(whole) {
            Ok(message) => {
                let verdict = match &message {
                    Message::Batch(batch) => self.batch_from_app(line, batch),
                    message => {
                        let fate = self.judge_app(line, message, false);
                        self.pass_on(line, message, fate)
                    }
                };
                match &verdict {
                    Verdict::Forward => self.handed_out(line, Some(&message)),
                    // An answer under another id, or what is left of a batch.
                    Verdict::Replace(other) => {
                        let is_batch = matches!(message, Message::Batch(_));
                        let rest = is_batch.then(|| Message::parse(other).ok()).flatten();
                        self.handed_out(other, rest.as_ref());
                    }
                    Verdict::Drop | Verdict::Abandon => {}
                }
                verdict
            }
            Err(why) => {
                self.notes.push(Note::Malformed(Side::App, why));
                // An id that is taken is another request's: to that one, this would be the answer.
                let is_taken = |key: &Key| self.in_flight.stage(key).is_some();
                let refused = reply::malformed(line, why, is_taken);
                self.to_app.extend(refused);
                self.malformed_answer_of_app(line, why);
                Verdict::Drop
            }
        }
    }

    /// What the app meant as an answer is none: the server, which waits for it, is told so.
    fn malformed_answer_of_app(&mut self, line: &[u8], why: Malformed) {
        let Some(meant) = Meant::of(without_prefix(line)).filter(|meant| meant.has_outcome) else {
            return;
        };
        for id in meant.answers() {
            if let Some(key) = Key::of(id.as_bytes())
                && let Some(shown) = self.reverse.answer(&key)
            {
                let id = match shown {
                    Shown::AsItIs => id.into_bytes(),
                    Shown::As(id) => id,
                };
                let instead = reply::malformed_answer(&id, why);
                self.to_upstream.push_back(instead);
            }
        }
    }

    fn pass_on(&mut self, line: &[u8], message: &Message<'_>, fate: Fate) -> Verdict {
        let clear = self.way_is_clear();
        let ahead = match fate {
            Fate::Stop => return Verdict::Drop,
            Fate::InTurn | Fate::AtOnce if clear => return Verdict::Forward,
            Fate::AtOnceAs(edit) if clear => return Verdict::Replace(edit.of_line(line)),
            Fate::InTurn => {
                let requests = request_in(message).into_iter().collect();
                self.queue.push(line.to_vec(), requests);
                return Verdict::Drop;
            }
            Fate::AtOnce => line.to_vec(),
            Fate::AtOnceAs(edit) => edit.of_line(line),
        };
        self.to_upstream.push_back(ahead);
        Verdict::Drop
    }

    /// What has to wait is parted from what is for the present upstream alone.
    fn batch_from_app(&mut self, line: &[u8], batch: &Batch<'_>) -> Verdict {
        let clear = self.way_is_clear();
        let mut untouched = true;
        let mut at_once = Vec::new();
        let mut in_turn = Vec::new();
        for member in &batch.members {
            match self.judge_app(line, &member.message, true) {
                Fate::Stop => untouched = false,
                Fate::InTurn if !clear => in_turn.push(member),
                Fate::InTurn | Fate::AtOnce => {
                    at_once.push(Cow::Borrowed(member.whole.bytes()));
                }
                Fate::AtOnceAs(edit) => {
                    untouched = false;
                    at_once.push(Cow::Owned(edit.of_member(member)));
                }
            }
        }
        // Before it is put together again: a long one is not copied for nothing.
        if clear && untouched {
            return Verdict::Forward;
        }
        // A later member may have cancelled an earlier one, and a still later one have taken its id.
        let mut seen = BTreeSet::new();
        in_turn.reverse();
        in_turn.retain(|member| {
            request_in(&member.message)
                .is_none_or(|key| self.in_flight.stage(&key).is_some() && seen.insert(key))
        });
        in_turn.reverse();
        if let Some(waiting) = batch::join(in_turn.iter().map(|member| member.whole.bytes())) {
            let requests = in_turn
                .iter()
                .filter_map(|member| request_in(&member.message));
            self.queue.push(waiting, requests.collect());
        }
        match batch::join(at_once) {
            None => Verdict::Drop,
            Some(rest) if clear => Verdict::Replace(rest),
            Some(rest) => {
                self.to_upstream.push_back(rest);
                Verdict::Drop
            }
        }
    }

    fn judge_app(&mut self, line: &[u8], message: &Message<'_>, in_batch: bool) -> Fate {
        match message {
            Message::Request(request) => {
                self.era.asked(message);
                self.requests += u64::from(!request.method.is("ping"));
                self.request_from_app(line, request, in_batch)
            }
            Message::Notification(notification) => {
                self.notification_from_app(line, notification, in_batch)
            }
            Message::Response(response) => self.response_from_app(response),
            // No batch is in a batch, and a whole one is judged by its members.
            Message::Batch(_) => Fate::Stop,
        }
    }

    fn request_from_app(&mut self, line: &[u8], request: &Request<'_>, in_batch: bool) -> Fate {
        let id = request.id.raw();
        // Before its key is made, which is as long.
        if !self.in_flight.has_room_for_id(id) {
            self.to_app.push_back(reply::long_id(id));
            return Fate::Stop;
        }
        let key = request.id.key();
        if !key.is_acceptable() {
            self.to_app.push_back(reply::odd_id(id));
            self.notes.push(Note::OddId(Side::App, key));
            return Fate::Stop;
        }
        if self.in_flight.stage(&key).is_some() || self.errands.is_open(&key) {
            self.to_app.push_back(reply::duplicate_id(id, &key));
            self.notes.push(Note::DuplicateId(Side::App, key));
            return Fate::Stop;
        }
        if self.in_flight.is_full() {
            self.to_app.push_back(reply::too_many(id));
            return Fate::Stop;
        }
        if request.method.is("ping") && !matches!(self.phase, Phase::Open) {
            self.to_app.push_back(reply::pong(id));
            return Fate::Stop;
        }
        if let Phase::GivenUp(refusal) = &self.phase {
            self.to_app.push_back(refusal.reply(id));
            return Fate::Stop;
        }
        // The protocol has no `initialize` in a batch; what is there all the same is replayed no more
        // than any other request.
        if request.method.is("initialize") && !in_batch {
            return self.initialize_from_app(line, request, key);
        }
        let stage = match self.way_is_clear() {
            true => Stage::Sent,
            false => Stage::Queued(self.queue.next_ticket()),
        };
        self.in_flight.insert(key, request, stage);
        Fate::InTurn
    }

    fn initialize_from_app(&mut self, line: &[u8], request: &Request<'_>, key: Key) -> Fate {
        // It is kept for every later upstream, in more than one copy on its way there.
        if line.len() > INITIALIZE_LIMIT {
            self.to_app
                .push_back(reply::long_initialize(request.id.raw()));
            return Fate::Stop;
        }
        if self.handshake.is_some() {
            let refused = reply::second_initialize(request.id.raw());
            self.to_app.push_back(refused);
            self.notes.push(Note::SecondInitialize);
            return Fate::Stop;
        }
        self.in_flight
            .insert(key.clone(), request, Stage::Handshake);
        self.handshake = Some(Handshake::begun(key, line));
        match self.phase {
            Phase::Open => Fate::AtOnce,
            // It is the first thing the next upstream is told.
            Phase::Detached | Phase::Greeting | Phase::GivenUp(_) => Fate::Stop,
        }
    }

    fn notification_from_app(
        &mut self,
        line: &[u8],
        notification: &Notification<'_>,
        in_batch: bool,
    ) -> Fate {
        match notification.cancelled() {
            Ok(Some(id)) => return self.cancel_from_app(&id),
            Ok(None) => {}
            Err(why) => {
                self.notes.push(Note::Malformed(Side::App, why));
                return Fate::Stop;
            }
        }
        if let Some(handshake) = &mut self.handshake
            && !in_batch
            && notification.method.is("notifications/initialized")
            && handshake.confirm(line)
        {
            return match self.phase {
                Phase::Open => Fate::AtOnce,
                // It follows the answer to `initialize`.
                Phase::Detached | Phase::Greeting | Phase::GivenUp(_) => Fate::Stop,
            };
        }
        match self.phase {
            Phase::GivenUp(_) => {
                self.notes.push(Note::NotificationLost);
                Fate::Stop
            }
            Phase::Detached | Phase::Greeting | Phase::Open => Fate::InTurn,
        }
    }

    fn cancel_from_app(&mut self, id: &Id<'_>) -> Fate {
        // No request has such an id, and its key would be as long.
        if id.raw().len() > LONGEST_ID {
            self.notes.push(Note::LongCancel);
            return Fate::Stop;
        }
        let key = &id.key();
        if self.in_flight.stage(key).is_none()
            && let Some(meant) = self.in_flight.same_number(key)
        {
            let new = self.in_flight.spelled(&meant).unwrap_or_default();
            let place = id.part().range();
            return match self.cancel(&meant) {
                Fate::AtOnce => Fate::AtOnceAs(Edit { place, new }),
                other => other,
            };
        }
        self.cancel(key)
    }

    fn cancel(&mut self, key: &Key) -> Fate {
        match self.in_flight.stage(key) {
            Some(Stage::Sent) => {
                self.in_flight.cancel(key);
                Fate::AtOnce
            }
            Some(Stage::Queued(ticket)) => {
                self.queue.cancel(ticket, key);
                self.in_flight.remove(key);
                Fate::Stop
            }
            Some(Stage::Handshake) => {
                self.notes.push(Note::InitializeCancelled);
                Fate::Stop
            }
            Some(Stage::Cancelled) | None => {
                let note = Note::UnknownCancel(Side::App, key.clone());
                self.notes.push(note);
                Fate::Stop
            }
        }
    }

    fn response_from_app(&mut self, response: &Response<'_>) -> Fate {
        let key = response.id.map(|id| id.key());
        if let (Some(id), Some(key)) = (response.id, &key)
            && let Some(known) = self.reverse.answer(key)
        {
            let place = id.part().range();
            return match known {
                Shown::AsItIs => Fate::AtOnce,
                Shown::As(new) => Fate::AtOnceAs(Edit { place, new }),
            };
        }
        self.notes.push(Note::UnknownAnswer(Side::App, key));
        Fate::Stop
    }
}

fn request_in(message: &Message<'_>) -> Option<Key> {
    match message {
        Message::Request(request) => Some(request.id.key()),
        Message::Notification(_) | Message::Response(_) | Message::Batch(_) => None,
    }
}
