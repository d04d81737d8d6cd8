//! Several clients and one server, as bytes tell it.
//!
//! The first line says which class (`L` legacy, `B` with batches, `M` modern, `P` private) and policy (`t` calls
//! take turns, `n` no cache). Each line behind it is a step, and its first byte says which:
//!
//! | step | what happens |
//! |---|---|
//! | `+c`, `-c`, `.c` | client `c` joins, leaves, will say no more |
//! | `0…` to `3…` | a client says the rest of the line |
//! | `<…` | the server says the rest of the line |
//! | `ic` | client `c` shakes hands |
//! | `an…`, `en`, `pn` | the server answers its `n`th open request with the rest, with an error, with progress |
//! | `xck` | client `c` cancels its `k`th open request |
//! | `rck…` | client `c` answers the `k`th question it was asked with the rest |
//! | `tn` | so many minutes pass |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kennel_core::message::{Key, Message, Owned, Scan, splice_id};
use kennel_core::mux::{Class, ClientId, Lane, Mux, MuxPolicy, Opening, Output, opening};
use kennel_core::time::Moment;

use crate::ledger::{Ledger, as_read, is_refusal, messages, well_formed};

const CLIENTS: u8 = 4;
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

pub(crate) fn check(bytes: &[u8]) {
    let mut lines = bytes.split(|&byte| byte == b'\n');
    let mut world = World::new(lines.next().unwrap_or_default());
    for line in lines {
        if let Some((step, rest)) = line.split_first() {
            world.step(*step, rest);
        }
    }
    world.finish(bytes.len());
}

struct World {
    mux: Mux,
    version: &'static str,
    is_private: bool,
    has_batches: bool,
    now: Moment,
    /// By place.
    clients: BTreeMap<u8, Client>,
    joined: u64,
    /// What the server was asked and has neither answered nor been told to forget.
    open: BTreeMap<i64, Asked>,
    minted: BTreeSet<i64>,
    /// What the server asked.
    server: Ledger,
    /// The request that is being said, if nothing but its id may change in it.
    saying: Option<(ClientId, Vec<u8>)>,
}

struct Client {
    id: ClientId,
    place: u8,
    silent: bool,
    ledger: Ledger,
    /// What it is asked, and has not answered.
    questions: Vec<i64>,
    asked: BTreeSet<i64>,
}

struct Asked {
    lane: Lane,
    /// The place whose client said it, if one did and it alone waits for it.
    place: Option<u8>,
    /// What it is to that client.
    key: Option<Key>,
    /// Its answer changes in nothing but the id.
    plain: bool,
}

/// What a line for somebody may be, beside what the ledgers say.
#[derive(Default)]
struct Allowed {
    /// Only this client may hear the answer, under this id, and this is all of it.
    answer: Option<(u8, Key, Vec<u8>)>,
    /// Only clients of this place may hear of it.
    progress: Option<u8>,
}

impl World {
    fn new(header: &[u8]) -> World {
        let has = |flag: u8| header.contains(&flag);
        let version = if has(b'B') {
            "2025-03-26"
        } else {
            "2025-11-25"
        };
        let class = match header.first() {
            Some(b'M') => Class::modern(),
            Some(b'P') => Class::private(),
            _ => match opening(&well_formed(&initialize(version))) {
                Opening::Legacy(class) => class,
                other => panic!("{other:?}"),
            },
        };
        let policy = MuxPolicy {
            cache: !has(b'n'),
            in_turn: has(b't'),
        };
        World {
            is_private: header.first() == Some(&b'P'),
            has_batches: match header.first() {
                Some(b'M') => false,
                Some(b'P') => true,
                _ => has(b'B'),
            },
            mux: Mux::new(class, policy),
            version,
            now: Moment::START,
            clients: BTreeMap::new(),
            joined: 0,
            open: BTreeMap::new(),
            minted: BTreeSet::new(),
            server: Ledger::default(),
            saying: None,
        }
    }

    fn step(&mut self, step: u8, rest: &[u8]) {
        let first = rest.first().copied().unwrap_or(0);
        let place = first % CLIENTS;
        let behind = rest.get(1..).unwrap_or_default();
        match step {
            b'+' => self.join(place),
            b'-' => self.leave(place),
            b'.' => self.falls_silent(place),
            b'0'..=b'3' => self.client_says(step - b'0', rest),
            b'<' => self.server_says(rest),
            b'i' => self.shakes_hands(place),
            b'a' => {
                let result = if behind.is_empty() { b"{}" } else { behind };
                self.server_answers(first, |id| result_line(id, result));
            }
            b'e' => self.server_answers(first, error_line),
            b'p' => {
                if let Some(id) = self.nth_open(first) {
                    let params = format!(r#"{{"progressToken":{id},"progress":0.50}}"#);
                    self.server_says(&notice("notifications/progress", &params));
                }
            }
            b'x' => {
                let Some(id) = self.nth_of(place, behind.first().copied().unwrap_or(0)) else {
                    return;
                };
                let params = format!(r#"{{"requestId":{id}}}"#);
                self.client_says(place, &notice("notifications/cancelled", &params));
            }
            b'r' => {
                let (nth, result) = behind.split_first().unwrap_or((&0, b""));
                let result = if result.is_empty() { b"{}" } else { result };
                if let Some(id) = self.question(place, *nth) {
                    self.client_says(place, &result_line(id, result));
                }
            }
            b't' => self.now = self.now + Duration::from_secs(60 * u64::from(first % 16)),
            _ => {}
        }
    }

    fn join(&mut self, place: u8) {
        if self.clients.contains_key(&place) || !self.mux.accepts_clients() {
            return;
        }
        self.joined += 1;
        let client = Client {
            id: ClientId(self.joined),
            place,
            silent: false,
            ledger: Ledger::default(),
            questions: Vec::new(),
            asked: BTreeSet::new(),
        };
        // Who comes back has its session with it.
        self.mux.join(client.id, &format!("session {place}"));
        self.clients.insert(place, client);
        self.settle(&Allowed::default());
    }

    fn leave(&mut self, place: u8) {
        if let Some(client) = self.clients.remove(&place) {
            self.mux.leave(client.id, self.now);
            assert!(self.mux.in_flight_of(client.id).is_empty());
            self.settle(&Allowed::default());
        }
    }

    fn falls_silent(&mut self, place: u8) {
        if let Some(client) = self.clients.get_mut(&place) {
            client.silent = true;
            client.questions.clear();
            self.mux.handle_client_eof(client.id, self.now);
            self.settle(&Allowed::default());
        }
    }

    fn shakes_hands(&mut self, place: u8) {
        self.client_says(place, &initialize(self.version));
        let newest = self.minted.last().copied();
        if let Some(id) = newest.filter(|id| self.open.contains_key(id)) {
            let welcome = format!(
                r#"{{"protocolVersion":"{}","capabilities":{{"tools":{{"listChanged":true}}}}}}"#,
                self.version
            );
            self.server_says(&result_line(id, welcome.as_bytes()));
        }
        self.client_says(place, INITIALIZED);
    }

    fn client_says(&mut self, place: u8, line: &[u8]) {
        let Some(client) = self.clients.get_mut(&place).filter(|it| !it.silent) else {
            return;
        };
        let id = client.id;
        let before = asked_of(&self.mux, id);
        let mut cancelled = false;
        // What some readers take for another message is malformed where a server is shared.
        let is_exact = self.is_private || Message::parse_exact(as_one(line).as_bytes()).is_ok();
        match Message::parse(line).ok().filter(|_| is_exact) {
            // Refused under each id that is not another's.
            Some(Message::Batch(batch)) if !self.has_batches => {
                for member in &batch.members {
                    if let Message::Request(request) = &member.message
                        && !before.contains(&request.id.key())
                    {
                        client.ledger.asked(request.id.key());
                    }
                }
            }
            Some(message) => {
                // It may be spelled with escapes.
                let may_have_token =
                    line.contains(&b'\\') || line.windows(13).any(|it| it == b"progressToken");
                if let (Message::Request(_), false) = (&message, may_have_token) {
                    self.saying = Some((id, line.to_vec()));
                }
                let in_batch = matches!(message, Message::Batch(_));
                for message in messages(&message) {
                    match message {
                        Message::Request(request) => client.ledger.asked(request.id.key()),
                        Message::Notification(it) => match it.cancelled() {
                            Ok(Some(id)) if in_batch => client.ledger.perhaps_cancelled(&id.key()),
                            Ok(Some(_)) => cancelled = true,
                            Ok(None) | Err(_) => {}
                        },
                        Message::Response(it) => {
                            let key = it.id.and_then(|id| id.key().as_integer());
                            let answers = |it: &i64| key == Some(*it);
                            client.questions.retain(|it| !answers(it));
                        }
                        Message::Batch(_) => panic!("a batch in a batch"),
                    }
                }
            }
            // It may be refused.
            None => {}
        }
        let owned = Owned::with_headroom(line.to_vec(), 0);
        self.mux
            .handle_owned_client_line(id, owned, &Scan::default(), self.now);
        if cancelled {
            let after = asked_of(&self.mux, id);
            let count = |asked: &[Key], key: &Key| asked.iter().filter(|it| *it == key).count();
            // It may be spelled otherwise.
            let gone = before
                .iter()
                .find(|key| count(&after, key) < count(&before, key));
            if let Some(key) = gone {
                let client = self.clients.get_mut(&place).expect("it is there");
                client.ledger.cancelled(key);
            }
        }
        self.settle(&Allowed::default());
        self.saying = None;
    }

    fn server_says(&mut self, line: &[u8]) {
        let mut allowed = Allowed::default();
        let read = as_read(line);
        if let Ok(message) = Message::parse(&read) {
            for message in messages(&message) {
                match message {
                    Message::Request(request) => self.server.asked(request.id.key()),
                    Message::Notification(it) => {
                        if let Ok(Some(id)) = it.cancelled() {
                            self.server.perhaps_cancelled(&id.key());
                            // Modern: of a subscription.
                            if let Some(id) = id.key().as_integer() {
                                self.ended_by_server(id);
                            }
                        }
                    }
                    Message::Response(it) => {
                        if let Some(id) = it.id.and_then(|id| id.key().as_integer()) {
                            let asked = self.open.remove(&id);
                            allowed.answer = asked.and_then(|asked| {
                                let key = asked.key.filter(|_| asked.plain)?;
                                Some((asked.place?, key, read.clone()))
                            });
                        }
                    }
                    Message::Batch(_) => panic!("a batch in a batch"),
                }
            }
            if let Message::Batch(_) = message {
                allowed.answer = None;
            }
            allowed.progress = self.place_of_progress(&message);
        }
        let owned = Owned::with_headroom([b"12", line].concat(), 2);
        self.mux
            .handle_owned_server_line(owned, &Scan::default(), self.now);
        self.settle(&allowed);
    }

    /// A subscription that the server cancels is over, and its client is not answered.
    fn ended_by_server(&mut self, id: i64) {
        if let Some(asked) = self.open.get(&id)
            && let (Some(place), Some(key)) = (asked.place, &asked.key)
            && let Some(client) = self.clients.get_mut(&place)
        {
            client.ledger.perhaps_cancelled(key);
        }
    }

    fn place_of_progress(&self, message: &Message<'_>) -> Option<u8> {
        let Message::Notification(it) = message else {
            return None;
        };
        if !it.method.is("notifications/progress") {
            return None;
        }
        let params: serde_json::Value = serde_json::from_slice(it.params?.bytes()).ok()?;
        let asked = self.open.get(&params["progressToken"].as_i64()?)?;
        asked.place
    }

    fn server_answers(&mut self, nth: u8, line: impl Fn(i64) -> Vec<u8>) {
        if let Some(id) = self.nth_open(nth) {
            self.server_says(&line(id));
        }
    }

    fn nth_open(&self, nth: u8) -> Option<i64> {
        let nth = usize::from(nth) % self.open.len().max(1);
        self.open.keys().nth(nth).copied()
    }

    fn nth_of(&self, place: u8, nth: u8) -> Option<String> {
        let ids = self.mux.in_flight_of(self.clients.get(&place)?.id);
        let id = ids.get(usize::from(nth) % ids.len().max(1))?;
        String::from_utf8(id.clone()).ok()
    }

    fn question(&self, place: u8, nth: u8) -> Option<i64> {
        let questions = &self.clients.get(&place)?.questions;
        let nth = usize::from(nth) % questions.len().max(1);
        questions.get(nth).copied()
    }

    fn settle(&mut self, allowed: &Allowed) {
        while let Some(out) = self.mux.poll_output() {
            match out {
                Output::ToServer { lane, line } => self.server_hears(lane, &line),
                Output::ToClient { client, line } => {
                    self.client_hears(client, &line, allowed);
                }
                Output::ToClients { clients, line } => {
                    for client in clients {
                        self.client_hears(client, &line, allowed);
                    }
                }
                Output::Dismiss { client, .. } => {
                    let count = self.clients.len();
                    self.clients.retain(|_, it| it.id != client);
                    assert_eq!(self.clients.len() + 1, count, "it was there");
                }
            }
        }
        while let Some(note) = self.mux.poll_note() {
            assert!(!note.to_string().contains('\n'), "one line of the log");
        }
    }

    fn server_hears(&mut self, lane: Lane, line: &[u8]) {
        let message = well_formed(line);
        match &message {
            Message::Request(request) => {
                let Key::Number(id) = request.id.key() else {
                    panic!("not minted: {message:?}")
                };
                assert!(self.minted.insert(id), "{id} is minted twice");
                let asked = self.attribute(lane, line, &message);
                self.open.insert(id, asked);
            }
            Message::Notification(it) => {
                if let Ok(Some(id)) = it.cancelled() {
                    let Key::Number(id) = id.key() else {
                        panic!("a cancellation of what was never asked: {message:?}")
                    };
                    let asked = self.open.remove(&id);
                    let asked = asked.expect("what is cancelled was asked, and not answered");
                    assert_eq!(lane, asked.lane, "it must not overtake its request");
                }
            }
            Message::Response(it) => {
                let key = it.id.expect("it answers something").key();
                let asked = self.server.answered(&key) || is_refusal(it);
                assert!(asked, "the server never asked {key}");
            }
            Message::Batch(_) => panic!("a batch for the server"),
        }
    }

    /// Whose request it is. In the lane of a client is only what that client said, and of what it waits for
    /// nothing but the id has changed.
    fn attribute(&self, lane: Lane, line: &[u8], message: &Message<'_>) -> Asked {
        let client = match lane {
            Lane::Of(id) => self.clients.values().find(|it| it.id == id),
            Lane::Front | Lane::Own => None,
        };
        let Message::Request(request) = message else {
            panic!("a request")
        };
        let (method, id) = (request.method.name(), request.id);
        let alone = !method.ends_with("/list") && !method.ends_with("/templates/list");
        let waiters_of_line = self.mux.waiters_of_line(line);
        let key = match &waiters_of_line[..] {
            [(asker, spelled)] if alone && client.is_some_and(|it| it.id == *asker) => {
                let back = splice_id(line, &id, spelled);
                if let Some((saying, said)) = &self.saying
                    && saying == asker
                {
                    assert_eq!(as_one(&back), as_one(said), "rule 11");
                }
                let key = well_formed(&back).id().map(|id| id.key());
                key.filter(|key| client.is_some_and(|it| it.ledger.is_open(key)))
            }
            _ => None,
        };
        if let Lane::Of(_) = lane
            && alone
            && client.is_some()
            && !waiters_of_line.is_empty()
        {
            assert!(key.is_some(), "who asked this: {message:?}");
        }
        let plain = !method.starts_with("tasks/") && &*method != "subscriptions/listen";
        Asked {
            lane,
            place: client.map(|it| it.place).filter(|_| alone),
            key,
            plain,
        }
    }

    fn client_hears(&mut self, id: ClientId, line: &[u8], allowed: &Allowed) {
        let client = self.clients.values_mut().find(|it| it.id == id);
        let client = client.expect("who hears something is there");
        let message = well_formed(line);
        for message in messages(&message) {
            match message {
                Message::Request(request) => {
                    let Key::Number(id) = request.id.key() else {
                        panic!("not minted: {message:?}")
                    };
                    assert!(!client.silent, "it will not answer");
                    assert!(client.asked.insert(id), "{id} is minted twice");
                    client.questions.push(id);
                }
                Message::Notification(it) => {
                    if let Ok(Some(id)) = it.cancelled()
                        && let Key::Number(id) = id.key()
                    {
                        client.questions.retain(|it| *it != id);
                    }
                    if it.method.is("notifications/progress") {
                        let meant_for = allowed.progress;
                        assert!(
                            meant_for.is_none_or(|place| place == client.place),
                            "progress of another's"
                        );
                    }
                }
                Message::Response(it) => {
                    let key = it.id.expect("it answers something").key();
                    let asked = client.ledger.answered(&key) || is_refusal(it);
                    assert!(asked, "{} never asked {key}", id.0);
                }
                Message::Batch(_) => panic!("a batch in a batch"),
            }
        }
        // What a server answers reaches the one who asked, as it was said.
        if let (Some((place, key, said)), Message::Response(it)) = (&allowed.answer, &message) {
            assert_eq!(client.place, *place, "the answer to another's request");
            let its = it.id.expect("it answers something");
            assert_eq!(its.key(), *key);
            let theirs = well_formed(said).id().expect("it answers something");
            let back = splice_id(line, &its, theirs.raw());
            assert_eq!(as_one(&back), as_one(said), "rule 11");
        }
    }

    /// All is answered that was asked, both ways; and when all are gone, little is left.
    fn finish(&mut self, length: usize) {
        let mut steps = 0;
        while let Some(id) = self.nth_open(0) {
            self.server_says(&result_line(id, b"{}"));
            steps += 1;
            assert!(steps <= 2 * length + 64, "the server is asked for ever");
        }
        for place in 0..CLIENTS {
            while let Some(id) = self.question(place, 0) {
                self.client_says(place, &error_line(id));
            }
        }
        // Who tells no roots, be it that the server made it believe that nobody asks any more, goes solo in the end.
        self.now = self.now + Duration::from_secs(60);
        self.mux.advance(self.now);
        self.settle(&Allowed::default());
        while let Some(id) = self.nth_open(0) {
            self.server_says(&error_line(id));
        }
        for client in self.clients.values() {
            let waiting = client.ledger.waiting();
            assert!(waiting.is_empty(), "{} waits for {waiting:?}", client.id.0);
            assert!(self.mux.in_flight_of(client.id).is_empty());
            assert_eq!(self.mux.pending_requests_of(client.id), 0);
        }
        for place in 0..CLIENTS {
            self.leave(place);
        }
        let waiting = self.server.waiting();
        assert!(waiting.is_empty(), "the server waits for {waiting:?}");
        let left = format!("{:?}", self.mux).len();
        assert!(left < (16 << 10) + 64 * length, "{left} bytes of {length}");
    }
}

/// The same with a space for each carriage return before its end, and with escapes for what else ends a line to some
/// readers: sessions that share a server are told apart by lines.
fn as_one(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let (line, end) = match line.strip_suffix('\r') {
        Some(line) => (line, "\r"),
        None => (&*line, ""),
    };
    let line = line.replace('\r', " ").replace('\u{2028}', "\\u2028");
    let line = line.replace('\u{2029}', "\\u2029");
    line.replace('\u{85}', "\\u0085") + end
}

/// What a client asked and has no answer to.
fn asked_of(mux: &Mux, client: ClientId) -> Vec<Key> {
    let in_flight = mux.in_flight_of(client);
    let in_flight = in_flight.iter().filter_map(|id| Key::of(id));
    in_flight.chain(mux.queued_requests_of(client)).collect()
}

fn initialize(version: &str) -> Vec<u8> {
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{"roots":{{}},"sampling":{{}}}}}}}}"#
    )
    .into_bytes()
}

fn notice(method: &str, params: &str) -> Vec<u8> {
    kennel_core::message::notification(method, params)
}

fn result_line(id: i64, result: &[u8]) -> Vec<u8> {
    result_bytes(id.to_string().as_bytes(), result)
}

fn result_bytes(id: &[u8], result: &[u8]) -> Vec<u8> {
    [
        br#"{"jsonrpc":"2.0","id":"#,
        id,
        br#","result":"#,
        result,
        b"}",
    ]
    .concat()
}

fn error_line(id: i64) -> Vec<u8> {
    kennel_core::message::error_reply(id.to_string().as_bytes(), -32603, "no", None)
}
