//! Handles lines of the server.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::lifetime::ClientId;
use crate::message::repair::{self, RecoveredFields};
use crate::message::{
    Key, Line, Malformed, Message, Notification, Outcome, Part, Response, Scan, reply,
};
use crate::note::LineNote;
use crate::time::Moment;

use super::calls::{AssignedId, Call, Kind, Waiter};
use super::class::Era;
use super::lists::List;
use super::raw_message::{PartEdit, RawMessage};
use super::tasks::is_task_status;
use super::{Lane, Mux, Note, Side, Unaddressed};

/// Member of `_meta` with the subscription id of a notification (modern).
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Maximum bytes of copies of one line of the server for clients with different ids.
const COPIED_BYTES: usize = 16 << 20;

/// Maximum messages of a server's batch times the clients of the server.
const MAX_DELIVERIES: usize = 200_000;
/// A batch may have this many messages, however many clients there are.
const MIN_BATCH_LIMIT: usize = 100;

impl Mux {
    /// Handles a line of the server.
    ///
    /// A response goes to the clients that wait for it. A late, duplicate or unknown response is dropped. An error
    /// without an id is dropped unless it can be meant for one client only. A malformed line is repaired, replaced by
    /// an error response, or dropped: some apps disconnect on malformed lines.
    pub fn handle_server_line<'a>(&mut self, line: impl Into<Line<'a>>, now: Moment) {
        let line = line.into();
        if self.try_server_line(line, now) {
            let line = line.bytes().to_vec().into();
            self.handle_split_server_line(line, &Scan::default(), now);
        }
    }

    /// Handles a line of the server. `true`: not handled, because some apps would read it as several lines.
    pub(super) fn try_server_line(&mut self, line: Line<'_>, now: Moment) -> bool {
        self.copied = 0;
        let parsed = match self.class.is_shared() {
            true => Message::parse_as_one(line),
            false => Message::parse(line),
        };
        match parsed {
            Ok(Message::Batch(batch)) if batch.members.len() > self.server_batch_limit() => {
                self.malformed_from_server(line.bytes(), Malformed::LongBatch, now);
                return false;
            }
            Ok(Message::Batch(batch)) => {
                for member in &batch.members {
                    let raw = RawMessage::member(member, line.bytes().len());
                    self.message_from_server(&raw, &member.message, now);
                }
            }
            Ok(message) => self.message_from_server(&RawMessage::line(line.bytes()), &message, now),
            Err(why) if why.is_split(line.bytes()) => return true,
            Err(why) => {
                self.malformed_from_server(line.bytes(), why, now);
                return false;
            }
        }
        self.release_ready(now);
        false
    }

    /// Maximum messages of a server's batch: each may go to all clients, while nobody else is served.
    fn server_batch_limit(&self) -> usize {
        (MAX_DELIVERIES / self.clients.len().max(1)).max(MIN_BATCH_LIMIT)
    }

    /// Handles a line that is not a message. If its text can be repaired, the repaired line is handled. Else the side
    /// that waits for it gets an error: a client, if it was meant as a response; the server, if it was meant as a
    /// request.
    pub(super) fn malformed_from_server(&mut self, line: &[u8], why: Malformed, now: Moment) {
        if let Some(repaired) = repair::repaired(line, why) {
            self.notes.push(LineNote::Repaired(Side::Server, why));
            return self.handle_server_line(&repaired, now);
        }
        self.notes.push(LineNote::Malformed(Side::Server, why));
        let mut ids = Vec::new();
        match RecoveredFields::of(line) {
            Some(meant) if meant.has_method => {
                if meant.id.is_some() {
                    self.refuse_server(line, why);
                }
            }
            Some(meant) => ids = meant.answers(),
            None => {
                ids = self.pending_in_batch(line);
                if why == Malformed::LongBatch {
                    self.refuse_server(line, why);
                }
            }
        }
        for id in ids {
            let instead = reply::malformed_answer(id.as_bytes(), why);
            self.handle_server_line(&instead, now);
        }
        self.release_ready(now);
    }

    /// The ids of the calls in flight that this malformed or too long batch answers.
    fn pending_in_batch(&self, line: &[u8]) -> Vec<String> {
        let calls = self.calls.in_flight().count();
        let mut pending = BTreeSet::new();
        repair::for_each_element(line, |member| {
            let ids = member.answers();
            let ids = ids.iter().filter_map(|id| Key::of(id.as_bytes()));
            let answered = ids.filter_map(|key| assigned(&key));
            pending.extend(answered.filter(|it| self.calls.get(*it).is_some()));
            match pending.len() < calls {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        pending.into_iter().map(|it| it.to_string()).collect()
    }

    fn refuse_server(&mut self, line: &[u8], why: Malformed) {
        let refused = reply::malformed(line, why, |key| self.server_requests.is_open(key));
        for line in refused {
            self.send_to_server(Lane::Own, line);
        }
    }

    fn message_from_server(&mut self, raw: &RawMessage<'_>, message: &Message<'_>, now: Moment) {
        match message {
            Message::Request(request) => self.request_from_server(raw, request, now),
            Message::Notification(notification) => {
                self.notification_from_server(raw, notification);
            }
            Message::Response(response) => self.response_from_server(raw, response, now),
            // Batches are split before, and do not nest.
            Message::Batch(_) => {}
        }
    }

    fn response_from_server(&mut self, raw: &RawMessage<'_>, response: &Response<'_>, now: Moment) {
        if response.is_error_without_id() {
            return self.error_without_id(raw);
        }
        let key = response.id.map(|id| id.key());
        if let (Some(id), Some(assigned)) = (response.id, key.as_ref().and_then(assigned)) {
            if let Some(call) = self.calls.take(assigned) {
                self.latency.answered(&call, now);
                return self.call_answered(assigned, &call, raw, (&id.part(), response), now);
            }
            if let Some(call) = self.calls.take_late_response(assigned) {
                // No client waits for it, but it may have created a task.
                if let Outcome::Result(result) = response.outcome {
                    self.record_new_task(&result, &call.session, None);
                }
                return;
            }
        }
        self.notes.push(LineNote::UnknownAnswer(Side::Server, key));
    }

    /// Delivers an error that answers no request. It may quote anything that a client sent, be it a notification long ago, so
    /// it is delivered only if a single session ever used this server.
    fn error_without_id(&mut self, raw: &RawMessage<'_>) {
        let only_session = self.sessions.only_session();
        match only_session.and_then(|session| self.client_of(&session)) {
            Some(client) => self.send_edited(client, raw, &[]),
            None => {
                let note = LineNote::UnknownAnswer(Side::Server, None);
                self.notes.push(note);
            }
        }
    }

    fn call_answered(
        &mut self,
        assigned: AssignedId,
        call: &Call,
        raw: &RawMessage<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
        now: Moment,
    ) {
        self.end_turn(assigned);
        if let Outcome::Error(error) = &response.outcome {
            self.elicitations_in_error(call, error);
        }
        match &call.kind {
            Kind::Initialize => self.initialize_answered(call, raw, id, response),
            Kind::List(key) => {
                self.list_answered(assigned, call, key, raw, (id, response), now);
            }
            Kind::Subscribe(uri) => {
                self.subscribe_answered(assigned, call, uri, raw, (id, response));
            }
            Kind::Level(before) => {
                self.level_answered(assigned, call, *before, response);
                self.deliver(call, raw, id);
            }
            Kind::Discover => {
                self.discovered(response);
                self.deliver(call, raw, id);
            }
            Kind::OddDiscover => {
                if let Outcome::Result(_) = response.outcome {
                    self.discovered(response);
                }
                self.deliver(call, raw, id);
            }
            Kind::Task { task, ends } => {
                self.task_answered(call, (task, *ends), raw, (id, response));
            }
            Kind::TaskList => self.task_list_answered(call, raw, (id, response)),
            Kind::Listen => self.listen_answered(call, raw, (id, response)),
            Kind::Unsubscribe => {
                self.deliver(call, raw, id);
                if call.session.is_none() {
                    self.own_unsubscribe_answered();
                }
            }
            Kind::LateInitialize => self.late_initialize_answered(call, raw, (id, response)),
            Kind::Plain | Kind::Turn => {
                self.lists.may_have_changed(&self.handshake);
                if let (Outcome::Result(result), Some(session)) = (response.outcome, &call.session)
                {
                    let token = call.token.clone().map(|token| (assigned, token));
                    self.record_new_task(&result, session, token);
                }
                self.deliver(call, raw, id);
            }
        }
    }

    /// Sends a response to all clients that wait for it, each with its own id.
    pub(super) fn deliver(&mut self, call: &Call, raw: &RawMessage<'_>, id: &Part<'_>) {
        self.deliver_to(&call.waiters, raw, id);
    }

    /// Sends a response to these clients, each with its own id. Past the limit on copies, clients get an error.
    pub(super) fn deliver_to(&mut self, waiters: &[Waiter], raw: &RawMessage<'_>, id: &Part<'_>) {
        let copies = match waiters.len() {
            0 | 1 => 1,
            _ => self.copies_of(raw),
        };
        for (nth, waiter) in waiters.iter().enumerate() {
            if nth >= copies {
                let line = reply::not_copied(&waiter.id);
                self.answer(waiter.client, waiter.batch, line);
                continue;
            }
            if nth > 0 {
                self.copied += raw.bytes().len();
            }
            let edits: [PartEdit<'_>; 1] = [(*id, &waiter.id)];
            match waiter.batch {
                None => self.send_edited(waiter.client, raw, &edits),
                batch => {
                    let length = raw.bytes().len();
                    let instead = self.batches.error_instead(batch, length, &waiter.id);
                    let line = instead.unwrap_or_else(|| raw.with(&edits));
                    self.answer(waiter.client, batch, line);
                }
            }
        }
    }

    /// Number of clients that may get a copy of this message: at least one, and at most [`COPIED_BYTES`] for all
    /// copies of one line.
    pub(super) fn copies_of(&self, raw: &RawMessage<'_>) -> usize {
        let room = COPIED_BYTES.saturating_sub(self.copied);
        (room / raw.bytes().len().max(1)).max(1)
    }

    /// Sends the final response of a subscription, which contains the subscription id once more.
    fn listen_answered(
        &mut self,
        call: &Call,
        raw: &RawMessage<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        let Some(waiter) = call.waiters.first() else {
            return;
        };
        let named;
        let mut edits: Vec<PartEdit<'_>> = vec![(*id, &waiter.id)];
        if let Outcome::Result(result) = response.outcome
            && let Ok(Some(name)) = result.at(&["_meta", SUBSCRIPTION])
        {
            named = in_same_form(&name, &waiter.id);
            edits.push((name, &named));
        }
        let line = raw.with(&edits);
        self.answer(waiter.client, waiter.batch, line);
    }

    fn notification_from_server(&mut self, raw: &RawMessage<'_>, notification: &Notification<'_>) {
        let method = notification.method.name();
        match &*method {
            "notifications/tools/list_changed" => self.lists.changed(&[List::Tools]),
            "notifications/prompts/list_changed" => self.lists.changed(&[List::Prompts]),
            "notifications/resources/list_changed" => {
                self.lists.changed(&[List::Resources, List::Templates]);
            }
            _ => {}
        }
        if is_task_status(&method)
            && let Some(task) = &notification.params
        {
            self.record_task_status(task);
        }
        let passed = match (&*method, self.class.era()) {
            ("notifications/cancelled", _) => self.cancel_from_server(raw, notification),
            ("notifications/progress", _) => self.progress(raw, notification),
            _ if self.is_subscribed(notification) => self.of_subscription(raw, notification),
            ("notifications/message", Era::Legacy) => {
                let audience = self.log_audience(notification);
                let audience = self.without_foreign_tasks(audience, notification);
                self.send_to_clients(audience, raw);
                Ok(())
            }
            ("notifications/message", Era::Modern) => self.log_of_one(raw, notification),
            (
                "notifications/tools/list_changed"
                | "notifications/prompts/list_changed"
                | "notifications/resources/list_changed"
                | "notifications/resources/updated"
                | "notifications/subscriptions/acknowledged",
                Era::Modern,
            ) => {
                let what = Unaddressed::Subscription;
                self.notes.push(Note::Unaddressed(what));
                Ok(())
            }
            ("notifications/resources/updated", Era::Legacy) => {
                self.resource_updated(raw, notification);
                Ok(())
            }
            (method, _) if is_task_status(method) => {
                self.task_status(raw, notification);
                Ok(())
            }
            ("notifications/elicitation/complete", _)
                if let Some(client) = self.elicited(notification) =>
            {
                self.send_edited(client, raw, &[]);
                Ok(())
            }
            // It belongs to one client, but which one is unknown.
            ("notifications/elicitation/complete", _) if self.sessions.several => {
                self.notes.push(Note::Unaddressed(Unaddressed::Elicitation));
                Ok(())
            }
            // Lists that changed for all clients.
            (
                "notifications/tools/list_changed"
                | "notifications/prompts/list_changed"
                | "notifications/resources/list_changed",
                Era::Legacy,
            ) => {
                self.send_to_clients(self.recipients(), raw);
                Ok(())
            }
            _ => {
                let audience = self.without_foreign_tasks(self.recipients(), notification);
                self.send_to_clients(audience, raw);
                Ok(())
            }
        };
        if let Err(why) = passed {
            self.notes.push(LineNote::Malformed(Side::Server, why));
        }
    }

    /// The client of the elicitation that this notification completes.
    fn elicited(&self, notification: &Notification<'_>) -> Option<ClientId> {
        let id = notification.params?.member("elicitationId").ok()??;
        self.server_requests.elicited(&id.string()?)
    }

    /// Handles a cancellation by the server: of a server request, or, since 2026-07-28, of a subscription, which is a
    /// client's request. No other client request: a server request with the same id may just have been answered.
    fn cancel_from_server(
        &mut self,
        raw: &RawMessage<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let Some(id) = notification.cancelled()? else {
            return Ok(());
        };
        let key = id.key();
        if let Some(asked) = self.server_requests.cancel(&key) {
            if let Some((client, shown)) = asked {
                let line = raw.with(&[(id.part(), shown.to_string().as_bytes())]);
                self.send_to_client(client, line);
            }
            return Ok(());
        }
        if let Some(assigned) = assigned(&key)
            && self.listener(assigned).is_some()
            && let Some(call) = self.calls.take(assigned)
        {
            for waiter in &call.waiters {
                let line = raw.with(&[(id.part(), &waiter.id)]);
                self.send_to_client(waiter.client, line);
                if let Some(batch) = waiter.batch {
                    self.batch_request_done(batch, None);
                }
            }
            return Ok(());
        }
        self.notes.push(LineNote::UnknownCancel(Side::Server, key));
        Ok(())
    }

    fn progress(
        &mut self,
        raw: &RawMessage<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let token = match notification.params {
            Some(params) => params.member("progressToken")?,
            None => None,
        };
        if let Some(place) = token
            && let Some(assigned) = place.key().as_ref().and_then(assigned)
        {
            if let Some(call) = self.calls.get(assigned)
                && let (Some(waiter), Some(token)) = (call.waiters.first(), &call.token)
            {
                let line = raw.with(&[(place, token)]);
                self.send_to_client(waiter.client, line);
                return Ok(());
            }
            if let Some((session, token)) = self.tasks.token(assigned)
                && let Some(client) = self.client_of(session)
            {
                let line = raw.with(&[(place, token)]);
                self.send_to_client(client, line);
                return Ok(());
            }
            if self.calls.is_cancelled(assigned) {
                return Ok(());
            }
        }
        let what = Unaddressed::Progress;
        self.notes.push(Note::Unaddressed(what));
        Ok(())
    }

    /// Handles `notifications/resources/updated` (legacy).
    fn resource_updated(&mut self, raw: &RawMessage<'_>, notification: &Notification<'_>) {
        let params = notification.params;
        let uri = params.and_then(|it| it.member("uri").ok().flatten());
        let uri = uri.and_then(|uri| uri.string());
        let mut audience = match uri {
            // The only client of a private server gets all notifications.
            _ if !self.class.is_shared() => self.recipients().into_iter().collect(),
            Some(uri) => self.subscriptions.recipients(&uri),
            None => BTreeSet::new(),
        };
        audience.retain(|client| self.may_get_task_message(*client, notification));
        if audience.is_empty() {
            self.notes.push(Note::Unaddressed(Unaddressed::Update));
        }
        self.send_to_clients(audience, raw);
    }

    /// Whether a notification belongs to a subscription of the modern era.
    fn is_subscribed(&self, notification: &Notification<'_>) -> bool {
        let may_be = self.class.era() == Era::Modern || !self.class.is_shared();
        let says_so =
            |params: Part<'_>| !matches!(params.search_at(&["_meta", SUBSCRIPTION]), Ok(None));
        may_be && notification.params.is_some_and(says_so)
    }

    fn of_subscription(
        &mut self,
        raw: &RawMessage<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let params = notification.params;
        let name = params.map(|params| params.at(&["_meta", SUBSCRIPTION]));
        if let Some(name) = name.transpose()?.flatten()
            && let Some(assigned) = name.key().as_ref().and_then(assigned)
        {
            if let Some((client, id)) = self.listener(assigned) {
                if self.is_of_foreign_task(client, notification)
                    || !self.may_get_task_message(client, notification)
                {
                    self.notes.push(Note::Unaddressed(Unaddressed::Task));
                    return Ok(());
                }
                let line = raw.with(&[(name, &in_same_form(&name, id))]);
                self.send_to_client(client, line);
                return Ok(());
            }
            if self.calls.is_cancelled(assigned) {
                return Ok(());
            }
        }
        let what = Unaddressed::Subscription;
        self.notes.push(Note::Unaddressed(what));
        Ok(())
    }

    /// The client of this subscription, and its id there.
    fn listener(&self, assigned: AssignedId) -> Option<(ClientId, &[u8])> {
        let call = self.calls.get(assigned)?;
        let waiter = call.waiters.first()?;
        (call.kind == Kind::Listen).then_some((waiter.client, &waiter.id))
    }

    /// Sends a log message to the only client that the server works for, if exactly one of its requests wants log
    /// messages: the message names no request, and may be about any (modern).
    fn log_of_one(
        &mut self,
        raw: &RawMessage<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let candidates = self.candidates();
        let only = match (candidates.len(), candidates.first()) {
            (1, Some(Some(only))) if self.calls.has_one_that_logs(*only) => Some(*only),
            _ => None,
        };
        match only.filter(|client| self.may_get_task_message(*client, notification)) {
            Some(client) => self.send_to_client(client, raw.bytes().to_vec()),
            None => self.notes.push(Note::Unaddressed(Unaddressed::Log)),
        }
        Ok(())
    }
}

/// The assigned id of a key. Some servers answer 1 as `"1"` or `1.0`, which the official clients accept.
pub(super) fn assigned(key: &Key) -> Option<AssignedId> {
    let number = match key {
        Key::Number(number) => *number,
        Key::Text(_) | Key::Odd(_) => key.as_integer()?,
    };
    AssignedId::try_from(number).ok()
}

/// A client's id in place of an assigned one. It is a string if the server turned the assigned id into a string: the
/// client would get that without Kennel, too.
fn in_same_form<'i>(assigned: &Part<'_>, id: &'i [u8]) -> Cow<'i, [u8]> {
    match assigned.bytes().starts_with(b"\"") && !id.starts_with(b"\"") {
        true => Cow::Owned([b"\"", id, b"\""].concat()),
        false => Cow::Borrowed(id),
    }
}
