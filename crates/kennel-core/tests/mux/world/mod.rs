//! Clients that all count from 0, and a server that answers late, twice, wrongly or never: driven step
//! by step, and every line checked against what was truly said.
//!
//! Every call has a serial of its own, and every answer, all progress and every question of the server
//! says which serial it is about; so what reaches the wrong one shows, whatever the ids are.

mod clients;
mod server;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kennel_core::mux::{ClientId, Lane, MuxPolicy, Output};
use kennel_core::time::Moment;
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

use crate::play::{INITIALIZED, cancel, class_of, initialize, notice, request};
use crate::twins::Twins;

/// One thing that happens. The numbers of a step choose among what there is to choose from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Join { odd_roots: bool },
    Return,
    Leave,
    Call,
    List,
    Subscribe,
    Unsubscribe,
    Cancel,
    Nonsense,
    AnswerServer,
    Read,
    Answer { kindly: bool },
    AnswerTwice,
    Progress,
    Updated,
    Changed,
    Ask { about_nothing: bool },
    AskRoots,
    CancelAsk,
    EndTask,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step(pub(crate) What, pub(crate) usize, pub(crate) usize);

pub(crate) struct World {
    mux: Twins,
    clients: BTreeMap<u64, Client>,
    server: Server,
    facts: BTreeMap<u64, Fact>,
    joined: u64,
    sessions: BTreeSet<u64>,
    left: Vec<u64>,
    /// Sessions that gave up on something else than a call: the server may still be at it.
    haunted: BTreeSet<u64>,
    serials: u64,
}

#[derive(Default)]
struct Client {
    session: u64,
    greeted: bool,
    initialized: bool,
    roots: String,
    open: BTreeMap<u64, Open>,
    wants: BTreeSet<u64>,
    /// The latest version of the list that it heard of.
    version: u64,
    /// How many updates of resources it heard of.
    updates: usize,
    /// What it was asked: the id it knows it by, and the method.
    asked: Vec<(String, String)>,
}

/// A client's request without its answer.
#[derive(Clone, Copy, Debug)]
enum Open {
    Greeting,
    Call(u64),
    /// What it must at least be told.
    List(u64),
    Subscribe {
        uri: u64,
        void: bool,
    },
    Unsubscribe,
}

/// What is true of a call.
struct Fact {
    session: u64,
    /// The server has it, or will.
    sent: bool,
    /// Whom it matters to; nobody, once it was cancelled.
    client: Option<u64>,
    answered: bool,
    /// Its answer was a task, which goes on.
    task: bool,
    heard: usize,
    progress: usize,
}

#[derive(Default)]
struct Server {
    lanes: BTreeMap<Lane, VecDeque<String>>,
    pending: Vec<Pending>,
    /// Answers that were given: to be given again.
    given: Vec<String>,
    highest: u64,
    greetings: usize,
    confirmations: usize,
    holds: BTreeSet<u64>,
    version: u64,
    /// Its own requests, by id: what they are about.
    asks: BTreeMap<u64, Ask>,
    /// Ids not to be used again: the answer to what was cancelled may be on its way.
    burnt: BTreeSet<u64>,
    told: Option<String>,
}

struct Pending {
    id: u64,
    what: Asked,
    token: bool,
}

enum Asked {
    Greeting,
    Call(u64),
    List(u64),
    Subscribe(u64),
    Unsubscribe,
}

#[derive(Clone, Copy)]
struct Ask {
    serial: Option<u64>,
    roots: bool,
}

impl Fact {
    /// Whether the server may still be at it.
    fn goes_on(&self) -> bool {
        self.sent && (!self.answered || self.task)
    }
}

impl Server {
    fn has_used(&self, id: u64) -> bool {
        self.asks.contains_key(&id) || self.burnt.contains(&id)
    }
}

impl World {
    pub(crate) fn new() -> World {
        let class = class_of(&initialize("0"));
        World {
            mux: Twins::new(class, MuxPolicy::default()),
            clients: BTreeMap::new(),
            server: Server::default(),
            facts: BTreeMap::new(),
            joined: 0,
            sessions: BTreeSet::new(),
            left: Vec::new(),
            haunted: BTreeSet::new(),
            serials: 0,
        }
    }

    pub(crate) fn play(&mut self, Step(what, one, other): Step) -> TestCaseResult {
        match what {
            What::Join { odd_roots } => self.join(self.joined + 1, odd_roots),
            What::Return => match nth(self.left.iter(), one).copied() {
                Some(session) => self.join(session, false),
                None => Ok(()),
            },
            What::Leave => self.leave(one),
            What::Call => self.client_calls(one, other % 2 == 0),
            What::List => self.client_asks(one, |client, id| {
                let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#);
                (Open::List(client.version), line)
            }),
            What::Subscribe => self.client_asks(one, |_, id| {
                let uri = other as u64 % 3;
                let line = request(&id.to_string(), "resources/subscribe", &about(uri));
                (Open::Subscribe { uri, void: false }, line)
            }),
            What::Unsubscribe => self.client_asks(one, |client, id| {
                let uri = other as u64 % 3;
                client.wants.remove(&uri);
                for open in client.open.values_mut() {
                    if let Open::Subscribe { uri: same, void } = open {
                        *void |= *same == uri;
                    }
                }
                let line = request(&id.to_string(), "resources/unsubscribe", &about(uri));
                (Open::Unsubscribe, line)
            }),
            What::Cancel => self.client_cancels(one, other),
            What::Nonsense => self.nonsense(one),
            What::AnswerServer => self.client_answers(one),
            What::Read => self.read(one),
            What::Answer { kindly } => self.answer(one, kindly),
            What::AnswerTwice => match nth(self.server.given.iter(), one).cloned() {
                Some(line) => self.server_says(&line),
                None => Ok(()),
            },
            What::Progress => self.progress(one),
            What::Updated => self.updated(one as u64 % 3),
            What::Changed => {
                self.server.version += 1;
                let params = format!(r#"{{"v":{}}}"#, self.server.version);
                self.server_says(&notice("notifications/tools/list_changed", &params))
            }
            What::Ask { about_nothing } => self.server_asks(one, other, about_nothing),
            What::AskRoots => self.server_asks_roots(one),
            What::EndTask => self.task_ends(one),
            What::CancelAsk => match nth(self.server.asks.keys(), one).copied() {
                Some(id) => {
                    let ask = self.server.asks.remove(&id);
                    if ask.is_some_and(|ask| ask.roots) {
                        // It asked because they had changed, and does not wait for the answer: it knows none.
                        self.server.told = None;
                    }
                    self.server.burnt.insert(id);
                    self.server_says(&cancel(&id.to_string()))
                }
                None => Ok(()),
            },
        }
    }

    /// Lets everybody finish what they owe, and checks that nothing is owed any more.
    pub(crate) fn finish(mut self) -> TestCaseResult {
        for _ in 0..50 {
            while self.server.lanes.values().any(|lane| !lane.is_empty()) {
                self.read(0)?;
            }
            while !self.server.pending.is_empty() {
                self.answer(0, true)?;
            }
            for which in 0..self.clients.len() {
                self.client_answers(which)?;
            }
        }
        for (serial, fact) in &self.facts {
            match fact.client {
                Some(_) => prop_assert_eq!(fact.heard, 1, "rule 4: {}", serial),
                None => prop_assert!(fact.heard <= 1, "rule 4: {serial}"),
            }
        }
        let mut wanted = BTreeSet::new();
        for (number, client) in &self.clients {
            prop_assert!(client.open.is_empty(), "{number} waits: {:?}", client.open);
            prop_assert_eq!(self.mux.pending_requests_of(ClientId(*number)), 0);
            wanted.extend(client.wants.iter().copied());
            if let (Some(told), true) = (&self.server.told, client.initialized) {
                prop_assert_eq!(told, &client.roots, "the server believes otherwise");
            }
        }
        prop_assert_eq!(&self.server.holds, &wanted, "what the server holds for all");
        prop_assert!(self.server.asks.is_empty(), "the server waits");
        Ok(())
    }

    fn join(&mut self, session: u64, odd_roots: bool) -> TestCaseResult {
        let here = |client: &Client| client.session == session;
        if self.clients.values().any(here) {
            return Ok(());
        }
        self.joined += 1;
        let number = self.joined;
        self.sessions.insert(session);
        self.left.retain(|left| *left != session);
        self.mux.join(ClientId(number), &session.to_string());
        let client = Client {
            session,
            roots: if odd_roots { "[1]" } else { "[]" }.to_owned(),
            open: BTreeMap::from([(0, Open::Greeting)]),
            version: self.server.version,
            ..Client::default()
        };
        self.clients.insert(number, client);
        self.client_says(number, &initialize("0"))
    }

    fn leave(&mut self, which: usize) -> TestCaseResult {
        let Some(number) = nth(self.clients.keys(), which).copied() else {
            return Ok(());
        };
        self.gone(number);
        self.mux.leave(ClientId(number), Moment::START);
        self.poll()
    }

    fn gone(&mut self, number: u64) {
        let client = self.clients.remove(&number).expect("it was here");
        self.left.push(client.session);
        self.haunted.insert(client.session);
        for fact in self.facts.values_mut() {
            if fact.client == Some(number) && fact.heard == 0 {
                fact.client = None;
            }
        }
    }

    fn poll(&mut self) -> TestCaseResult {
        let mut ready = Vec::new();
        while let Some(out) = self.mux.poll_output() {
            match out {
                Output::ToServer { lane, line } => {
                    let line = String::from_utf8(line.into()).expect("text");
                    let said: Value = serde_json::from_str(&line).expect("JSON");
                    let serial = said["params"]["serial"].as_u64();
                    if let Some(fact) = serial.and_then(|it| self.facts.get_mut(&it)) {
                        fact.sent = true;
                    }
                    if let Some(roots) = said["result"].get("roots") {
                        self.nobody_is_worked_for_with_other_roots(&roots.to_string())?;
                    }
                    self.server.lanes.entry(lane).or_default().push_back(line);
                }
                Output::ToClient { client, line } => {
                    if self.client_hears(client.0, &line)? {
                        ready.push(client.0);
                    }
                }
                Output::ToClients { clients, line } => {
                    for client in clients {
                        if self.client_hears(client.0, &line)? {
                            ready.push(client.0);
                        }
                    }
                }
                Output::Dismiss { client, .. } => self.gone(client.0),
            }
        }
        for client in ready {
            if self.clients.contains_key(&client) {
                self.client_says(client, INITIALIZED)?;
            }
        }
        Ok(())
    }

    /// The server is told these roots: all who are there and have a call in flight, or a task that goes on, have them.
    fn nobody_is_worked_for_with_other_roots(&self, told: &str) -> TestCaseResult {
        for fact in self.facts.values().filter(|fact| fact.goes_on()) {
            let here = |client: &&Client| client.session == fact.session;
            if let Some(client) = self.clients.values().find(here) {
                prop_assert_eq!(told, &client.roots, "it acts in the roots of another");
            }
        }
        Ok(())
    }

    fn questions(&self) -> usize {
        self.clients.values().map(|client| client.asked.len()).sum()
    }

    fn progress_heard(&self) -> usize {
        self.facts.values().map(|fact| fact.progress).sum()
    }
}

fn call(id: &str, with_token: bool, serial: u64) -> String {
    let token = match with_token {
        true => format!(r#", "_meta":{{"progressToken": {id}}}"#),
        false => String::new(),
    };
    request(
        id,
        "tools/call",
        &format!(r#"{{"serial":{serial},"x":1.0{token}}}"#),
    )
}

fn about(uri: u64) -> String {
    format!(r#"{{"uri":"{uri}"}}"#)
}

fn nth<T>(of: impl Iterator<Item = T>, which: usize) -> Option<T> {
    let mut all: Vec<T> = of.collect();
    match all.len() {
        0 => None,
        count => Some(all.swap_remove(which % count)),
    }
}
