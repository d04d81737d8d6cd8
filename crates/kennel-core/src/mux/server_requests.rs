//! Requests of the server, and which client they are for.
//!
//! On stdio nothing links a server request to the call that it is about (legacy). So it goes to the only client that
//! it can be about; if there are several, the server gets an error. A question must not appear in the app of another
//! user session.
//!
//! Answered calls do not count. Otherwise two sessions that each made one call could never get a server request
//! again. So a server that sends requests about a call after its response must not be shared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::hello::text_of_bytes;
use crate::lifetime::ClientId;
use crate::message::{
    Key, Notification, Outcome, Part, Request, Response, only_same_number, reply,
};
use crate::note::LineNote;
use crate::time::Moment;

use super::calls::Call;
use super::raw_message::{ClientMessage, KeptMessage, RawMessage};
use super::refused::{
    ROOTS_LIST_LIMIT, ambiguous_client, answer_to_foreign_task, client_gone, long_roots_list,
};
use super::snapshot::pairs;
use super::tasks::related_task;
use super::{Lane, Mux, Note, Side};

/// Error code that lists the elicitations a request needs first.
const URL_ELICITATION_REQUIRED: &str = "-32042";

/// A server request that waits for a client's response.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServerRequest {
    client: ClientId,
    pub(super) about: About,
    /// The id that the server gave it. `None`: the mux itself sent it.
    pub(super) server: Option<ServerId>,
}

impl ServerRequest {
    fn bytes(&self) -> usize {
        let line = match &self.about {
            About::Roots(Some(line)) => line.len(),
            About::RootsAnswered { line, answer } => line.len() + answer.len(),
            About::Roots(None) | About::Other => 0,
        };
        line + self.server.as_ref().map_or(0, |server| server.raw.len())
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServerId {
    pub(super) key: Key,
    /// The id as the server spelled it.
    #[serde(with = "text_of_bytes")]
    pub(super) raw: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum About {
    /// `roots/list`. Any client could answer it, so its line is stored.
    Roots(Option<KeptMessage>),
    /// `roots/list` that a client has answered. The server gets the response when all clients that it works for are
    /// known to have the same roots.
    #[serde(rename = "RootsTold")]
    RootsAnswered {
        line: KeptMessage,
        #[serde(with = "text_of_bytes")]
        answer: Vec<u8>,
    },
    /// A request for one specific client.
    Other,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ServerRequests {
    open: BTreeMap<i64, ServerRequest>,
    #[serde(with = "pairs")]
    by_server: BTreeMap<Key, i64>,
    #[serde(rename = "minted")]
    last_assigned: i64,
    /// Bytes stored for the server's requests.
    #[serde(default)]
    bytes: usize,
    /// The latest tasks that clients run for the server.
    client_tasks: VecDeque<(String, ClientId)>,
    /// The latest progress tokens of the server's requests, and their clients. They outlive the response: a task that
    /// a client runs for the server goes on.
    #[serde(default)]
    tokens: VecDeque<(Key, ClientId)>,
    /// The latest elicitation ids of the server, and the clients that got them in a request or an error.
    #[serde(default)]
    elicitations: VecDeque<(String, ClientId)>,
}

/// The client that a server request is for.
enum Recipient {
    One(ClientId),
    Gone,
    Ambiguous,
}

impl ServerRequests {
    /// Maximum number of stored client tasks.
    const CLIENT_TASKS: usize = 256;
    /// Maximum number of stored progress tokens of the server.
    const TOKENS: usize = 256;
    /// Maximum number of stored elicitations of the server.
    const ELICITATIONS: usize = 256;

    /// Stores the progress token of a request to a client.
    fn remember_token(&mut self, token: Key, client: ClientId) {
        self.tokens.retain(|(other, _)| *other != token);
        self.tokens.push_back((token, client));
        if self.tokens.len() > ServerRequests::TOKENS {
            self.tokens.pop_front();
        }
    }

    /// Stores an elicitation whose end the server may report to this client.
    fn remember_elicitation(&mut self, id: String, client: ClientId) {
        self.elicitations.push_back((id, client));
        if self.elicitations.len() > ServerRequests::ELICITATIONS {
            self.elicitations.pop_front();
        }
    }

    /// The client of an elicitation.
    pub(super) fn elicited(&self, id: &str) -> Option<ClientId> {
        let mut latest_first = self.elicitations.iter().rev();
        latest_first.find(|(known, _)| known == id).map(|it| it.1)
    }

    /// Whether this client runs this task for the server.
    pub(super) fn is_client_task(&self, client: ClientId, task: &str) -> bool {
        let mut tasks = self.client_tasks.iter();
        tasks.any(|(id, owner)| id == task && *owner == client)
    }

    /// Whether the server waits for progress with this token from this client.
    pub(super) fn is_progress_of(&self, client: ClientId, token: &Key) -> bool {
        let mut tokens = self.tokens.iter();
        tokens.any(|(known, asked)| known == token && *asked == client)
    }

    /// Whether too many server requests are in flight.
    fn is_full(&self) -> bool {
        self.by_server.len() >= reply::IN_FLIGHT_LIMIT || self.bytes >= reply::SERVER_REQUESTS_LIMIT
    }

    /// Bytes stored for server requests in flight.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a server request waits for this client.
    pub(super) fn is_asked(&self, client: ClientId) -> bool {
        self.open.values().any(|ask| ask.client == client)
    }

    /// Whether a server request with this id is in flight.
    pub(super) fn is_open(&self, server_key: &Key) -> bool {
        self.by_server.contains_key(server_key)
    }

    /// Stores a request, and returns the id for the client.
    pub(super) fn open(&mut self, client: ClientId, about: About, server: Option<ServerId>) -> i64 {
        self.last_assigned += 1;
        if let Some(server) = &server {
            self.by_server
                .insert(server.key.clone(), self.last_assigned);
        }
        let ask = ServerRequest {
            client,
            about,
            server,
        };
        self.bytes += ask.bytes();
        self.open.insert(self.last_assigned, ask);
        self.last_assigned
    }

    /// Removes the request that this client answers. `None`: it has no such request.
    pub(super) fn answer(&mut self, client: ClientId, assigned: i64) -> Option<ServerRequest> {
        let ask = self.open.get(&assigned)?;
        if ask.client != client || matches!(ask.about, About::RootsAnswered { .. }) {
            return None;
        }
        self.close(assigned)
    }

    /// Removes a request that the server cancelled: its client, and the id there. `Some(None)`: the client has
    /// answered.
    pub(super) fn cancel(&mut self, key: &Key) -> Option<Option<(ClientId, i64)>> {
        let assigned = match self.by_server.get(key) {
            Some(assigned) => *assigned,
            None => self.by_server[only_same_number(&self.by_server, key, |_| true)?],
        };
        let ask = self.close(assigned)?;
        let is_answered = matches!(ask.about, About::RootsAnswered { .. });
        Some((!is_answered).then_some((ask.client, assigned)))
    }

    /// Roots responses that the server has not received yet, and their clients.
    pub(super) fn answered_roots(&self) -> Vec<(i64, ClientId)> {
        let told = |ask: &ServerRequest| matches!(ask.about, About::RootsAnswered { .. });
        let told = self.open.iter().filter(|(_, ask)| told(ask));
        told.map(|(assigned, ask)| (*assigned, ask.client))
            .collect()
    }

    /// Removes such a response, and returns it with the server's id.
    pub(super) fn take_answered_roots(&mut self, assigned: i64) -> Option<(Vec<u8>, ServerId)> {
        let ask = self.close(assigned)?;
        match (ask.about, ask.server) {
            (About::RootsAnswered { answer, .. }, Some(server)) => Some((answer, server)),
            _ => None,
        }
    }

    /// Whether a `roots/list` of the server is in flight, answered by a client or not.
    pub(super) fn has_roots_requests(&self) -> bool {
        let is_one = |ask: &ServerRequest| {
            matches!(
                ask.about,
                About::Roots(Some(_)) | About::RootsAnswered { .. }
            )
        };
        self.open.values().any(is_one)
    }

    /// Removes all `roots/list` of the server, and returns their clients and ids. Those that clients have not
    /// answered become requests of the mux itself.
    pub(super) fn withdraw_roots(&mut self) -> Vec<(ClientId, ServerId)> {
        let mut withdrawn = Vec::new();
        for assigned in self.open.keys().copied().collect::<Vec<_>>() {
            let is_told = match self.open[&assigned].about {
                About::Roots(Some(_)) => false,
                About::RootsAnswered { .. } => true,
                About::Roots(None) | About::Other => continue,
            };
            let Some(ask) = self.close(assigned) else {
                continue;
            };
            if !is_told {
                let own = ServerRequest {
                    client: ask.client,
                    about: About::Roots(None),
                    server: None,
                };
                self.open.insert(assigned, own);
            }
            withdrawn.extend(ask.server.map(|server| (ask.client, server)));
        }
        withdrawn
    }

    /// Removes the requests of a client that is gone.
    pub(super) fn leave(&mut self, client: ClientId) -> Vec<ServerRequest> {
        self.client_tasks.retain(|(_, owner)| *owner != client);
        self.tokens.retain(|(_, asked)| *asked != client);
        self.elicitations.retain(|(_, asked)| *asked != client);
        let its = self.open.iter().filter(|(_, ask)| ask.client == client);
        let its: Vec<_> = its.map(|(assigned, _)| *assigned).collect();
        let closed = its.into_iter().filter_map(|assigned| self.close(assigned));
        closed.collect()
    }

    /// Whether no request is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether a `roots/list` to this client is in flight, from the server or the mux.
    pub(super) fn is_asked_for_roots(&self, client: ClientId) -> bool {
        let asks =
            |ask: &ServerRequest| ask.client == client && matches!(ask.about, About::Roots(_));
        self.open.values().any(asks)
    }

    /// The clients to which a `roots/list` is in flight, from the server or the mux.
    pub(super) fn asked_for_roots(&self) -> BTreeSet<ClientId> {
        let requests = self.open.values();
        let about_roots = requests.filter(|it| matches!(it.about, About::Roots(_)));
        about_roots.map(|it| it.client).collect()
    }

    /// Whether a `roots/list` of the server waits for a client.
    pub(super) fn server_waits_for_roots(&self) -> bool {
        let tells = |ask: &ServerRequest| matches!(ask.about, About::Roots(Some(_)));
        self.open.values().any(tells)
    }

    fn close(&mut self, assigned: i64) -> Option<ServerRequest> {
        let ask = self.open.remove(&assigned)?;
        // Snapshots of older builds have no counts.
        self.bytes = self.bytes.saturating_sub(ask.bytes());
        if let Some(server) = &ask.server {
            self.by_server.remove(&server.key);
        }
        Some(ask)
    }
}

/// The name of an ambiguous server request, for people.
pub(super) fn ambiguous_method(method: &str) -> &'static str {
    match method {
        "sampling/createMessage" => "sampling/createMessage",
        "elicitation/create" => "elicitation/create",
        "initialize" => "initialize",
        _ => "a server request",
    }
}

impl Mux {
    pub(super) fn request_from_server(
        &mut self,
        raw: &RawMessage<'_>,
        request: &Request<'_>,
        now: Moment,
    ) {
        let id = request.id;
        if let Some(refused) = reply::long_server_id(id.raw()) {
            return self.send_to_server(Lane::Own, refused);
        }
        let key = id.key();
        if !key.is_acceptable() {
            self.send_to_server(Lane::Own, reply::odd_id(id.raw()));
            self.notes.push(LineNote::OddId(Side::Server, key));
            return;
        }
        if self.server_requests.by_server.contains_key(&key) {
            self.send_to_server(Lane::Own, reply::duplicate_id(id.raw(), &key));
            self.notes.push(LineNote::DuplicateId(Side::Server, key));
            return;
        }
        if self.server_requests.is_full() {
            return self.send_to_server(Lane::Own, reply::too_many(id.raw()));
        }
        let server = ServerId {
            key,
            raw: id.raw().to_vec(),
        };
        match &*request.method.name() {
            "ping" => self.send_to_server(Lane::Own, reply::pong(id.raw())),
            "roots/list" if raw.bytes().len() > ROOTS_LIST_LIMIT => {
                self.send_to_server(Lane::Own, long_roots_list(id.raw()));
            }
            "roots/list" => self.roots_from_server(KeptMessage::new(raw, &id.part()), server, now),
            method => match self.recipient(request, method) {
                Recipient::One(client) => {
                    let params = request.params;
                    let token = params.map(|it| it.search_at(&["_meta", "progressToken"]));
                    if let Some(Ok(Some(token))) = token
                        && token.bytes().len() <= reply::NAME_LIMIT
                        && let Some(token) = token.key()
                    {
                        self.server_requests.remember_token(token, client);
                    }
                    let elicitation = params.map(|it| it.search_at(&["elicitationId"]));
                    if let Some(Ok(Some(id))) = elicitation
                        && let Some(id) = id.string()
                        && id.len() <= reply::NAME_LIMIT
                    {
                        self.server_requests
                            .remember_elicitation(id.into_owned(), client);
                    }
                    let shown = self
                        .server_requests
                        .open(client, About::Other, Some(server));
                    let line = raw.with(&[(id.part(), shown.to_string().as_bytes())]);
                    self.send_to_client(client, line);
                }
                Recipient::Gone => {
                    self.send_to_server(Lane::Own, client_gone(id.raw()));
                    self.notes.push(Note::ClientGone);
                }
                Recipient::Ambiguous => {
                    self.send_to_server(Lane::Own, ambiguous_client(id.raw()));
                    self.notes.push(Note::Ambiguous);
                    self.ambiguous = Some(ambiguous_method(method));
                }
            },
        }
    }

    fn recipient(&self, request: &Request<'_>, method: &str) -> Recipient {
        if let Some(recipient) = self.recipient_by_task(request, method) {
            return recipient;
        }
        let candidates = self.candidates();
        match (candidates.len(), candidates.first()) {
            (0, _) if self.handshake.is_in_flight() => self.one_or_gone(self.handshake.by),
            (0, _) => match self.sessions.only_session() {
                Some(session) => self.one_or_gone(self.client_of(&session)),
                None => Recipient::Ambiguous,
            },
            (1, Some(only)) => self.one_or_gone(*only),
            _ => Recipient::Ambiguous,
        }
    }

    fn one_or_gone(&self, client: Option<ClientId>) -> Recipient {
        let answers =
            |client: &ClientId| self.clients.get(client).is_some_and(|it| !it.input_closed);
        match client.filter(answers) {
            Some(client) => Recipient::One(client),
            None => Recipient::Gone,
        }
    }

    /// The client of the task that a request names: a task of a session, or a task that a client runs for the server.
    fn recipient_by_task(&self, request: &Request<'_>, method: &str) -> Option<Recipient> {
        let params = request.params?;
        if let Ok(Some(task)) = related_task(request.params)
            && let Some(owner) = self.tasks.owner(&task.string()?)
        {
            return Some(self.one_or_gone(self.client_of(owner)));
        }
        if matches!(method, "tasks/get" | "tasks/result" | "tasks/cancel") {
            let task = params.member("taskId").ok()??.string()?;
            let owners: BTreeSet<_> = self
                .server_requests
                .client_tasks
                .iter()
                .filter(|(id, _)| *id == task)
                .map(|(_, owner)| *owner)
                .collect();
            // Clients choose these ids: two may have chosen the same.
            if let (1, Some(owner)) = (owners.len(), owners.first()) {
                return Some(self.one_or_gone(Some(*owner)));
            }
        }
        None
    }

    /// Stores the elicitations of an error; their end is reported only to the client that gets the error.
    pub(super) fn elicitations_in_error(&mut self, call: &Call, error: &Part<'_>) {
        let code = error.member("code").ok().flatten();
        if code.is_none_or(|code| code.text() != URL_ELICITATION_REQUIRED) {
            return;
        }
        let (Some(waiter), Ok(Some(elicitations))) =
            (call.waiters.first(), error.at(&["data", "elicitations"]))
        else {
            return;
        };
        elicitations.for_each_element(|it| {
            let id = it.member("elicitationId").ok().flatten();
            if let Some(id) = id.and_then(|id| id.string())
                && id.len() <= reply::NAME_LIMIT
            {
                self.server_requests
                    .remember_elicitation(id.into_owned(), waiter.client);
            }
        });
    }

    /// Whether a client reports the status of a task that it does not run for the server.
    pub(super) fn reports_foreign_task(
        &self,
        from: &ClientMessage<'_>,
        notification: &Notification<'_>,
    ) -> bool {
        let task = notification.params.map(|it| it.member("taskId"));
        let Some(Ok(Some(task))) = task else {
            return false;
        };
        let Some(id) = task.string() else {
            return self.class.is_shared();
        };
        self.sessions.several && !self.server_requests.is_client_task(from.client, &id)
    }

    /// The clients that the server may be working for: those that wait for a response, those that cancelled a call,
    /// those with a task that has not ended. `None` stands for all clients that are gone.
    pub(super) fn candidates(&self) -> BTreeSet<Option<ClientId>> {
        let waiting = self.calls.waiting_clients().map(Some);
        let mut candidates: BTreeSet<Option<ClientId>> = waiting.collect();
        // There are many calls and tasks but few sessions.
        let unawaited = self.calls.unawaited_sessions().into_iter().map(Some);
        let cancelled = self.calls.sessions_of_cancelled_calls();
        let sessions = unawaited.chain(cancelled).chain(self.tasks.unfinished());
        let sessions: BTreeSet<Option<&Arc<str>>> = sessions.collect();
        let owner = |session: Option<&Arc<str>>| session.and_then(|it| self.client_of(it));
        candidates.extend(sessions.into_iter().map(owner));
        candidates
    }

    /// Processes a client's response to a server request.
    pub(super) fn server_request_answered(
        &mut self,
        from: &ClientMessage<'_>,
        ask: ServerRequest,
        id: &Part<'_>,
        response: &Response<'_>,
    ) {
        if self.answer_names_foreign_task(from, response) {
            self.notes.push(Note::ForeignTask(from.client));
            if let Some(server) = ask.server {
                self.send_to_server(Lane::Own, answer_to_foreign_task(&server.raw));
            }
            return;
        }
        if let About::Roots(line) = ask.about {
            return self.roots_answered(from, line, ask.server, (id, response));
        }
        let Some(server) = ask.server else {
            return;
        };
        if let Outcome::Result(result) = response.outcome
            && let Ok(Some(task)) = result.search_at(&["task", "taskId"])
            && let Some(task) = task.string()
            && task.len() <= reply::NAME_LIMIT
        {
            let tasks = &mut self.server_requests.client_tasks;
            tasks.push_back((task.into_owned(), from.client));
            if tasks.len() > ServerRequests::CLIENT_TASKS {
                tasks.pop_front();
            }
        }
        self.send_edited_to_server(Lane::Of(from.client), &from.raw, &[(*id, &server.raw)]);
    }

    /// Whether a response is related to a task that may belong to another session.
    fn answer_names_foreign_task(&self, from: &ClientMessage<'_>, response: &Response<'_>) -> bool {
        let Outcome::Result(result) = response.outcome else {
            return false;
        };
        self.is_related_to_foreign_task(from.client, Some(result)) != Ok(false)
    }

    /// Passes the server requests of a client that cannot answer to another client, or answers them with an error.
    pub(super) fn reassign_server_requests(&mut self, client: ClientId) {
        for ask in self.server_requests.leave(client) {
            match (ask.about, ask.server) {
                (_, None) => {}
                (About::Roots(Some(line)) | About::RootsAnswered { line, .. }, Some(server)) => {
                    self.ask_for_roots(line, server)
                }
                (About::Roots(None) | About::Other, Some(server)) => {
                    self.send_to_server(Lane::Own, client_gone(&server.raw));
                }
            }
        }
        self.tell_roots();
    }
}
