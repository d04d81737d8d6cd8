//! What follows from a line of the server.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::lifetime::ClientId;
use crate::message::repair::{self, Meant};
use crate::message::{
    Key, Line, Malformed, Message, Notification, Outcome, Part, Response, Scan, reply,
};
use crate::time::Moment;

use super::calls::{Call, Kind, Minted, Waiter};
use super::class::Era;
use super::lists::List;
use super::said::{Edit, Said};
use super::tasks::is_task_status;
use super::{Lane, Mux, Note, Side, Unaddressed};

/// Where a notification says which subscription it belongs to (modern).
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Maximum bytes of the copies that are made of one line of the server, for several clients that each have another id.
const COPIED_BYTES: usize = 16 << 20;

impl Mux {
    /// A line of the server.
    ///
    /// An answer goes to the clients that wait for it. A late, second or unknown answer is dropped. An error without an id is
    /// dropped unless it can be meant for one client only. A bad line is repaired, answered in its place, or dropped: some apps
    /// disconnect on one.
    pub fn from_server<'a>(&mut self, line: impl Into<Line<'a>>, now: Moment) {
        let line = line.into();
        if self.is_split_from_server(line, now) {
            let line = line.bytes().to_vec().into();
            self.hear_server_as_one(line, &Scan::default(), now);
        }
    }

    /// Hears a line of the server. `true`: nothing happened, for some apps would read it as several lines.
    pub(super) fn is_split_from_server(&mut self, line: Line<'_>, now: Moment) -> bool {
        self.copied = 0;
        let parsed = match self.class.is_shared() {
            true => Message::parse_as_one(line),
            false => Message::parse(line),
        };
        match parsed {
            Ok(Message::Batch(batch)) => {
                for member in &batch.members {
                    let said = Said::member(member, line.bytes().len());
                    self.message_from_server(&said, &member.message, now);
                }
            }
            Ok(message) => self.message_from_server(&Said::line(line.bytes()), &message, now),
            Err(why) if why.is_split(line.bytes()) => return true,
            Err(why) => {
                self.malformed_from_server(line.bytes(), why, now);
                return false;
            }
        }
        self.let_go(now);
        false
    }

    /// A line that is no message. If its text can be repaired, it is one. Else whoever waits for it gets an error: a
    /// client where it was meant as an answer, the server where it was meant as a request.
    pub(super) fn malformed_from_server(&mut self, line: &[u8], why: Malformed, now: Moment) {
        if let Some(repaired) = repair::repaired(line, why) {
            self.notes.push(Note::Repaired(Side::Server, why));
            return self.from_server(&repaired, now);
        }
        self.notes.push(Note::Malformed(Side::Server, why));
        let mut ids = Vec::new();
        match Meant::of(line) {
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
            self.from_server(&instead, now);
        }
        self.let_go(now);
    }

    /// The ids of the calls without an answer that this batch, which is malformed or too long, has answers for.
    fn pending_in_batch(&self, line: &[u8]) -> Vec<String> {
        let calls = self.calls.in_flight().count();
        let mut pending = BTreeSet::new();
        repair::for_each_element(line, |member| {
            let ids = member.answers();
            let ids = ids.iter().filter_map(|id| Key::of(id.as_bytes()));
            let answered = ids.filter_map(|key| minted(&key));
            pending.extend(answered.filter(|it| self.calls.get(*it).is_some()));
            match pending.len() < calls {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        pending.into_iter().map(|it| it.to_string()).collect()
    }

    fn refuse_server(&mut self, line: &[u8], why: Malformed) {
        let refused = reply::malformed(line, why, |key| self.asks.is_open(key));
        for line in refused {
            self.tell_server(Lane::Own, line);
        }
    }

    fn message_from_server(&mut self, said: &Said<'_>, message: &Message<'_>, now: Moment) {
        match message {
            Message::Request(request) => self.request_from_server(said, request, now),
            Message::Notification(notification) => {
                self.notification_from_server(said, notification);
            }
            Message::Response(response) => self.response_from_server(said, response, now),
            // No batch is in a batch, and a whole one is taken apart before.
            Message::Batch(_) => {}
        }
    }

    fn response_from_server(&mut self, said: &Said<'_>, response: &Response<'_>, now: Moment) {
        if response.is_error_without_id() {
            return self.error_without_id(said);
        }
        let key = response.id.map(|id| id.key());
        if let (Some(id), Some(minted)) = (response.id, key.as_ref().and_then(minted)) {
            if let Some(call) = self.calls.take(minted) {
                self.latency.answered(&call, now);
                return self.call_answered(minted, &call, said, (&id.part(), response), now);
            }
            if let Some(ghost) = self.calls.lay(minted) {
                // Nobody wants it, but it may have left a task behind.
                if let Outcome::Result(result) = response.outcome {
                    self.task_begun(&result, &ghost.session, None);
                }
                return;
            }
        }
        self.notes.push(Note::UnknownAnswer(Side::Server, key));
    }

    /// An error that answers no request. It may quote what a client sent, so only a client that must be meant hears it: the
    /// only one with requests in flight, or the only one attached.
    fn error_without_id(&mut self, said: &Said<'_>) {
        let candidates = self.candidates();
        let mut attached = self.clients.keys();
        let client = match (candidates.len(), candidates.first()) {
            (0, _) if self.handshake.is_under_way() => self.handshake.by,
            (0, _) => attached
                .next()
                .filter(|_| attached.next().is_none())
                .copied(),
            (1, Some(only)) => *only,
            _ => None,
        };
        match client.filter(|client| self.clients.contains_key(client)) {
            Some(client) => self.say_with(client, said, &[]),
            None => {
                let note = Note::UnknownAnswer(Side::Server, None);
                self.notes.push(note);
            }
        }
    }

    fn call_answered(
        &mut self,
        minted: Minted,
        call: &Call,
        said: &Said<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
        now: Moment,
    ) {
        self.turn_is_over(minted);
        if let Outcome::Error(error) = &response.outcome {
            self.elicitations_in_error(call, error);
        }
        match &call.kind {
            Kind::Initialize => self.initialize_answered(call, said, id, response),
            Kind::List(key) => {
                self.list_answered(minted, call, key, said, (id, response), now);
            }
            Kind::Subscribe(uri) => {
                self.subscribe_answered(minted, call, uri, said, (id, response));
            }
            Kind::Level(before) => {
                self.level_answered(minted, call, *before, response);
                self.deliver(call, said, id);
            }
            Kind::Discover => {
                self.discovered(response);
                self.deliver(call, said, id);
            }
            Kind::OddDiscover => {
                if let Outcome::Result(_) = response.outcome {
                    self.discovered(response);
                }
                self.deliver(call, said, id);
            }
            Kind::Task { task, ends } => {
                self.task_answered(call, (task, *ends), said, (id, response));
            }
            Kind::TaskList => self.task_list_answered(call, said, (id, response)),
            Kind::Listen => self.listen_answered(call, said, (id, response)),
            Kind::Unsubscribe => self.deliver(call, said, id),
            Kind::LateInitialize => self.late_initialize_answered(call, said, (id, response)),
            Kind::Plain | Kind::Turn => {
                self.lists.may_have_changed(&self.handshake);
                if let (Outcome::Result(result), Some(session)) = (response.outcome, &call.session)
                {
                    let token = call.token.clone().map(|token| (minted, token));
                    self.task_begun(&result, session, token);
                }
                self.deliver(call, said, id);
            }
        }
    }

    /// Gives an answer to all who wait for it, each under its own id.
    pub(super) fn deliver(&mut self, call: &Call, said: &Said<'_>, id: &Part<'_>) {
        self.deliver_to(&call.waiters, said, id);
    }

    /// Gives an answer to some who wait for it, each under its own id. Of a very long one, those for whom no copy can be
    /// made get an error.
    pub(super) fn deliver_to(&mut self, waiters: &[Waiter], said: &Said<'_>, id: &Part<'_>) {
        let copies = match waiters.len() {
            0 | 1 => 1,
            _ => self.copies_of(said),
        };
        for (nth, waiter) in waiters.iter().enumerate() {
            if nth >= copies {
                let line = reply::not_copied(&waiter.id);
                self.answer(waiter.client, waiter.batch, line);
                continue;
            }
            if nth > 0 {
                self.copied += said.bytes().len();
            }
            let edits: [Edit<'_>; 1] = [(*id, &waiter.id)];
            match waiter.batch {
                None => self.say_with(waiter.client, said, &edits),
                batch => {
                    let length = said.bytes().len();
                    let instead = self.batches.error_instead(batch, length, &waiter.id);
                    let line = instead.unwrap_or_else(|| said.with(&edits));
                    self.answer(waiter.client, batch, line);
                }
            }
        }
    }

    /// How many clients may get this message at once, each a copy of its own: at least one, and so many that all copies of
    /// one line of the server have at most [`COPIED_BYTES`].
    pub(super) fn copies_of(&self, said: &Said<'_>) -> usize {
        let room = COPIED_BYTES.saturating_sub(self.copied);
        (room / said.bytes().len().max(1)).max(1)
    }

    /// A subscription ended, and its answer names it once more.
    fn listen_answered(
        &mut self,
        call: &Call,
        said: &Said<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        let Some(waiter) = call.waiters.first() else {
            return;
        };
        let named;
        let mut edits: Vec<Edit<'_>> = vec![(*id, &waiter.id)];
        if let Outcome::Result(result) = response.outcome
            && let Ok(Some(name)) = result.at(&["_meta", SUBSCRIPTION])
        {
            named = spelled_alike(&name, &waiter.id);
            edits.push((name, &named));
        }
        let line = said.with(&edits);
        self.answer(waiter.client, waiter.batch, line);
    }

    fn notification_from_server(&mut self, said: &Said<'_>, notification: &Notification<'_>) {
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
            self.task_seen(task);
        }
        let passed = match (&*method, self.class.era()) {
            ("notifications/cancelled", _) => self.cancel_from_server(said, notification),
            ("notifications/progress", _) => self.progress(said, notification),
            _ if self.is_subscribed(notification) => self.of_subscription(said, notification),
            ("notifications/message", Era::Legacy) => {
                let audience = self.log_audience(notification);
                let audience = self.without_foreign_tasks(audience, notification);
                self.say_to(audience, said);
                Ok(())
            }
            ("notifications/message", Era::Modern) => self.log_of_one(said, notification),
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
                self.resource_updated(said, notification);
                Ok(())
            }
            (method, _) if is_task_status(method) => {
                self.task_status(said, notification);
                Ok(())
            }
            ("notifications/elicitation/complete", _)
                if let Some(client) = self.elicited(notification) =>
            {
                self.say_with(client, said, &[]);
                Ok(())
            }
            // It is somebody's, and not known whose.
            ("notifications/elicitation/complete", _) if self.sessions.several => {
                self.notes.push(Note::Unaddressed(Unaddressed::Elicitation));
                Ok(())
            }
            // What changed for all is told to all.
            (
                "notifications/tools/list_changed"
                | "notifications/prompts/list_changed"
                | "notifications/resources/list_changed",
                Era::Legacy,
            ) => {
                self.say_to(self.audience(), said);
                Ok(())
            }
            _ => {
                let audience = self.without_foreign_tasks(self.audience(), notification);
                self.say_to(audience, said);
                Ok(())
            }
        };
        if let Err(why) = passed {
            self.notes.push(Note::Malformed(Side::Server, why));
        }
    }

    /// Who was asked what is complete now.
    fn elicited(&self, notification: &Notification<'_>) -> Option<ClientId> {
        let id = notification.params?.member("elicitationId").ok()??;
        self.asks.elicited(&id.string()?)
    }

    /// Of its own request; or, since 2026-07-28, of a subscription, which is a request of a client. No
    /// other: the server's own request with that id may just have been answered.
    fn cancel_from_server(
        &mut self,
        said: &Said<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let Some(id) = notification.cancelled()? else {
            return Ok(());
        };
        let key = id.key();
        if let Some(asked) = self.asks.cancel(&key) {
            if let Some((client, shown)) = asked {
                let line = said.with(&[(id.part(), shown.to_string().as_bytes())]);
                self.say(client, line);
            }
            return Ok(());
        }
        if let Some(minted) = minted(&key)
            && self.listener(minted).is_some()
            && let Some(call) = self.calls.take(minted)
        {
            for waiter in &call.waiters {
                let line = said.with(&[(id.part(), &waiter.id)]);
                self.say(waiter.client, line);
                if let Some(batch) = waiter.batch {
                    self.one_less(batch, None);
                }
            }
            return Ok(());
        }
        self.notes.push(Note::UnknownCancel(Side::Server, key));
        Ok(())
    }

    fn progress(
        &mut self,
        said: &Said<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let token = match notification.params {
            Some(params) => params.member("progressToken")?,
            None => None,
        };
        if let Some(place) = token
            && let Some(minted) = place.key().as_ref().and_then(minted)
        {
            if let Some(call) = self.calls.get(minted)
                && let (Some(waiter), Some(token)) = (call.waiters.first(), &call.token)
            {
                let line = said.with(&[(place, token)]);
                self.say(waiter.client, line);
                return Ok(());
            }
            if let Some((session, token)) = self.tasks.token(minted)
                && let Some(client) = self.client_of(session)
            {
                let line = said.with(&[(place, token)]);
                self.say(client, line);
                return Ok(());
            }
            if self.calls.is_ghost(minted) {
                return Ok(());
            }
        }
        let what = Unaddressed::Progress;
        self.notes.push(Note::Unaddressed(what));
        Ok(())
    }

    /// A resource changed (legacy).
    fn resource_updated(&mut self, said: &Said<'_>, notification: &Notification<'_>) {
        let params = notification.params;
        let uri = params.and_then(|it| it.member("uri").ok().flatten());
        let uri = uri.and_then(|uri| uri.string());
        let mut audience = match uri {
            // Its one client hears all that its server says.
            _ if !self.class.is_shared() => self.audience().into_iter().collect(),
            Some(uri) => self.subscriptions.audience(&uri),
            None => BTreeSet::new(),
        };
        audience.retain(|client| self.may_hear_of_task(*client, notification));
        if audience.is_empty() {
            self.notes.push(Note::Unaddressed(Unaddressed::Update));
        }
        self.say_to(audience, said);
    }

    /// Whether it says that it belongs to a subscription of the modern era.
    fn is_subscribed(&self, notification: &Notification<'_>) -> bool {
        let may_be = self.class.era() == Era::Modern || !self.class.is_shared();
        let says_so =
            |params: Part<'_>| !matches!(params.at_if_any(&["_meta", SUBSCRIPTION]), Ok(None));
        may_be && notification.params.is_some_and(says_so)
    }

    fn of_subscription(
        &mut self,
        said: &Said<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let params = notification.params;
        let name = params.map(|params| params.at(&["_meta", SUBSCRIPTION]));
        if let Some(name) = name.transpose()?.flatten()
            && let Some(minted) = name.key().as_ref().and_then(minted)
        {
            if let Some((client, id)) = self.listener(minted) {
                if self.is_of_foreign_task(client, notification)
                    || !self.may_hear_of_task(client, notification)
                {
                    self.notes.push(Note::Unaddressed(Unaddressed::Task));
                    return Ok(());
                }
                let line = said.with(&[(name, &spelled_alike(&name, id))]);
                self.say(client, line);
                return Ok(());
            }
            if self.calls.is_ghost(minted) {
                return Ok(());
            }
        }
        let what = Unaddressed::Subscription;
        self.notes.push(Note::Unaddressed(what));
        Ok(())
    }

    /// Who opened this subscription, and under which id.
    fn listener(&self, minted: Minted) -> Option<(ClientId, &[u8])> {
        let call = self.calls.get(minted)?;
        let waiter = call.waiters.first()?;
        (call.kind == Kind::Listen).then_some((waiter.client, &waiter.id))
    }

    /// A log message names no request (modern): it can only be of the one that wants any.
    fn log_of_one(
        &mut self,
        said: &Said<'_>,
        notification: &Notification<'_>,
    ) -> Result<(), Malformed> {
        let logging: Vec<_> = self.calls.asked().filter(|call| call.logs).collect();
        let haunted = self.calls.ghosts().any(|ghost| ghost.logs);
        let one = match logging[..] {
            [call] if !haunted => call.waiters.first().map(|it| it.client),
            _ => None,
        };
        match one.filter(|client| self.may_hear_of_task(*client, notification)) {
            Some(client) => self.say(client, said.bytes().to_vec()),
            None => self.notes.push(Note::Unaddressed(Unaddressed::Log)),
        }
        Ok(())
    }
}

/// An id that may have been minted here. Some servers answer 1 as `"1"` or `1.0`, which the official clients accept.
pub(super) fn minted(key: &Key) -> Option<Minted> {
    let number = match key {
        Key::Number(number) => *number,
        Key::Text(_) | Key::Odd(_) => key.as_integer()?,
    };
    Minted::try_from(number).ok()
}

/// A client's id in the place of a minted one: as a string, where the server made a string of the minted one. That is
/// what the client would hear without Kennel.
fn spelled_alike<'i>(minted: &Part<'_>, id: &'i [u8]) -> Cow<'i, [u8]> {
    match minted.bytes().starts_with(b"\"") && !id.starts_with(b"\"") {
        true => Cow::Owned([b"\"", id, b"\""].concat()),
        false => Cow::Borrowed(id),
    }
}
