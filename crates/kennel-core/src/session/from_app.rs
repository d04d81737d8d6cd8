//! Handles lines of the app.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::message::repair::{RecoveredFields, without_prefix};
use crate::message::reply::INITIALIZE_LIMIT;
use crate::message::{
    Batch, Id, Key, Line, MAX_ID, Malformed, Message, Notification, Request, Response,
};

use crate::note::LineNote;

use super::batch::{self, Edit};
use super::handshake::Handshake;
use super::in_flight::Stage;
use super::note::{Note, Side};
use super::server_requests::AppId;
use super::{Phase, Session, Verdict, reply};

/// The action for a message of the app.
enum AppAction {
    /// Send it to the upstream, or queue it.
    Send,

    /// Send it to this upstream only, ahead of the queue.
    SendNow,

    /// The same with another id.
    SendNowAs(Edit),

    /// Drop it.
    Drop,
}

impl Session {
    /// Handles a line of the app.
    ///
    /// A request with an id that some SDKs drop or that is in flight, and a second `initialize`, are answered with
    /// `-32600`. Without upstream, lines are queued and pings are answered here. A queued request that is cancelled is
    /// removed together with its cancellation, without a response, as the protocol requires. A line that is no message
    /// or begins with `!` is answered with an error, unless it is blank or was meant as a notification or a response.
    pub fn handle_app_line<'a>(&mut self, line: impl Into<Line<'a>>) -> Verdict {
        let whole = line.into();
        let line = whole.bytes();
        match Message::parse(whole) {
            Ok(message) => {
                let verdict = match &message {
                    Message::Batch(batch) => self.batch_from_app(line, batch),
                    message => {
                        let action = self.decide_app_message(line, message, false);
                        self.dispatch(line, message, action)
                    }
                };
                match &verdict {
                    Verdict::Forward => self.record_sent(line, Some(&message)),
                    // A response with another id, or the rest of a batch.
                    Verdict::Replace(other) => {
                        let is_batch = matches!(message, Message::Batch(_));
                        let rest = is_batch.then(|| Message::parse(other).ok()).flatten();
                        self.record_sent(other, rest.as_ref());
                    }
                    Verdict::Drop | Verdict::Abandon => {}
                }
                verdict
            }
            Err(why) => {
                self.notes.push(LineNote::Malformed(Side::App, why));
                // An error with the id of another request would count as its response.
                let is_taken = |key: &Key| self.in_flight.stage(key).is_some();
                let refused = reply::malformed(line, why, is_taken);
                self.to_app.extend(refused);
                self.malformed_answer_of_app(line, why);
                Verdict::Drop
            }
        }
    }

    /// Sends the server an error in place of a malformed response of the app.
    fn malformed_answer_of_app(&mut self, line: &[u8], why: Malformed) {
        let Some(meant) =
            RecoveredFields::of(without_prefix(line)).filter(|meant| meant.has_outcome)
        else {
            return;
        };
        for id in meant.answers() {
            if let Some(key) = Key::of(id.as_bytes())
                && let Some(shown) = self.server_requests.answer(&key)
            {
                let id = match shown {
                    AppId::Unchanged => id.into_bytes(),
                    AppId::Replaced(id) => id,
                };
                let instead = reply::malformed_answer(&id, why);
                self.to_upstream.push_back(instead);
            }
        }
    }

    fn dispatch(&mut self, line: &[u8], message: &Message<'_>, action: AppAction) -> Verdict {
        let clear = self.can_forward_now();
        let ahead = match action {
            AppAction::Drop => return Verdict::Drop,
            AppAction::Send | AppAction::SendNow if clear => return Verdict::Forward,
            AppAction::SendNowAs(edit) if clear => return Verdict::Replace(edit.of_line(line)),
            AppAction::Send => {
                let requests = request_in(message).into_iter().collect();
                self.queue.push(line.to_vec(), requests);
                return Verdict::Drop;
            }
            AppAction::SendNow => line.to_vec(),
            AppAction::SendNowAs(edit) => edit.of_line(line),
        };
        self.to_upstream.push_back(ahead);
        Verdict::Drop
    }

    /// Splits a batch into messages that are queued and messages for this upstream only.
    fn batch_from_app(&mut self, line: &[u8], batch: &Batch<'_>) -> Verdict {
        let clear = self.can_forward_now();
        let mut untouched = true;
        let mut send_now = Vec::new();
        let mut queued = Vec::new();
        for member in &batch.members {
            match self.decide_app_message(line, &member.message, true) {
                AppAction::Drop => untouched = false,
                AppAction::Send if !clear => queued.push(member),
                AppAction::Send | AppAction::SendNow => {
                    send_now.push(Cow::Borrowed(member.whole.bytes()));
                }
                AppAction::SendNowAs(edit) => {
                    untouched = false;
                    send_now.push(Cow::Owned(edit.of_member(member)));
                }
            }
        }
        // Before the messages are joined: a long batch is not copied in vain.
        if clear && untouched {
            return Verdict::Forward;
        }
        // A later message may have cancelled an earlier one, and yet another may have reused its id.
        let mut seen = BTreeSet::new();
        queued.reverse();
        queued.retain(|member| {
            request_in(&member.message)
                .is_none_or(|key| self.in_flight.stage(&key).is_some() && seen.insert(key))
        });
        queued.reverse();
        if let Some(waiting) = batch::join(queued.iter().map(|member| member.whole.bytes())) {
            let requests = queued
                .iter()
                .filter_map(|member| request_in(&member.message));
            self.queue.push(waiting, requests.collect());
        }
        match batch::join(send_now) {
            None => Verdict::Drop,
            Some(rest) if clear => Verdict::Replace(rest),
            Some(rest) => {
                self.to_upstream.push_back(rest);
                Verdict::Drop
            }
        }
    }

    fn decide_app_message(
        &mut self,
        line: &[u8],
        message: &Message<'_>,
        in_batch: bool,
    ) -> AppAction {
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
            // Batches are split before, and do not nest.
            Message::Batch(_) => AppAction::Drop,
        }
    }

    fn request_from_app(
        &mut self,
        line: &[u8],
        request: &Request<'_>,
        in_batch: bool,
    ) -> AppAction {
        let id = request.id.raw();
        // Checked before the key is computed, which is as long.
        if !self.in_flight.has_room_for_id(id) {
            self.to_app.push_back(reply::long_id(id));
            return AppAction::Drop;
        }
        let key = request.id.key();
        if !key.is_acceptable() {
            self.to_app.push_back(reply::odd_id(id));
            self.notes.push(LineNote::OddId(Side::App, key));
            return AppAction::Drop;
        }
        if self.in_flight.stage(&key).is_some() || self.own_requests.is_open(&key) {
            self.to_app.push_back(reply::duplicate_id(id, &key));
            self.notes.push(LineNote::DuplicateId(Side::App, key));
            return AppAction::Drop;
        }
        if self.in_flight.is_full() {
            self.to_app.push_back(reply::too_many(id));
            return AppAction::Drop;
        }
        if request.method.is("ping") && !matches!(self.phase, Phase::Open) {
            self.to_app.push_back(reply::pong(id));
            return AppAction::Drop;
        }
        if let Phase::GivenUp(refusal) = &self.phase {
            self.to_app.push_back(refusal.reply(id));
            return AppAction::Drop;
        }
        // The protocol has no `initialize` in a batch; one that is there is replayed like any other request.
        if request.method.is("initialize") && !in_batch {
            return self.initialize_from_app(line, request, key);
        }
        let stage = match self.can_forward_now() {
            true => Stage::Sent,
            false => Stage::Queued(self.queue.next_position()),
        };
        self.in_flight.insert(key, request, stage);
        AppAction::Send
    }

    fn initialize_from_app(&mut self, line: &[u8], request: &Request<'_>, key: Key) -> AppAction {
        // It is stored for later upstreams, in more than one copy on its way there.
        if line.len() > INITIALIZE_LIMIT {
            self.to_app
                .push_back(reply::long_initialize(request.id.raw()));
            return AppAction::Drop;
        }
        if self.handshake.is_some() {
            let refused = reply::second_initialize(request.id.raw());
            self.to_app.push_back(refused);
            self.notes.push(Note::SecondInitialize);
            return AppAction::Drop;
        }
        self.in_flight
            .insert(key.clone(), request, Stage::Handshake);
        self.handshake = Some(Handshake::begun(key, line));
        match self.phase {
            Phase::Open => AppAction::SendNow,
            // It is the first line for the next upstream.
            Phase::Detached | Phase::Handshaking | Phase::GivenUp(_) => AppAction::Drop,
        }
    }

    fn notification_from_app(
        &mut self,
        line: &[u8],
        notification: &Notification<'_>,
        in_batch: bool,
    ) -> AppAction {
        match notification.cancelled() {
            Ok(Some(id)) => return self.cancel_from_app(&id),
            Ok(None) => {}
            Err(why) => {
                self.notes.push(LineNote::Malformed(Side::App, why));
                return AppAction::Drop;
            }
        }
        if let Some(handshake) = &mut self.handshake
            && !in_batch
            && notification.method.is("notifications/initialized")
            && handshake.confirm(line)
        {
            return match self.phase {
                Phase::Open => AppAction::SendNow,
                // It follows the response to `initialize`.
                Phase::Detached | Phase::Handshaking | Phase::GivenUp(_) => AppAction::Drop,
            };
        }
        match self.phase {
            Phase::GivenUp(_) => {
                self.notes.push(Note::NotificationLost);
                AppAction::Drop
            }
            Phase::Detached | Phase::Handshaking | Phase::Open => AppAction::Send,
        }
    }

    fn cancel_from_app(&mut self, id: &Id<'_>) -> AppAction {
        // No request has such an id, and its key would be as long.
        if id.raw().len() > MAX_ID {
            self.notes.push(Note::LongCancel);
            return AppAction::Drop;
        }
        let key = &id.key();
        if self.in_flight.stage(key).is_none()
            && let Some(meant) = self.in_flight.same_number(key)
        {
            let new = self.in_flight.spelled(&meant).unwrap_or_default();
            let place = id.part().range();
            return match self.cancel(&meant) {
                AppAction::SendNow => AppAction::SendNowAs(Edit { place, new }),
                other => other,
            };
        }
        self.cancel(key)
    }

    fn cancel(&mut self, key: &Key) -> AppAction {
        match self.in_flight.stage(key) {
            Some(Stage::Sent) => {
                self.in_flight.cancel(key);
                AppAction::SendNow
            }
            Some(Stage::Queued(position)) => {
                self.queue.cancel(position, key);
                self.in_flight.remove(key);
                AppAction::Drop
            }
            Some(Stage::Handshake) => {
                self.notes.push(Note::InitializeCancelled);
                AppAction::Drop
            }
            Some(Stage::Cancelled) | None => {
                let note = LineNote::UnknownCancel(Side::App, key.clone());
                self.notes.push(note);
                AppAction::Drop
            }
        }
    }

    fn response_from_app(&mut self, response: &Response<'_>) -> AppAction {
        let key = response.id.map(|id| id.key());
        if let (Some(id), Some(key)) = (response.id, &key)
            && let Some(known) = self.server_requests.answer(key)
        {
            let place = id.part().range();
            return match known {
                AppId::Unchanged => AppAction::SendNow,
                AppId::Replaced(new) => AppAction::SendNowAs(Edit { place, new }),
            };
        }
        self.notes.push(LineNote::UnknownAnswer(Side::App, key));
        AppAction::Drop
    }
}

fn request_in(message: &Message<'_>) -> Option<Key> {
    match message {
        Message::Request(request) => Some(request.id.key()),
        Message::Notification(_) | Message::Response(_) | Message::Batch(_) => None,
    }
}
