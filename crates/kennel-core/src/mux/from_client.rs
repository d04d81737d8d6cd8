//! Handles lines of clients.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::smallvec;

use crate::lifetime::ClientId;
use crate::message::{
    Key, Line, Malformed, Message, Notification, Part, Request, Response, Scan, reply,
};
use crate::note::LineNote;
use crate::time::Moment;

use super::calls::{AssignedId, Call, IdDigits, Kind};
use super::class::{Envelope, Era, Opening, opening};
use super::handshake::waiter;
use super::lists::List;
use super::raw_message::{ClientMessage, RawMessage};
use super::refused::{Refused, cancel_call};
use super::tasks::is_task_status;
use super::{Lane, Mux, Note, Side};

/// Member of `_meta` with the log level of a request (modern).
pub(super) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// The result of handling a client's line.
pub(super) enum ClientLine {
    Handled,
    /// Some servers would read it as several lines. It is not handled.
    Split,
    /// It is for a legacy server. It is not handled.
    StartsLegacySession,
}

impl Mux {
    /// Handles a line of a client.
    ///
    /// Pings are answered here. A request with an id that some SDKs drop or that is in flight is refused with
    /// `-32600`, and so are messages that the era or protocol version does not have. A line that is not a message is
    /// answered with an error, unless it is blank or was meant as a notification or response.
    ///
    /// Returns `false` for a line that is not handled: it is for the server of another class
    /// ([`return_legacy_sessions`](Self::return_legacy_sessions)).
    pub fn handle_client_line<'a>(
        &mut self,
        client: ClientId,
        line: impl Into<Line<'a>>,
        now: Moment,
    ) -> bool {
        let line = line.into();
        match self.try_client_line(client, line, now) {
            ClientLine::Handled => true,
            ClientLine::StartsLegacySession => false,
            ClientLine::Split => {
                let line = line.bytes().to_vec().into();
                let rest = self.handle_split_client_line(client, line, &Scan::default(), now);
                rest.is_none()
            }
        }
    }

    /// Handles a line of a client, if this is the server for it and no server would read it as several lines.
    pub(super) fn try_client_line(
        &mut self,
        client: ClientId,
        line: Line<'_>,
        now: Moment,
    ) -> ClientLine {
        if !self.clients.contains_key(&client) {
            self.notes.push(Note::NotAttached(client));
            return ClientLine::Handled;
        }
        let parsed = match self.class.is_shared() {
            true => Message::parse_exact(line),
            false => Message::parse(line),
        };
        if let Ok(message) = &parsed {
            if self.starts_legacy_session(message) {
                return ClientLine::StartsLegacySession;
            }
            self.check_roots_before(client, message, now);
        }
        match parsed {
            Ok(message) if self.queue_for_roots(client, line.bytes(), &message) => {}
            Err(why) if why.is_split(line.bytes()) => return ClientLine::Split,
            parsed => self.handle_parsed_client_line(client, line.bytes(), parsed, now),
        }
        self.release_ready(now);
        ClientLine::Handled
    }

    /// Whether a client of this modern server starts a legacy session that is not handled here. A server that is known to
    /// be modern answers `initialize` itself.
    fn starts_legacy_session(&self, message: &Message<'_>) -> bool {
        self.returns_legacy_sessions
            && self.class.era() == Era::Modern
            && self.knows_discover() != Some(true)
            && matches!(opening(message), Opening::Legacy(_))
    }

    pub(super) fn handle_parsed_client_line(
        &mut self,
        client: ClientId,
        line: &[u8],
        parsed: Result<Message<'_>, Malformed>,
        now: Moment,
    ) {
        match parsed {
            Ok(Message::Batch(batch)) => self.batch_from_client(client, &batch, now),
            Ok(message) => {
                let from = ClientMessage {
                    client,
                    raw: RawMessage::line(line),
                    batch: None,
                    now,
                };
                self.message_from_client(from, &message);
            }
            Err(why) => {
                let side = Side::Client(client);
                self.notes.push(LineNote::Malformed(side, why));
                // From a newer shim, not from its app.
                if why == Malformed::Reserved {
                    return;
                }
                // An error with the id of another request would count as its response. While a batch is open, its
                // sent responses are unknown, so any id may be taken.
                let has_batch = self.batches.is_open_for(client);
                let is_taken = |key: &Key| has_batch || self.is_asked(client, key);
                for refused in reply::malformed(line, why, is_taken) {
                    self.send_to_client(client, refused);
                }
            }
        }
    }

    pub(super) fn message_from_client(&mut self, from: ClientMessage<'_>, message: &Message<'_>) {
        // An earlier message of the batch may have got the client dismissed.
        if !self.clients.contains_key(&from.client) {
            return;
        }
        match message {
            Message::Request(request) => self.request_from_client(&from, request),
            Message::Notification(notification) => {
                self.notification_from_client(&from, notification);
            }
            Message::Response(response) => self.response_from_client(&from, response),
            // Batches are split before, and do not nest.
            Message::Batch(_) => {}
        }
    }

    fn request_from_client(&mut self, from: &ClientMessage<'_>, request: &Request<'_>) {
        let id = request.id.raw();
        let key = request.id.key();
        let side = Side::Client(from.client);
        if !key.is_acceptable() {
            self.answer(from.client, from.batch, reply::odd_id(id));
            self.notes.push(LineNote::OddId(side, key));
            return;
        }
        if self.is_asked(from.client, &key) {
            let refused = reply::duplicate_id(id, &key);
            self.answer(from.client, from.batch, refused);
            self.notes.push(LineNote::DuplicateId(side, key));
            return;
        }
        // The modern era has no ping: the server answers with an error.
        if request.method.is("ping") && self.class.era() == Era::Legacy {
            self.answer(from.client, from.batch, reply::pong(id));
            return;
        }
        if self.calls.count_of(from.client) >= reply::IN_FLIGHT_LIMIT {
            self.answer(from.client, from.batch, reply::too_many(id));
            return;
        }
        if self.calls.bytes_of(from.client) >= reply::CALLS_LIMIT {
            self.answer(from.client, from.batch, reply::too_much(id));
            return;
        }
        if reply::has_long_name(request) {
            self.answer(from.client, from.batch, reply::long_name(id));
            return;
        }
        self.requests += u64::from(!request.method.is("ping"));
        if let Err(refused) = self.route(from, request) {
            if let Refused::Malformed(why) = refused {
                self.notes.push(LineNote::Malformed(side, why));
            }
            self.answer(from.client, from.batch, refused.reply(&request.id));
        }
    }

    /// Whether this client has a request with this id in flight or queued.
    pub(super) fn is_asked(&self, client: ClientId, key: &Key) -> bool {
        self.calls.find(client, key).is_some() || self.roots_gate.has(client, key)
    }

    fn route(&mut self, from: &ClientMessage<'_>, request: &Request<'_>) -> Result<(), Refused> {
        let method = request.method.name();
        if self.class.is_shared() {
            self.check_era(from, request, &method)?;
            if self.is_related_to_foreign_task(from.client, request.params)? {
                self.notes.push(Note::ForeignTask(from.client));
                return Err(Refused::foreign_task(&request.id));
            }
        }
        if let Some(list) = List::of(&method) {
            return self.list_from_client(from, request, list);
        }
        let legacy = self.class.era() == Era::Legacy;
        let kind = match &*method {
            "initialize" if legacy => return self.initialize(from, request),
            "initialize" => Kind::LateInitialize,
            "resources/subscribe" if legacy => return self.subscribe(from, request),
            "resources/unsubscribe" if legacy => return self.unsubscribe(from, request),
            "logging/setLevel" if legacy => return self.set_level(from, request),
            "tasks/list" => Kind::TaskList,
            _ if method.starts_with("tasks/") => self.task_request_kind(from, request, &method)?,
            "subscriptions/listen" => Kind::Listen,
            "tools/call" if self.policy.in_turn => Kind::Turn,
            // Some servers look at the method only, and would process an unchecked notification.
            _ if method.starts_with("notifications/") && self.class.is_shared() => {
                self.notes.push(Note::NotificationWithId(from.client));
                let message = "a notification has no id: send it without one";
                return Err(Refused::method_not_found(&request.id, message));
            }
            _ => Kind::Plain,
        };
        self.forward(from, request, kind, Lane::Of(from.client), None)?;
        Ok(())
    }

    /// Refuses a request of the other era: servers fix their era at the first request, or mix them up.
    fn check_era(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
        method: &str,
    ) -> Result<(), Refused> {
        let id = &request.id;
        let refused = match (self.class.era(), method, Envelope::of(request)?) {
            // Some legacy servers exit on it.
            (Era::Legacy, "server/discover", _) => Refused::method_not_found(
                id,
                "this session uses initialize; server/discover is not available",
            ),
            (Era::Legacy, _, Envelope::Whole | Envelope::Broken) => Refused::invalid_request(
                id,
                "this session began with initialize; a request must not contain a protocol version",
            ),
            // The modern era has neither. Only the server knows its error response; but `initialize` might switch it
            // to the legacy era, so it is forwarded only for a single client.
            (Era::Modern, "ping", _) => return Ok(()),
            (Era::Modern, "initialize", _) if self.clients.len() == 1 => return Ok(()),
            (Era::Modern, "initialize", _) => Refused::method_not_found(
                id,
                "this server speaks 2026-07-28 or later, which has no initialize",
            ),
            (Era::Modern, _, Envelope::None | Envelope::Broken) => Refused::invalid_params(
                id,
                "_meta lacks io.modelcontextprotocol/protocolVersion or io.modelcontextprotocol/clientCapabilities",
            ),
            (Era::Legacy, _, Envelope::None) | (Era::Modern, _, Envelope::Whole) => return Ok(()),
        };
        self.notes.push(Note::WrongEra(from.client));
        Err(refused)
    }

    /// Forwards a request with an assigned id. Its progress token becomes that id, too: SDKs use the request id as
    /// token, so the tokens of two clients would collide.
    pub(super) fn forward(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
        kind: Kind,
        lane: Lane,
        edit: Option<(Part<'_>, &[u8])>,
    ) -> Result<AssignedId, Refused> {
        let token = progress_token(request, self.class.is_shared())?;
        let may_log = self.class.era() == Era::Modern;
        let logs = may_log && in_meta(request, LOG_LEVEL)?.is_some();
        let assigned = self.calls.assign_id();
        let new = IdDigits::of(assigned);
        let id = (request.id.part(), &new[..]);
        let in_turn = kind == Kind::Turn;
        let mut waiter = waiter(from, request);
        waiter.bytes += kind.bytes() + token.map_or(0, |place| place.bytes().len());
        let call = Call {
            kind,
            lane,
            waiters: smallvec![waiter],
            session: Some(self.client(from.client).session.clone()),
            token: token.map(|place| place.bytes().to_vec()),
            logs,
            asked: Some(from.now),
            counts_for: None,
        };
        self.calls.insert(assigned, call);
        let new_token = token.map(|place| (place, assigned_token(&place, &new)));
        let new_token = new_token.as_ref().map(|(place, new)| (*place, &new[..]));
        let more = new_token.into_iter().chain(edit);
        let more: Vec<_> = more.collect();
        // The usual case: needs no allocation for a list.
        let edits = match more[..] {
            [] => &[id][..],
            _ => &[&[id], &more[..]].concat(),
        };
        match in_turn {
            true => self.queue_call(from.client, assigned, from.raw.with(edits)),
            false => self.send_edited_to_server(lane, &from.raw, edits),
        }
        Ok(assigned)
    }

    fn notification_from_client(
        &mut self,
        from: &ClientMessage<'_>,
        notification: &Notification<'_>,
    ) {
        if self.is_related_to_foreign_task(from.client, notification.params) != Ok(false) {
            self.notes.push(Note::ForeignTask(from.client));
            return;
        }
        match &*notification.method.name() {
            "notifications/cancelled" => self.cancel_from_client(from, notification),
            "notifications/initialized" => match self.class.era() {
                Era::Legacy => self.initialized(from),
                // The modern era does not have it, and a server may not expect it.
                Era::Modern => {}
            },
            "notifications/roots/list_changed" => self.roots_changed(from),
            "notifications/progress" if self.class.is_shared() => {
                self.progress_from_client(from, notification);
            }
            method if is_task_status(method) && self.reports_foreign_task(from, notification) => {
                self.notes.push(Note::ForeignTask(from.client));
            }
            // Some servers look at the method only, and would process an unchecked request.
            method if is_request(method) && self.class.is_shared() => {
                self.notes.push(Note::RequestWithoutId(from.client));
            }
            _ => self.send_edited_to_server(Lane::Of(from.client), &from.raw, &[]),
        }
    }

    /// Forwards progress if it belongs to a server request to this client.
    fn progress_from_client(&mut self, from: &ClientMessage<'_>, notification: &Notification<'_>) {
        let token = notification.params.map(|it| it.member("progressToken"));
        let token = token.and_then(|it| it.ok().flatten()?.key());
        match token.is_some_and(|token| self.server_requests.is_progress_of(from.client, &token)) {
            true => self.send_edited_to_server(Lane::Of(from.client), &from.raw, &[]),
            false => self.notes.push(Note::UnknownProgress(from.client)),
        }
    }

    fn cancel_from_client(&mut self, from: &ClientMessage<'_>, notification: &Notification<'_>) {
        let side = Side::Client(from.client);
        let id = match notification.cancelled() {
            Ok(Some(id)) => id,
            Ok(None) => return,
            Err(why) => return self.notes.push(LineNote::Malformed(side, why)),
        };
        let key = id.key();
        let Some((key, assigned)) = self.calls.find_by_value(from.client, &key) else {
            self.notes.push(LineNote::UnknownCancel(side, key));
            return;
        };
        if self.calls.get(assigned).map(|call| &call.kind) == Some(&Kind::Initialize) {
            self.notes.push(Note::InitializeCancelled(from.client));
            return;
        }
        let new = assigned.to_string();
        let cancel = from.raw.with(&[(id.part(), new.as_bytes())]);
        let session = self.client(from.client).session.clone();
        self.cancel_request(from.client, &key, &session, Some(cancel));
    }

    /// Cancels a client's request: the client gets no response. If no other client waits, the server gets the
    /// client's cancellation, or one on behalf of a client that is gone.
    pub(super) fn cancel_request(
        &mut self,
        client: ClientId,
        key: &Key,
        session: &Arc<str>,
        cancel: Option<Vec<u8>>,
    ) {
        let Some((assigned, waiter)) = self.calls.drop_waiter(client, key) else {
            return;
        };
        if let Some(batch) = waiter.batch {
            self.batch_request_done(batch, None);
        }
        if self.remove_queued_call(client, assigned) {
            self.calls.take(assigned);
            return;
        }
        let Some(call) = self.calls.get(assigned) else {
            return;
        };
        let lane = call.lane;
        match &call.kind {
            // Other clients still wait.
            _ if !call.waiters.is_empty() && !matches!(call.kind, Kind::Subscribe(_)) => {}
            Kind::Subscribe(uri) => {
                let uri = uri.clone();
                self.subscribe_cancelled(assigned, &uri, client, key);
            }
            // They change the server for all clients, so their outcome must be known.
            Kind::Initialize | Kind::LateInitialize | Kind::Unsubscribe | Kind::Level(_) => {
                self.calls.count_until_answered(assigned, client);
            }
            Kind::Plain
            | Kind::Turn
            | Kind::Discover
            | Kind::OddDiscover
            | Kind::List(_)
            | Kind::Task { .. }
            | Kind::TaskList
            | Kind::Listen => {
                self.lists.abandoned(assigned);
                self.calls.mark_cancelled(assigned, session);
                let cancel = cancel.unwrap_or_else(|| cancel_call(assigned));
                self.send_to_server(lane, cancel);
                self.end_turn(assigned);
            }
        }
    }

    fn response_from_client(&mut self, from: &ClientMessage<'_>, response: &Response<'_>) {
        let key = response.id.map(|id| id.key());
        let assigned = key.as_ref().and_then(Key::as_integer);
        if let (Some(id), Some(assigned)) = (response.id, assigned)
            && let Some(ask) = self.server_requests.answer(from.client, assigned)
        {
            self.server_request_answered(from, ask, &id.part(), response);
            return;
        }
        let side = Side::Client(from.client);
        self.notes.push(LineNote::UnknownAnswer(side, key));
    }
}

/// Whether any protocol version has client requests with this method.
fn is_request(method: &str) -> bool {
    let area = method.split_once('/').map_or(method, |(area, _)| area);
    matches!(
        area,
        "initialize"
            | "ping"
            | "completion"
            | "logging"
            | "prompts"
            | "resources"
            | "server"
            | "subscriptions"
            | "tasks"
            | "tools"
    )
}

/// The progress token of a request. A token that is neither a string nor a number is refused if the server is shared:
/// some servers accept `[1]` as `1`.
fn progress_token<'a>(request: &Request<'a>, shared: bool) -> Result<Option<Part<'a>>, Refused> {
    let Some(token) = in_meta(request, "progressToken")? else {
        return Ok(None);
    };
    match token.bytes().first() {
        Some(b'"' | b'-' | b'0'..=b'9') => Ok(Some(token)),
        Some(b'n') => Ok(None),
        _ if shared => {
            let message = "progressToken is neither a string nor a number";
            Err(Refused::invalid_params(&request.id, message))
        }
        _ => Ok(None),
    }
}

/// The progress token for the server: a string if the client's token is one, else a number.
fn assigned_token<'d>(token: &Part<'_>, assigned: &'d IdDigits) -> Cow<'d, [u8]> {
    match token.bytes().starts_with(b"\"") {
        true => Cow::Owned([b"\"", &assigned[..], b"\""].concat()),
        false => Cow::Borrowed(assigned),
    }
}

/// A member of a request's `_meta`.
pub(super) fn in_meta<'a>(request: &Request<'a>, name: &str) -> Result<Option<Part<'a>>, Refused> {
    match request.params {
        Some(params) => Ok(params.search_at(&["_meta", name])?),
        None => Ok(None),
    }
}
