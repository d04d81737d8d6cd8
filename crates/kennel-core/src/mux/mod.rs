//! Who hears what while many clients share one server.
//!
//! [`Mux`] stands between the clients of one [`Class`] and the one server process they share. It lives
//! exactly as long as that process, and replays nothing: that is for each client's own session. Every
//! line is looked at once, and goes on byte for byte but for the ids that must differ (rule 11): each
//! client counts its requests from 0, and so does the server.
//!
//! Two things it never does. It never gives anybody what is another's: an answer, progress, a question
//! that would open in somebody else's window. Where the protocol does not say whom something is for, it
//! says so to the server instead of guessing. And it never leaves anybody waiting: every request gets
//! one answer (rule 4), the server's included.
//!
//! | file | what it decides |
//! |---|---|
//! | `class.rs` | which sessions may share a server |
//! | `handshake.rs` | `initialize` and `initialized`: once for the server, once for each client |
//! | `calls.rs` | nothing: it keeps what the server was asked, and who waits |
//! | `latency.rs` | nothing: it knows how long the server takes |
//! | `lists.rs` | which requests are one question, and how long its answer is good |
//! | `subscriptions.rs`, `levels.rs` | what the server is to hold for all |
//! | `tasks.rs` | which session a task belongs to |
//! | `turns.rs` | whose call is next, where calls take turns |
//! | `asks.rs` | whom the server's own requests are for |
//! | `roots.rs` | whether all have the same roots |
//! | `held.rs` | how long what a client says waits for that |
//! | `batch.rs` | nothing: it takes batches apart and puts their answers together |
//! | `from_client.rs`, `from_server.rs` | what follows from a line |
//! | `lent.rs` | nothing: it saves long lines from being copied |
//! | `snapshot.rs` | nothing: it says how all of this is written down, and whether it is a good moment |
//! | `refused.rs`, `note.rs`, `said.rs` | nothing: words, and lines with other ids |

mod asks;
mod batch;
mod calls;
mod class;
mod few;
mod from_client;
mod from_server;
mod handshake;
mod held;
mod latency;
mod lent;
mod levels;
mod lists;
mod note;
mod refused;
mod roots;
mod said;
mod snapshot;
mod subscriptions;
mod tasks;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::{Key, Message, Owned};
use crate::time::Moment;

use asks::{Asks, ambiguous_method};
use batch::Batches;
use calls::{Call, Calls, Kind, Minted};
use few::Few;
use handshake::{Greeting, Handshake};
use held::Held;
use latency::Latency;
use lent::Lent;
use levels::{Level, Levels};
use lists::Lists;
use note::Notes;
use roots::Roots;
use said::Said;
use subscriptions::Subscriptions;
use tasks::Tasks;
use turns::Turns;

pub use crate::lifetime::ClientId;
pub use class::{Class, Era, Opening, client_name, opening};
pub use note::{Note, Side, Unaddressed};

/// What may be shared beyond the process itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// Whether lists are asked for once and kept for others, where the protocol says for how long.
    pub cache: bool,

    /// Whether calls of tools take turns: the next is sent when the last is answered or cancelled.
    pub in_turn: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            cache: true,
            in_turn: false,
        }
    }
}

/// A line for several clients that has at least this many bytes is one [`Out::ToClients`], and so is each message of a batch
/// that has: a copy for each client would take as much memory as all of them together.
pub const SHARED_FROM: usize = 64 * 1024;

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// Write this line to the server.
    ToServer {
        /// What it may be written before and after.
        lane: Lane,
        /// Without the newline.
        line: Owned,
    },

    /// Write this line to a client.
    ToClient {
        /// Which one.
        client: ClientId,
        /// Without the newline.
        line: Owned,
    },

    /// Write this line to several clients: one long line that all of them hear, or one message of a long batch.
    ToClients {
        /// Which ones: at least two.
        clients: Vec<ClientId>,
        /// Without the newline.
        line: Owned,
    },

    /// This client cannot share this server any more: tell it to go solo. It is forgotten here as if
    /// it had left; nothing more comes for it.
    Dismiss {
        /// Which one.
        client: ClientId,
        /// Those of its requests of which the server has heard nothing.
        unsent: Vec<Key>,
        /// For people: completes "it goes solo: …".
        why: &'static str,
    },
}

/// What a line for the server may be written before and after. Within a lane, lines stay in order;
/// between two lanes no order is relied on, except that `Front` goes
/// first, up to half of what is written at once.
///
/// The lane of a client that left is written to its end: its answers to the server are in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Lane {
    /// What changes the server for all clients: written before anybody's lane.
    Front,
    /// What one client said.
    Of(ClientId),
    /// What the mux says itself, or on behalf of several.
    Own,
}

/// The clients of one class, and the server they share.
///
/// Three kinds of methods:
/// - **what happened**: [`join`](Self::join), [`client_eof`](Self::client_eof),
///   [`leave`](Self::leave), with a line each [`from_client`](Self::from_client) and
///   [`from_server`](Self::from_server), and [`tick`](Self::tick) when it is [`due`](Self::due).
/// - **what follows**: [`poll`](Self::poll), [`poll_note`](Self::poll_note).
/// - **where it stands**: the others.
///
/// The order of calls: hand in one thing that happened, then poll until there is nothing left. Lines
/// have no newline, neither those handed in nor those handed out.
///
/// ```
/// use kennel_core::mux::{Class, ClientId, Lane, Mux, Out, Policy};
/// use kennel_core::time::Moment;
///
/// let mut mux = Mux::new(Class::private(), Policy::default());
/// mux.join(ClientId(7), "its session");
/// let call = br#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"pay"}}"#;
/// mux.from_client(ClientId(7), call, Moment::START);
///
/// let line = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}"#.to_vec().into();
/// let lane = Lane::Of(ClientId(7));
/// assert_eq!(mux.poll(), Some(Out::ToServer { lane, line }));
///
/// mux.from_server(br#"{"jsonrpc":"2.0","id":1,"result":{"x":1.0}}"#, Moment::START);
/// let line = br#"{"jsonrpc":"2.0","id":"a","result":{"x":1.0}}"#.to_vec().into();
/// assert_eq!(mux.poll(), Some(Out::ToClient { client: ClientId(7), line }));
/// ```
#[derive(Debug, Serialize, Deserialize)]
pub struct Mux {
    class: Class,
    policy: Policy,
    clients: BTreeMap<ClientId, Client>,
    sessions: Sessions,
    handshake: Handshake,
    calls: Calls,
    asks: Asks,
    batches: Batches,
    lists: Lists,
    subscriptions: Subscriptions,
    levels: Levels,
    tasks: Tasks,
    roots: Roots,
    #[serde(default)]
    held: Held,
    turns: Turns,
    #[serde(skip)]
    out: VecDeque<Out>,
    #[serde(skip)]
    lent: Option<Lent>,
    /// Bytes of the copies that were made of the server's line that is being looked at.
    #[serde(skip)]
    copied: usize,
    #[serde(skip)]
    is_short_of_memory: bool,
    #[serde(skip)]
    notes: Notes,
    requests: u64,
    #[serde(skip)]
    latency: Latency,
    #[serde(with = "snapshot::words")]
    ambiguous: Option<Words>,
    knows_discover: Option<bool>,
}

/// Words of ours, which are there for good.
type Words = &'static str;

#[derive(Debug, Serialize, Deserialize)]
struct Client {
    session: Arc<str>,
    greeting: Greeting,
    /// It said `initialized` (legacy).
    initialized: bool,
    /// It will say nothing more, but still listens.
    silent: bool,
    level: Option<Level>,
    /// As last told, canonical; empty if it could not.
    roots: Option<String>,
}

/// Who ever joined, as far as it matters.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Sessions {
    first: Option<Arc<str>>,
    several: bool,
}

impl Sessions {
    /// The only one there ever was.
    fn only(&self) -> Option<Arc<str>> {
        match self.several {
            true => None,
            false => self.first.clone(),
        }
    }
}

impl Mux {
    /// With a server that has heard nothing yet, and no clients.
    pub fn new(class: Class, policy: Policy) -> Mux {
        Mux {
            class,
            policy,
            clients: BTreeMap::new(),
            sessions: Sessions::default(),
            handshake: Handshake::default(),
            calls: Calls::default(),
            asks: Asks::default(),
            batches: Batches::default(),
            lists: Lists::default(),
            subscriptions: Subscriptions::default(),
            levels: Levels::default(),
            tasks: Tasks::default(),
            roots: Roots::default(),
            held: Held::default(),
            turns: Turns::default(),
            out: VecDeque::new(),
            lent: None,
            copied: 0,
            is_short_of_memory: false,
            notes: Notes::default(),
            requests: 0,
            latency: Latency::default(),
            ambiguous: None,
            knows_discover: None,
        }
    }

    /// A client is there. `session` is its random session id: whoever comes back with it, on whatever
    /// connection, owns the tasks it had.
    pub fn join(&mut self, client: ClientId, session: &str) {
        let session: Arc<str> = session.into();
        match &self.sessions.first {
            None => self.sessions.first = Some(session.clone()),
            Some(first) => self.sessions.several |= *first != session,
        }
        self.clients.entry(client).or_insert(Client {
            session,
            greeting: Greeting::None,
            initialized: false,
            silent: false,
            level: None,
            roots: None,
        });
    }

    /// A client will say nothing more, but still listens (a half-close): it gets the answers it waits
    /// for, and is asked nothing any more.
    pub fn client_eof(&mut self, client: ClientId, now: Moment) {
        if let Some(silent) = self.clients.get_mut(&client) {
            silent.silent = true;
            self.refuse_roots_for(client);
            self.asks_left(client);
            self.let_go(now);
        }
    }

    /// A client is gone: nothing more comes for it, and the server is told what is of no more use.
    pub fn leave(&mut self, client: ClientId, now: Moment) {
        self.forget(client);
        self.let_go(now);
    }

    fn forget(&mut self, client: ClientId) {
        // First: it must be known whom the server works for.
        self.refuse_roots_for(client);
        let Some(gone) = self.clients.remove(&client) else {
            return;
        };
        self.held.forget(client);
        // First: the last request that is given up would complete its batch.
        self.batches.leave(client);
        let requests: Vec<Key> = self.calls.of(client).map(|(key, _)| key.clone()).collect();
        for key in requests {
            self.no_more_wanted(client, &key, &gone.session, None);
        }
        self.calls.forget_idle();
        self.release_all(client);
        self.asks_left(client);
        self.settle_level();
    }

    /// Whether the server owes an answer to `server/discover`, and has answered nothing else.
    pub fn is_asked_to_discover(&self) -> bool {
        let is_unknown = self.knows_discover.is_none() && self.latency().is_none();
        is_unknown && !self.probing().is_empty()
    }

    /// The server exited on `server/discover`, and does not know it: those who asked are told what a server that stays would
    /// have told them.
    pub fn server_exited(&mut self) {
        if !self.is_asked_to_discover() {
            return;
        }
        for (client, batch, id) in self.probing() {
            self.knows_discover = Some(false);
            self.answer(client, batch, refused::ended_on_discover(&id));
        }
    }

    /// Whether long answers that are kept are copied for whoever asks for them. While memory is short they are not: the
    /// server is asked.
    pub fn set_short_of_memory(&mut self, is_short: bool) {
        self.is_short_of_memory = is_short;
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Out> {
        self.out.pop_front()
    }

    /// The next thing worth a line in the log.
    pub fn poll_note(&mut self) -> Option<Note> {
        self.notes.pop()
    }

    /// What its clients have in common.
    pub fn class(&self) -> &Class {
        &self.class
    }

    /// How many clients are there.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// How many requests of clients were forwarded or answered, pings aside.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// How long the server takes for an answer: the median of the last few.
    pub fn latency(&self) -> Option<Duration> {
        self.latency.median()
    }

    /// Whether a client waits for the answer to a request. A subscription that lasts until somebody ends it does not count.
    pub fn is_pending(&self) -> bool {
        let awaited = |call: &Call| call.kind != Kind::Listen && !call.waiters.is_empty();
        self.calls.in_flight().any(awaited)
    }

    /// Whether another client may join: not once the server asked something that could be any
    /// client's, not while it may turn into a legacy one, and no second one in a private class.
    pub fn takes_newcomers(&self) -> bool {
        let private = !self.class.is_shared() && self.sessions.first.is_some();
        self.ambiguous().is_none() && !private
    }

    /// What the server asked that could be any client's, if it did; or `initialize`, while a server of the modern era has
    /// not answered it.
    pub fn ambiguous(&self) -> Option<&'static str> {
        let is_late = |call: &Call| call.kind == Kind::LateInitialize;
        let turns_legacy = || self.calls.in_flight().any(is_late);
        self.ambiguous
            .or_else(|| turns_legacy().then_some(ambiguous_method("initialize")))
    }

    /// How many answers this client still waits for. A subscription that lasts until somebody ends it
    /// (`subscriptions/listen`) does not count: a client that closed its half would wait for ever.
    pub fn waits_for(&self, client: ClientId) -> usize {
        let ends = |minted: Minted| {
            let call = self.calls.get(minted);
            call.is_some_and(|call| call.kind != Kind::Listen)
        };
        let asked = self.calls.of(client).filter(|(_, it)| ends(*it)).count();
        asked + self.held_of(client).len()
    }

    /// The ids of this client's requests that have no answer yet, as it spelled them.
    pub fn in_flight_of(&self, client: ClientId) -> Vec<Vec<u8>> {
        let id = |(key, minted): (&Key, Minted)| {
            let mut waiters = self.calls.get(minted)?.waiters.iter();
            let waiter = waiters.find(|it| it.client == client && it.key == *key)?;
            Some(waiter.id.to_vec())
        };
        self.calls.of(client).filter_map(id).collect()
    }

    /// Whose requests this line for the server is: all who wait for its answer, each with its id as
    /// spelled. For a line that was never written when the server ended.
    pub fn askers(&self, line: &[u8]) -> Vec<(ClientId, Vec<u8>)> {
        let minted = match Message::parse(line) {
            Ok(Message::Request(request)) => from_server::minted(&request.id.key()),
            _ => None,
        };
        let call = minted.and_then(|minted| self.calls.get(minted));
        let waiters = call.map_or(&[][..], |call| &call.waiters);
        waiters
            .iter()
            .map(|it| (it.client, it.id.to_vec()))
            .collect()
    }

    /// Whether the server knows `server/discover`, which tells a modern one. `None`: nobody asked it
    /// yet, or it has not answered.
    pub fn knows_discover(&self) -> Option<bool> {
        self.knows_discover
    }

    /// A client cannot stay: it is forgotten as if it left, and told so.
    fn dismiss(&mut self, client: ClientId, why: &'static str) {
        let mut unsent = self.held_of(client);
        unsent.extend(self.keys_in_turn(client));
        self.forget(client);
        self.out.push_back(Out::Dismiss {
            client,
            unsent,
            why,
        });
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        self.clients.get_mut(&client).expect("it is attached")
    }

    /// Who is here for this session: the latest, should an older connection not be gone yet.
    fn client_of(&self, session: &Arc<str>) -> Option<ClientId> {
        let mut latest_first = self.clients.iter().rev();
        let found = latest_first.find(|(_, client)| client.session == *session)?;
        Some(*found.0)
    }

    /// Who hears what is for all: those whose handshake is done. Until the server knows of any, who
    /// began it.
    fn audience(&self) -> Vec<ClientId> {
        let legacy = self.class.is_shared() && self.class.era() == Era::Legacy;
        let hears = |client: &ClientId| match (legacy, self.handshake.confirmed) {
            (false, _) => true,
            (true, true) => self.clients[client].initialized,
            (true, false) => self.handshake.by == Some(*client),
        };
        self.clients.keys().copied().filter(hears).collect()
    }

    /// Asks the server something on the mux's own account, and in front.
    fn ask_as_mux(&mut self, method: &str, params: &str, kind: Kind) -> Minted {
        let minted = self.calls.mint();
        let call = Call {
            kind,
            lane: Lane::Front,
            waiters: Few::none(),
            session: None,
            token: None,
            logs: false,
            asked: None,
            counts_for: None,
        };
        self.calls.insert(minted, call);
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{minted},"method":"{method}","params":{params}}}"#);
        self.tell_server(Lane::Front, line.into_bytes());
        minted
    }

    fn tell_server(&mut self, lane: Lane, line: Vec<u8>) {
        let line = line.into();
        self.out.push_back(Out::ToServer { lane, line });
    }

    fn say(&mut self, client: ClientId, line: Vec<u8>) {
        if self.clients.contains_key(&client) {
            let line = line.into();
            self.out.push_back(Out::ToClient { client, line });
        }
    }

    fn say_to(&mut self, clients: impl IntoIterator<Item = ClientId>, said: &Said<'_>) {
        if said.line_length() < SHARED_FROM {
            for client in clients {
                self.say_with(client, said, &[]);
            }
            return;
        }
        let mut present: Vec<ClientId> = clients.into_iter().collect();
        present.retain(|client| self.clients.contains_key(client));
        match present[..] {
            [] => {}
            [client] => self.say_with(client, said, &[]),
            _ => self.say_to_all_of(present, said),
        }
    }
}
