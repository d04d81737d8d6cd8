//! An app that writes notes and reads them, and keeps book of what it was answered.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use kennel_testkit::{Client, Rng};
use serde_json::{Value, json};

/// So many requests may be open at once.
const OPEN: usize = 4;

/// What became of a note that was to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// It was acknowledged.
    Yes,
    /// It was answered with an error that says the outcome is unknown, or its shim was killed.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Add(u64),
    Put(u64),
    Read,
}

/// What one app asked for, and was answered.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) added: BTreeMap<String, Added>,
    /// The last version of its own note that was acknowledged, and the last that it asked for.
    pub(crate) put: u64,
    pub(crate) put_asked: u64,
    pub(crate) answers: u64,
}

pub(crate) struct App {
    number: usize,
    command: Box<dyn Fn() -> Command + Send>,
    client: Client,
    open: BTreeMap<u64, Asked>,
    next_note: u64,
    book: Book,
}

impl App {
    pub(crate) fn begin(number: usize, command: Box<dyn Fn() -> Command + Send>) -> App {
        App {
            number,
            client: begin(&command),
            command,
            open: BTreeMap::new(),
            next_note: 0,
            book: Book::default(),
        }
    }

    /// Asks and listens until told to stop, and then until all is answered.
    pub(crate) fn work(mut self, stop: &AtomicBool, chance: &mut Rng) -> (Client, Book) {
        loop {
            let stopped = stop.load(Ordering::SeqCst);
            while !stopped && self.open.len() < OPEN {
                self.ask(chance);
            }
            if self.open.is_empty() {
                // The last to be killed may have been its shim.
                let id = self.client.send("ping", json!({}));
                if self.client.try_answer(id).is_none() {
                    self.start_again();
                }
                return (self.client, self.book);
            }
            match self.client.line() {
                Some(line) => self.hear(&line),
                None => self.start_again(),
            }
        }
    }

    fn ask(&mut self, chance: &mut Rng) {
        let putting = self
            .open
            .values()
            .any(|asked| matches!(asked, Asked::Put(_)));
        let (asked, tool, arguments) = match chance.below(4) {
            0 | 1 => {
                let note = self.next_note;
                self.next_note += 1;
                let text = self.text(note);
                (Asked::Add(note), "add_note", json!({"text": text}))
            }
            // One at a time: of two that are under way, either may be the last.
            2 if !putting => {
                self.book.put_asked += 1;
                let version = self.book.put_asked;
                let arguments = json!({"key": self.key(), "text": version.to_string()});
                (Asked::Put(version), "put_note", arguments)
            }
            _ => (
                Asked::Read,
                "search_notes",
                json!({"query": self.key(), "limit": 1}),
            ),
        };
        let params = json!({"name": tool, "arguments": arguments});
        let id = self.client.send("tools/call", params);
        self.open.insert(id, asked);
    }

    fn hear(&mut self, line: &str) {
        let line: Value = serde_json::from_str(line).expect("stdout is the protocol (rule 12)");
        if line["method"].is_string() {
            assert!(line["id"].is_null(), "nobody asks us anything: {line}");
            return;
        }
        let id = line["id"].as_u64().expect("an answer to us");
        let asked = self.open.remove(&id);
        let asked = asked.unwrap_or_else(|| panic!("a second answer, or one to nothing: {line}"));
        self.book.answers += 1;
        let error = &line["error"];
        match asked {
            Asked::Add(note) => {
                let added = match error.is_object() {
                    true => {
                        assert_eq!(error["data"]["outcome"], "unknown", "{line}");
                        Added::Unknown
                    }
                    false => {
                        assert_ne!(line["result"]["isError"], true, "{line}");
                        Added::Yes
                    }
                };
                self.book.added.insert(self.text(note), added);
            }
            // What may be repeated is, unless it seems to be what kills the server.
            Asked::Put(_) | Asked::Read if error["data"]["replayed"] == true => {}
            Asked::Put(version) => {
                assert!(error.is_null(), "{line}");
                assert_ne!(line["result"]["isError"], true, "{line}");
                self.book.put = version;
            }
            Asked::Read => assert!(error.is_null(), "{line}"),
        }
    }

    /// Its shim was killed: of what was open nothing is known.
    fn start_again(&mut self) {
        for asked in std::mem::take(&mut self.open).into_values() {
            if let Asked::Add(note) = asked {
                self.book.added.insert(self.text(note), Added::Unknown);
            }
        }
        self.client = begin(&self.command);
    }

    pub(crate) fn key(&self) -> String {
        key_of(self.number)
    }

    fn text(&self, note: u64) -> String {
        format!("note {note} of {}.", self.number)
    }
}

pub(crate) fn key_of(number: usize) -> String {
    format!("the one of {number}")
}

/// A session that has seen which tools may be called twice, as every app's does. Its own shim may be killed
/// meanwhile.
fn begin(command: &dyn Fn() -> Command) -> Client {
    loop {
        let mut client = Client::start(&mut command());
        let id = client.ask_to_initialize();
        if client.try_answer(id).is_none() {
            continue;
        }
        client.say("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        let id = client.send("tools/list", json!({}));
        if let Some(answer) = client.try_answer(id) {
            assert!(answer["error"].is_null(), "{answer}");
            return client;
        }
    }
}
