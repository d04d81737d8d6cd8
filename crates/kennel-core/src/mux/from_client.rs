//! What follows from a line of a client.

use std::borrow::Cow;
use std::sync::Arc;

use crate::lifetime::ClientId;
use crate::message::{
    Key, Line, Malformed, Message, Notification, Part, Request, Response, Scan, reply,
};
use crate::time::Moment;

use super::calls::{Call, Digits, Kind, Minted};
use super::class::{Envelope, Era};
use super::few::Few;
use super::handshake::waiter;
use super::lists::List;
use super::refused::{Refused, abandoned};
use super::said::{From, Said};
use super::tasks::is_task_status;
use super::{Lane, Mux, Note, Side};

/// Where a modern request says which log messages it wants.
pub(super) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

impl Mux {
    /// A line of a client.
    ///
    /// Pings are answered here. A request whose id some SDKs drop, or that is in flight, is answered
    /// with `-32600`, and so is what the era or the version of this class does not have. A line that is no
    /// message is answered with an error, unless it is blank or was meant as a notification or an answer.
    pub fn from_client<'a>(&mut self, client: ClientId, line: impl Into<Line<'a>>, now: Moment) {
        let line = line.into();
        if self.is_split_from_client(client, line, now) {
            let line = line.bytes().to_vec().into();
            self.hear_client_as_one(client, line, &Scan::default(), now);
        }
    }

    /// Hears a line of a client. `true`: nothing happened, for some servers would read it as several lines.
    pub(super) fn is_split_from_client(
        &mut self,
        client: ClientId,
        line: Line<'_>,
        now: Moment,
    ) -> bool {
        if !self.clients.contains_key(&client) {
            self.notes.push(Note::NotAttached(client));
            return false;
        }
        let parsed = match self.class.is_shared() {
            true => Message::parse_exact(line),
            false => Message::parse(line),
        };
        if let Ok(message) = &parsed {
            self.check_roots_before(client, message, now);
        }
        match parsed {
            Ok(message) if self.takes(client, line.bytes(), &message) => {}
            Err(why) if why.is_split(line.bytes()) => return true,
            parsed => self.hear_client(client, line.bytes(), parsed, now),
        }
        self.let_go(now);
        false
    }

    pub(super) fn hear_client(
        &mut self,
        client: ClientId,
        line: &[u8],
        parsed: Result<Message<'_>, Malformed>,
        now: Moment,
    ) {
        match parsed {
            Ok(Message::Batch(batch)) => self.batch_from_client(client, &batch, now),
            Ok(message) => {
                let from = From {
                    client,
                    said: Said::line(line),
                    batch: None,
                    now,
                };
                self.message_from_client(from, &message);
            }
            Err(why) => {
                let side = Side::Client(client);
                self.notes.push(Note::Malformed(side, why));
                // Of a newer shim, not of its app.
                if why == Malformed::Reserved {
                    return;
                }
                // An id that is taken is another request's: to that one, this would be the answer. What a batch has of
                // its answers was not said yet, so while one is open any id may be taken.
                let has_batch = self.batches.is_open_for(client);
                let is_taken = |key: &Key| has_batch || self.is_asked(client, key);
                for refused in reply::malformed(line, why, is_taken) {
                    self.say(client, refused);
                }
            }
        }
    }

    pub(super) fn message_from_client(&mut self, from: From<'_>, message: &Message<'_>) {
        // An earlier member of its batch may have cost it its place.
        if !self.clients.contains_key(&from.client) {
            return;
        }
        match message {
            Message::Request(request) => self.request_from_client(&from, request),
            Message::Notification(notification) => {
                self.notification_from_client(&from, notification);
            }
            Message::Response(response) => self.response_from_client(&from, response),
            // No batch is in a batch, and a whole one is taken apart before.
            Message::Batch(_) => {}
        }
    }

    fn request_from_client(&mut self, from: &From<'_>, request: &Request<'_>) {
        let id = request.id.raw();
        let key = request.id.key();
        let side = Side::Client(from.client);
        if !key.is_acceptable() {
            self.answer(from.client, from.batch, reply::odd_id(id));
            self.notes.push(Note::OddId(side, key));
            return;
        }
        if self.is_asked(from.client, &key) {
            let refused = reply::duplicate_id(id, &key);
            self.answer(from.client, from.batch, refused);
            self.notes.push(Note::DuplicateId(side, key));
            return;
        }
        // The modern era has no ping: its server says so.
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
                self.notes.push(Note::Malformed(side, why));
            }
            self.answer(from.client, from.batch, refused.reply(&request.id));
        }
    }

    /// Whether a request of this client's has this id and no answer yet.
    pub(super) fn is_asked(&self, client: ClientId, key: &Key) -> bool {
        self.calls.find(client, key).is_some() || self.held.has(client, key)
    }

    fn route(&mut self, from: &From<'_>, request: &Request<'_>) -> Result<(), Refused> {
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
            _ if method.starts_with("tasks/") => self.about_a_task(from, request, &method)?,
            "subscriptions/listen" => Kind::Listen,
            "tools/call" if self.policy.in_turn => Kind::Turn,
            // Some servers look at the method only: it would be a notification that was not looked at here.
            _ if method.starts_with("notifications/") && self.class.is_shared() => {
                self.notes.push(Note::NotificationWithId(from.client));
                return Err(Refused::notification_with_id(&request.id));
            }
            _ => Kind::Plain,
        };
        self.forward(from, request, kind, Lane::Of(from.client), None)?;
        Ok(())
    }

    /// A process speaks one era only: servers lock on the first request, or silently mix them up.
    fn check_era(
        &mut self,
        from: &From<'_>,
        request: &Request<'_>,
        method: &str,
    ) -> Result<(), Refused> {
        let id = &request.id;
        let refused = match (self.class.era(), method, Envelope::of(request)?) {
            (Era::Legacy, "server/discover", _) => Refused::discover_in_legacy(id),
            (Era::Legacy, _, Envelope::Whole | Envelope::Broken) => Refused::enveloped(id),
            // The modern era has neither. Only the server knows what it says to them; but `initialize` might turn it
            // into a legacy one, so that it hears none while others use it.
            (Era::Modern, "ping", _) => return Ok(()),
            (Era::Modern, "initialize", _) if self.clients.len() == 1 => return Ok(()),
            (Era::Modern, "initialize", _) => Refused::initialize_in_modern(id),
            (Era::Modern, _, Envelope::None | Envelope::Broken) => Refused::without_envelope(id),
            (Era::Legacy, _, Envelope::None) | (Era::Modern, _, Envelope::Whole) => return Ok(()),
        };
        self.notes.push(Note::WrongEra(from.client));
        Err(refused)
    }

    /// Sends a request on under an id of its own. Its progress is known to the server by that id, too:
    /// SDKs take the request's id for the token, so those of two clients would collide.
    pub(super) fn forward(
        &mut self,
        from: &From<'_>,
        request: &Request<'_>,
        kind: Kind,
        lane: Lane,
        edit: Option<(Part<'_>, &[u8])>,
    ) -> Result<Minted, Refused> {
        let token = progress_token(request, self.class.is_shared())?;
        let may_log = self.class.era() == Era::Modern;
        let logs = may_log && in_meta(request, LOG_LEVEL)?.is_some();
        let minted = self.calls.mint();
        let new = Digits::of(minted);
        let id = (request.id.part(), &new[..]);
        let in_turn = kind == Kind::Turn;
        let mut waiter = waiter(from, request);
        waiter.bytes += kind.bytes() + token.map_or(0, |place| place.bytes().len());
        let call = Call {
            kind,
            lane,
            waiters: Few::One(waiter),
            session: Some(self.client(from.client).session.clone()),
            token: token.map(|place| place.bytes().to_vec()),
            logs,
            asked: Some(from.now),
            counts_for: None,
        };
        self.calls.insert(minted, call);
        let new_token = token.map(|place| (place, minted_token(&place, &new)));
        let new_token = new_token.as_ref().map(|(place, new)| (*place, &new[..]));
        let more = new_token.into_iter().chain(edit);
        let more: Vec<_> = more.collect();
        // As most have: no list is made for it.
        let edits = match more[..] {
            [] => &[id][..],
            _ => &[&[id], &more[..]].concat(),
        };
        match in_turn {
            true => self.take_turn(from.client, minted, from.said.with(edits)),
            false => self.tell_server_with(lane, &from.said, edits),
        }
        Ok(minted)
    }

    fn notification_from_client(&mut self, from: &From<'_>, notification: &Notification<'_>) {
        if self.is_related_to_foreign_task(from.client, notification.params) != Ok(false) {
            self.notes.push(Note::ForeignTask(from.client));
            return;
        }
        match &*notification.method.name() {
            "notifications/cancelled" => self.cancel_from_client(from, notification),
            "notifications/initialized" => match self.class.era() {
                Era::Legacy => self.initialized(from),
                // There is none, and a server may not know what to do with it.
                Era::Modern => {}
            },
            "notifications/roots/list_changed" => self.roots_changed(from),
            "notifications/progress" if self.class.is_shared() => {
                self.progress_from_client(from, notification);
            }
            method if is_task_status(method) && self.is_anothers_work(from, notification) => {
                self.notes.push(Note::ForeignTask(from.client));
            }
            // Some servers look at the method only: it would be a request that was not looked at here.
            method if is_request(method) && self.class.is_shared() => {
                self.notes.push(Note::RequestWithoutId(from.client));
            }
            _ => self.tell_server_with(Lane::Of(from.client), &from.said, &[]),
        }
    }

    /// Only of what this client was asked.
    fn progress_from_client(&mut self, from: &From<'_>, notification: &Notification<'_>) {
        let token = notification.params.map(|it| it.member("progressToken"));
        let token = token.and_then(|it| it.ok().flatten()?.key());
        match token.is_some_and(|token| self.asks.is_progress_of(from.client, &token)) {
            true => self.tell_server_with(Lane::Of(from.client), &from.said, &[]),
            false => self.notes.push(Note::UnknownProgress(from.client)),
        }
    }

    fn cancel_from_client(&mut self, from: &From<'_>, notification: &Notification<'_>) {
        let side = Side::Client(from.client);
        let id = match notification.cancelled() {
            Ok(Some(id)) => id,
            Ok(None) => return,
            Err(why) => return self.notes.push(Note::Malformed(side, why)),
        };
        let key = id.key();
        let Some((key, minted)) = self.calls.find_loosely(from.client, &key) else {
            self.notes.push(Note::UnknownCancel(side, key));
            return;
        };
        if self.calls.get(minted).map(|call| &call.kind) == Some(&Kind::Initialize) {
            self.notes.push(Note::InitializeCancelled(from.client));
            return;
        }
        let new = minted.to_string();
        let cancel = from.said.with(&[(id.part(), new.as_bytes())]);
        let session = self.client(from.client).session.clone();
        self.no_more_wanted(from.client, &key, &session, Some(cancel));
    }

    /// A client does not want an answer any more: it gets none. Where nobody else waits for it, the
    /// server is told so, with the client's own line or for a client that is gone.
    pub(super) fn no_more_wanted(
        &mut self,
        client: ClientId,
        key: &Key,
        session: &Arc<str>,
        cancel: Option<Vec<u8>>,
    ) {
        let Some((minted, waiter)) = self.calls.drop_waiter(client, key) else {
            return;
        };
        if let Some(batch) = waiter.batch {
            self.one_less(batch, None);
        }
        if self.never_had_its_turn(client, minted) {
            self.calls.take(minted);
            return;
        }
        let Some(call) = self.calls.get(minted) else {
            return;
        };
        let lane = call.lane;
        match &call.kind {
            // Others still wait.
            _ if !call.waiters.is_empty() && !matches!(call.kind, Kind::Subscribe(_)) => {}
            Kind::Subscribe(uri) => {
                let uri = uri.clone();
                self.subscribe_cancelled(minted, &uri, client, key);
            }
            // What changes the server for all: how it went must be known.
            Kind::Initialize | Kind::LateInitialize | Kind::Unsubscribe | Kind::Level(_) => {
                self.calls.count_on(minted, client);
            }
            Kind::Plain
            | Kind::Turn
            | Kind::Discover
            | Kind::OddDiscover
            | Kind::List(_)
            | Kind::Task { .. }
            | Kind::TaskList
            | Kind::Listen => {
                self.lists.abandoned(minted);
                self.calls.bury(minted, session);
                let cancel = cancel.unwrap_or_else(|| abandoned(minted));
                self.tell_server(lane, cancel);
                self.turn_is_over(minted);
            }
        }
    }

    fn response_from_client(&mut self, from: &From<'_>, response: &Response<'_>) {
        let key = response.id.map(|id| id.key());
        let minted = key.as_ref().and_then(Key::as_integer);
        if let (Some(id), Some(minted)) = (response.id, minted)
            && let Some(ask) = self.asks.answer(from.client, minted)
        {
            self.ask_answered(from, ask, &id.part(), response);
            return;
        }
        let side = Side::Client(from.client);
        self.notes.push(Note::UnknownAnswer(side, key));
    }
}

/// Whether the protocol has requests of clients that are called so, in any version.
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

/// Where a request says what its progress is to be known by. One that is no string or number cannot be told back: it is
/// refused where the server is shared, for some servers take `[1]` for `1`.
fn progress_token<'a>(request: &Request<'a>, shared: bool) -> Result<Option<Part<'a>>, Refused> {
    let Some(token) = in_meta(request, "progressToken")? else {
        return Ok(None);
    };
    match token.bytes().first() {
        Some(b'"' | b'-' | b'0'..=b'9') => Ok(Some(token)),
        Some(b'n') => Ok(None),
        _ if shared => Err(Refused::odd_progress_token(&request.id)),
        _ => Ok(None),
    }
}

/// What the server is to know a request's progress by: a string if the client's own token is one, else a number.
fn minted_token<'d>(token: &Part<'_>, minted: &'d Digits) -> Cow<'d, [u8]> {
    match token.bytes().starts_with(b"\"") {
        true => Cow::Owned([b"\"", &minted[..], b"\""].concat()),
        false => Cow::Borrowed(minted),
    }
}

/// A value in a request's `_meta`.
pub(super) fn in_meta<'a>(request: &Request<'a>, name: &str) -> Result<Option<Part<'a>>, Refused> {
    match request.params {
        Some(params) => Ok(params.at_if_any(&["_meta", name])?),
        None => Ok(None),
    }
}
