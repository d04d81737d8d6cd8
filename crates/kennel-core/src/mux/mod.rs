//! Routes messages between many clients and the one server that they share.
//!
//! [`Mux`] connects the clients of one [`Class`] to one server process. It lives exactly as long as that process, and
//! replays nothing: each client's session does that. It parses every line once and forwards it byte for byte, except
//! for ids (rule 11): each client counts its requests from 0, and so does the server, so the mux assigns ids that
//! cannot collide.
//!
//! The mux never gives a client a message that belongs to another client: a response, progress, a server request. If
//! the protocol does not say which client a message is for, the server gets an error instead of a guess. And every
//! request gets exactly one response (rule 4), requests of the server included.
//!
//! | file | contains |
//! |---|---|
//! | `class.rs` | which sessions may share a server |
//! | `handshake.rs` | `initialize` and `initialized`: once for the server, once for each client |
//! | `calls.rs` | the requests in flight to the server, and the clients that wait for them |
//! | `latency.rs` | the response times of the server |
//! | `lists.rs` | which list requests share one response, and how long it is cached |
//! | `subscriptions.rs`, `levels.rs` | resource subscriptions and log level of the server, merged from all clients |
//! | `tasks.rs` | which session a task belongs to |
//! | `turns.rs` | the order of calls, if the server takes one call at a time |
//! | `server_requests.rs` | which client a server request is for |
//! | `roots.rs` | whether all clients have the same roots |
//! | `roots_gate.rs` | lines of a client that wait until its roots are known |
//! | `batch.rs` | splits batches, and joins their responses |
//! | `from_client.rs`, `from_server.rs` | dispatch of a line by its sender |
//! | `moved_line.rs` | moves long lines instead of copying them |
//! | `snapshot.rs` | serialization, and when the server is quiet or idle |
//! | `refused.rs`, `note.rs`, `raw_message.rs` | error responses; log notes; messages with edited ids |

mod batch;
mod calls;
mod class;
mod from_client;
mod from_server;
mod handshake;
mod latency;
mod levels;
mod lists;
mod moved_line;
mod note;
mod raw_message;
mod refused;
mod roots;
mod roots_gate;
mod server_requests;
pub(crate) mod snapshot;
mod subscriptions;
mod tasks;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::message::{Key, Message, Owned};
use crate::note::Notes;
use crate::time::Moment;

use batch::Batches;
use calls::{AssignedId, Call, Calls, Kind};
use handshake::{Handshake, HandshakeProgress};
use latency::Latency;
use levels::{Level, Levels};
use lists::Lists;
use moved_line::MovedLine;
use raw_message::RawMessage;
use roots::Roots;
use roots_gate::RootsGate;
use server_requests::{ServerRequests, ambiguous_method};
use subscriptions::Subscriptions;
use tasks::Tasks;
use turns::Turns;

pub use crate::lifetime::ClientId;
pub use class::{Class, Era, Opening, client_name, opening};
pub use note::{Note, Side, Unaddressed};

/// Optional features of a shared server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MuxPolicy {
    /// Whether list responses are shared between clients and cached for as long as the protocol allows.
    pub cache: bool,

    /// Whether the server gets one `tools/call` at a time: the next is sent when the last is answered or cancelled.
    pub in_turn: bool,
}

impl Default for MuxPolicy {
    fn default() -> MuxPolicy {
        MuxPolicy {
            cache: true,
            in_turn: false,
        }
    }
}

/// Minimum bytes of all copies of a line, or of a batch, that goes to several clients as one [`Output::ToClients`]. Copies
/// of short lines for few clients join what is queued for each of them; many copies would multiply the memory.
pub const MIN_SHARED_BYTES: usize = 64 * 1024;

/// An action for the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Write this line to the server.
    ToServer {
        /// The queue that the line belongs to.
        lane: Lane,
        /// Without the newline.
        line: Owned,
    },

    /// Write this line to a client.
    ToClient {
        /// The client.
        client: ClientId,
        /// Without the newline.
        line: Owned,
    },

    /// Write this line to several clients: a long notification, or one message of a long batch.
    ToClients {
        /// The clients: at least two.
        clients: Vec<ClientId>,
        /// Without the newline.
        line: Owned,
    },

    /// Tell this client to use a dedicated server, because it cannot share this one any more. The mux has removed it
    /// and produces no more lines for it.
    Dismiss {
        /// The client.
        client: ClientId,
        /// Its requests that the server never received.
        unsent: Vec<Key>,
        /// The reason, for people: completes "it goes solo: …".
        why: &'static str,
    },
}

/// The queue of a line for the server. Lines of one lane stay in order. Lanes have no order among each other, except
/// that `Front` goes first, up to half of each write.
///
/// The lane of a client that left is still written to its end, because it contains responses to the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Lane {
    /// Lines that change the server for all clients; written before all other lanes.
    Front,
    /// Lines of one client.
    Of(ClientId),
    /// Lines of the mux itself, or on behalf of several clients.
    Own,
}

/// The clients of one class and the server that they share.
///
/// Three kinds of methods:
/// - **events**: [`join`](Self::join), [`handle_client_eof`](Self::handle_client_eof), [`leave`](Self::leave),
///   [`handle_client_line`](Self::handle_client_line) and [`handle_server_line`](Self::handle_server_line) for each line, and
///   [`advance`](Self::advance) at the time that [`next_timeout`](Self::next_timeout) returns.
/// - **actions**: [`poll_output`](Self::poll_output), [`poll_note`](Self::poll_note).
/// - **queries**: the others.
///
/// Pass in one event, then poll until nothing is left. No line has a newline, neither input nor output.
///
/// ```
/// use kennel_core::mux::{Class, ClientId, Lane, Mux, Output, MuxPolicy};
/// use kennel_core::time::Moment;
///
/// let mut mux = Mux::new(Class::private(), MuxPolicy::default());
/// mux.join(ClientId(7), "its session");
/// let call = br#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"pay"}}"#;
/// mux.handle_client_line(ClientId(7), call, Moment::START);
///
/// let line = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}"#.to_vec().into();
/// let lane = Lane::Of(ClientId(7));
/// assert_eq!(mux.poll_output(), Some(Output::ToServer { lane, line }));
///
/// mux.handle_server_line(br#"{"jsonrpc":"2.0","id":1,"result":{"x":1.0}}"#, Moment::START);
/// let line = br#"{"jsonrpc":"2.0","id":"a","result":{"x":1.0}}"#.to_vec().into();
/// assert_eq!(mux.poll_output(), Some(Output::ToClient { client: ClientId(7), line }));
/// ```
#[derive(Debug, Serialize, Deserialize)]
pub struct Mux {
    class: Class,
    policy: MuxPolicy,
    clients: BTreeMap<ClientId, Client>,
    sessions: Sessions,
    handshake: Handshake,
    calls: Calls,
    #[serde(rename = "asks")]
    server_requests: ServerRequests,
    batches: Batches,
    lists: Lists,
    subscriptions: Subscriptions,
    levels: Levels,
    tasks: Tasks,
    roots: Roots,
    #[serde(rename = "held", default)]
    roots_gate: RootsGate,
    turns: Turns,
    #[serde(skip)]
    out: VecDeque<Output>,
    #[serde(skip)]
    moved_line: Option<MovedLine>,
    /// Bytes of the copies made of the present line of the server.
    #[serde(skip)]
    copied: usize,
    #[serde(skip)]
    is_short_of_memory: bool,
    /// A line that starts a legacy session is not handled while the server has not confirmed that it is modern.
    #[serde(skip)]
    returns_legacy_sessions: bool,
    #[serde(skip)]
    notes: Notes<Note>,
    requests: u64,
    #[serde(skip)]
    latency: Latency,
    #[serde(with = "snapshot::static_text")]
    ambiguous: Option<StaticText>,
    knows_discover: Option<bool>,
}

/// A static string in the snapshot.
type StaticText = &'static str;

#[derive(Debug, Serialize, Deserialize)]
struct Client {
    session: Arc<str>,
    #[serde(rename = "greeting")]
    handshake: HandshakeProgress,
    /// Whether it sent `initialized` (legacy).
    initialized: bool,
    /// Whether it closed its sending half; it still reads.
    #[serde(rename = "silent")]
    input_closed: bool,
    level: Option<Level>,
    /// The roots that it last sent, canonical; empty if it answered with an error. Clients with equal roots share the text.
    roots: Option<Arc<str>>,
}

/// The sessions that ever joined: the first one, and whether there were more.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Sessions {
    first: Option<Arc<str>>,
    several: bool,
}

impl Sessions {
    /// The session, if all clients belonged to the same one.
    fn only_session(&self) -> Option<Arc<str>> {
        match self.several {
            true => None,
            false => self.first.clone(),
        }
    }
}

impl Mux {
    /// Creates a mux for a server that has received nothing yet, without clients.
    pub fn new(class: Class, policy: MuxPolicy) -> Mux {
        Mux {
            class,
            policy,
            clients: BTreeMap::new(),
            sessions: Sessions::default(),
            handshake: Handshake::default(),
            calls: Calls::default(),
            server_requests: ServerRequests::default(),
            batches: Batches::default(),
            lists: Lists::default(),
            subscriptions: Subscriptions::default(),
            levels: Levels::default(),
            tasks: Tasks::default(),
            roots: Roots::default(),
            roots_gate: RootsGate::default(),
            turns: Turns::default(),
            out: VecDeque::new(),
            moved_line: None,
            copied: 0,
            is_short_of_memory: false,
            returns_legacy_sessions: false,
            notes: Notes::default(),
            requests: 0,
            latency: Latency::default(),
            ambiguous: None,
            knows_discover: None,
        }
    }

    /// Adds a client. `session` is its random session id: a client that reconnects with the same id owns the tasks of
    /// that session.
    pub fn join(&mut self, client: ClientId, session: &str) {
        let session: Arc<str> = session.into();
        match &self.sessions.first {
            None => self.sessions.first = Some(session.clone()),
            Some(first) => self.sessions.several |= *first != session,
        }
        self.clients.entry(client).or_insert(Client {
            session,
            handshake: HandshakeProgress::None,
            initialized: false,
            input_closed: false,
            level: None,
            roots: None,
        });
    }

    /// Records that a client closed its sending half. It still gets its responses, but no more server requests.
    pub fn handle_client_eof(&mut self, client: ClientId, now: Moment) {
        if let Some(it) = self.clients.get_mut(&client) {
            it.input_closed = true;
            self.refuse_roots_for(client);
            self.reassign_server_requests(client);
            self.release_ready(now);
        }
    }

    /// Removes a client, and cancels its requests at the server.
    pub fn leave(&mut self, client: ClientId, now: Moment) {
        self.forget(client);
        self.release_ready(now);
    }

    fn forget(&mut self, client: ClientId) {
        // First: this needs the calls in flight of the client.
        self.refuse_roots_for(client);
        let Some(gone) = self.clients.remove(&client) else {
            return;
        };
        self.roots_gate.forget(client);
        // First: else cancelling the last request would complete its batch.
        self.batches.leave(client);
        let requests: Vec<Key> = self.calls.of(client).map(|(key, _)| key.clone()).collect();
        for key in requests {
            self.cancel_request(client, &key, &gone.session, None);
        }
        self.calls.forget_idle();
        self.unsubscribe_from_all(client);
        self.reassign_server_requests(client);
        self.update_server_level();
    }

    /// Whether `server/discover` is in flight and the server has answered nothing else.
    pub fn is_asked_to_discover(&self) -> bool {
        let is_unknown = self.knows_discover.is_none() && self.latency().is_none();
        is_unknown && !self.discover_waiters().is_empty()
    }

    /// Records that the server exited on `server/discover`. The clients that wait get the error of a server that does
    /// not know the method.
    pub fn handle_server_exit(&mut self) {
        if !self.is_asked_to_discover() {
            return;
        }
        for (client, batch, id) in self.discover_waiters() {
            self.knows_discover = Some(false);
            self.answer(client, batch, refused::ended_on_discover(&id));
        }
    }

    /// Frees the cached responses: memory is short, and the server can be asked again.
    pub fn drop_cached_lists(&mut self) {
        self.lists.drop_cached();
    }

    /// Sets whether memory is short. If it is, long cached responses are not copied; the request goes to the server.
    pub fn set_short_of_memory(&mut self, is_short: bool) {
        self.is_short_of_memory = is_short;
    }

    /// From now on a line that starts a legacy session is not handled until the server has confirmed that it is modern:
    /// [`handle_client_line`](Self::handle_client_line) returns `false`.
    pub fn return_legacy_sessions(&mut self) {
        self.returns_legacy_sessions = true;
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Returns the next note for the log.
    pub fn poll_note(&mut self) -> Option<Note> {
        self.notes.pop(Note::MoreNotes)
    }

    /// The class of its clients.
    pub fn class(&self) -> &Class {
        &self.class
    }

    /// Number of clients.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Number of requests of clients that were forwarded or answered, without pings.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Median response time of the last responses.
    pub fn latency(&self) -> Option<Duration> {
        self.latency.median()
    }

    /// Whether a client waits for a response. `subscriptions/listen` does not count.
    pub fn is_pending(&self) -> bool {
        self.calls.is_awaited()
    }

    /// Whether another client may join: not after an ambiguous server request, not while the server may switch to the
    /// legacy era, and no second client in a private class.
    pub fn accepts_clients(&self) -> bool {
        let private = !self.class.is_shared() && self.sessions.first.is_some();
        self.ambiguous().is_none() && !private
    }

    /// The method of a server request that could be for any client, if there was one; or `initialize`, while a server
    /// of the modern era has not answered it.
    pub fn ambiguous(&self) -> Option<&'static str> {
        let turns_legacy = || self.calls.has_late_initialize();
        self.ambiguous
            .or_else(|| turns_legacy().then_some(ambiguous_method("initialize")))
    }

    /// Number of responses that this client waits for. `subscriptions/listen` does not count: it lasts until it is
    /// cancelled, and a client that closed its sending half would wait for ever.
    pub fn pending_requests_of(&self, client: ClientId) -> usize {
        let ends = |assigned: AssignedId| {
            let call = self.calls.get(assigned);
            call.is_some_and(|call| call.kind != Kind::Listen)
        };
        let asked = self.calls.of(client).filter(|(_, it)| ends(*it)).count();
        asked + self.queued_requests_of(client).len()
    }

    /// The ids of this client's requests in flight, as it spelled them.
    pub fn in_flight_of(&self, client: ClientId) -> Vec<Vec<u8>> {
        let id = |(key, assigned): (&Key, AssignedId)| {
            let mut waiters = self.calls.get(assigned)?.waiters.iter();
            let waiter = waiters.find(|it| it.client == client && it.key == *key)?;
            Some(waiter.id.to_vec())
        };
        self.calls.of(client).filter_map(id).collect()
    }

    /// The clients that wait for the response to this line, each with its id as it spelled it. For a line that was
    /// not written when the server exited.
    pub fn waiters_of_line(&self, line: &[u8]) -> Vec<(ClientId, Vec<u8>)> {
        let assigned = match Message::parse(line) {
            Ok(Message::Request(request)) => from_server::assigned(&request.id.key()),
            _ => None,
        };
        let call = assigned.and_then(|assigned| self.calls.get(assigned));
        let waiters = call.map_or(&[][..], |call| &call.waiters);
        waiters
            .iter()
            .map(|it| (it.client, it.id.to_vec()))
            .collect()
    }

    /// Whether the server knows `server/discover`, as servers of the modern era do. `None`: not asked or not answered
    /// yet.
    pub fn knows_discover(&self) -> Option<bool> {
        self.knows_discover
    }

    /// Removes a client that cannot share the server any more, and reports it.
    fn dismiss(&mut self, client: ClientId, why: &'static str) {
        let mut unsent = self.queued_requests_of(client);
        unsent.extend(self.queued_calls(client));
        self.forget(client);
        self.out.push_back(Output::Dismiss {
            client,
            unsent,
            why,
        });
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        self.clients.get_mut(&client).expect("it is attached")
    }

    /// The client of this session: the latest, if an older connection is still there.
    fn client_of(&self, session: &Arc<str>) -> Option<ClientId> {
        let mut latest_first = self.clients.iter().rev();
        let found = latest_first.find(|(_, client)| client.session == *session)?;
        Some(*found.0)
    }

    /// The clients that get notifications for all: those that completed their handshake. Before the first has, the
    /// client that started it.
    fn recipients(&self) -> Vec<ClientId> {
        let legacy = self.class.is_shared() && self.class.era() == Era::Legacy;
        let gets_messages = |client: &ClientId| match (legacy, self.handshake.confirmed) {
            (false, _) => true,
            (true, true) => self.clients[client].initialized,
            (true, false) => self.handshake.by == Some(*client),
        };
        self.clients.keys().copied().filter(gets_messages).collect()
    }

    /// Sends a request of the mux itself, in the front lane.
    fn request_as_mux(&mut self, method: &str, params: &str, kind: Kind) -> AssignedId {
        let assigned = self.calls.assign_id();
        let call = Call {
            kind,
            lane: Lane::Front,
            waiters: SmallVec::new(),
            session: None,
            token: None,
            logs: false,
            asked: None,
            counts_for: None,
        };
        self.calls.insert(assigned, call);
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{assigned},"method":"{method}","params":{params}}}"#);
        self.send_to_server(Lane::Front, line.into_bytes());
        assigned
    }

    fn send_to_server(&mut self, lane: Lane, line: Vec<u8>) {
        let line = line.into();
        self.out.push_back(Output::ToServer { lane, line });
    }

    fn send_to_client(&mut self, client: ClientId, line: Vec<u8>) {
        if self.clients.contains_key(&client) {
            let line = line.into();
            self.out.push_back(Output::ToClient { client, line });
        }
    }

    fn send_to_clients(
        &mut self,
        clients: impl IntoIterator<Item = ClientId>,
        raw: &RawMessage<'_>,
    ) {
        let mut present: Vec<ClientId> = clients.into_iter().collect();
        present.retain(|client| self.clients.contains_key(client));
        if raw.line_length() * present.len() < MIN_SHARED_BYTES {
            for client in present {
                self.send_edited(client, raw, &[]);
            }
            return;
        }
        match present[..] {
            [] => {}
            [client] => self.send_edited(client, raw, &[]),
            _ => self.send_as_one_line(present, raw),
        }
    }
}
