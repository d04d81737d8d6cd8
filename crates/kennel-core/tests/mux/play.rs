//! A mux on a stage: lines in, and what each side hears.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::message::Message;
use kennel_core::mux::{Class, ClientId, Lane, Mux, MuxPolicy, Note, Opening, Output, opening};
use kennel_core::time::Moment;
use serde_json::Value;

pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
pub(crate) const WELCOME: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1.0"}}"#;
/// What a modern request says about itself.
pub(crate) const ENVELOPE: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#;

/// A mux whose sides read all they are sent, at once.
pub(crate) struct Play {
    pub(crate) mux: Mux,
    pub(crate) now: Moment,
    server: Vec<(Lane, String)>,
    clients: BTreeMap<u64, Vec<String>>,
    pub(crate) dismissed: Vec<u64>,
    /// Their requests that no server has heard.
    pub(crate) unsent: Vec<String>,
}

impl Play {
    pub(crate) fn new(class: Class) -> Play {
        Play {
            mux: Mux::new(class, MuxPolicy::default()),
            now: Moment::START,
            server: Vec::new(),
            clients: BTreeMap::new(),
            dismissed: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// Clients 1 to `count`, whose handshakes are done. They can sample and have roots.
    pub(crate) fn legacy(count: u64) -> Play {
        let mut play = Play::greeting();
        for client in 1..=count {
            play.enter(client);
        }
        play.forget();
        play
    }

    /// Nobody yet, in the class of [`initialize`].
    pub(crate) fn greeting() -> Play {
        Play::new(class_of(&initialize("0")))
    }

    /// Clients 1 to `count` of the modern era.
    pub(crate) fn modern(count: u64) -> Play {
        let mut play = Play::new(Class::modern());
        for client in 1..=count {
            play.join(client);
        }
        play
    }

    /// A client comes and does its handshake; the first one's is answered by the server.
    pub(crate) fn enter(&mut self, client: u64) {
        self.join(client);
        self.server.clear();
        self.client(client, &initialize("0"));
        if let Some(line) = self.server_heard().last() {
            self.server(&result(&id_of(line), WELCOME));
        }
        self.client(client, INITIALIZED);
        self.server.retain(|(_, line)| line != INITIALIZED);
    }

    pub(crate) fn join(&mut self, client: u64) {
        self.mux
            .join(ClientId(client), &format!("session {client}"));
    }

    pub(crate) fn leave(&mut self, client: u64) {
        self.mux.leave(ClientId(client), self.now);
        self.poll();
    }

    pub(crate) fn tick(&mut self, now: Moment) {
        self.mux.advance(now);
        self.poll();
    }

    pub(crate) fn client(&mut self, client: u64, line: &str) {
        self.mux
            .handle_client_line(ClientId(client), line.as_bytes(), self.now);
        self.poll();
    }

    pub(crate) fn server(&mut self, line: &str) {
        self.server_bytes(line.as_bytes());
    }

    /// A line that need not be text.
    pub(crate) fn server_bytes(&mut self, line: &[u8]) {
        self.mux.handle_server_line(line, self.now);
        self.poll();
    }

    /// A client's request is sent on: the id the server knows it by.
    pub(crate) fn asks(&mut self, client: u64, line: &str) -> String {
        self.client(client, line);
        let heard = self.server_heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        id_of(&heard[0])
    }

    /// The server's request is passed on: the id the client knows it by.
    pub(crate) fn is_asked(&mut self, client: u64) -> String {
        let heard = self.heard(client);
        assert_eq!(heard.len(), 1, "{heard:?}");
        id_of(&heard[0])
    }

    pub(crate) fn wait(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
    }

    /// What a client heard since it was asked last.
    pub(crate) fn heard(&mut self, client: u64) -> Vec<String> {
        self.clients.remove(&client).unwrap_or_default()
    }

    /// What the server heard since it was asked last.
    pub(crate) fn server_heard(&mut self) -> Vec<String> {
        let lines = self.server_heard_in_lanes().into_iter();
        lines.map(|(_, line)| line).collect()
    }

    pub(crate) fn server_heard_in_lanes(&mut self) -> Vec<(Lane, String)> {
        std::mem::take(&mut self.server)
    }

    #[track_caller]
    pub(crate) fn nobody_hears(&mut self) {
        assert_eq!(self.server_heard(), [""; 0]);
        assert!(self.clients.is_empty(), "{:?}", self.clients);
    }

    /// Nobody but this client hears anything, of which the rest of the test takes no notice.
    #[track_caller]
    pub(crate) fn nobody_hears_but(&mut self, client: u64) {
        self.clients.remove(&client);
        self.nobody_hears();
    }

    pub(crate) fn forget(&mut self) {
        self.server.clear();
        self.clients.clear();
        self.notes();
    }

    pub(crate) fn notes(&mut self) -> Vec<Note> {
        std::iter::from_fn(|| self.mux.poll_note()).collect()
    }

    fn poll(&mut self) {
        while let Some(out) = self.mux.poll_output() {
            match out {
                Output::ToServer { lane, line } => self.server.push((lane, text(line.into()))),
                Output::ToClient { client, line } => {
                    assert!(!self.dismissed.contains(&client.0));
                    self.clients
                        .entry(client.0)
                        .or_default()
                        .push(text(line.into()));
                }
                Output::ToClients { clients, line } => {
                    for client in clients {
                        assert!(!self.dismissed.contains(&client.0));
                        let heard = self.clients.entry(client.0).or_default();
                        heard.push(text(line.to_vec()));
                    }
                }
                Output::Dismiss { client, unsent, .. } => {
                    self.dismissed.push(client.0);
                    self.unsent.extend(unsent.iter().map(ToString::to_string));
                }
            }
        }
    }
}

pub(crate) fn class_of(line: &str) -> Class {
    match opening(&Message::parse(line.as_bytes()).expect("well-formed")) {
        Opening::Legacy(class) => class,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn initialize(id: &str) -> String {
    initialize_with(id, "2025-11-25", r#"{"roots":{},"sampling":{}}"#)
}

pub(crate) fn initialize_with(id: &str, version: &str, capabilities: &str) -> String {
    request(
        id,
        "initialize",
        &format!(r#"{{"protocolVersion":"{version}","capabilities":{capabilities}}}"#),
    )
}

pub(crate) fn request(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// A tool's call that says who makes it.
pub(crate) fn call(id: &str, who: &str) -> String {
    request(id, "tools/call", &format!(r#"{{"name":"{who}"}}"#))
}

/// A modern request.
pub(crate) fn modern(id: &str, method: &str, more: &str) -> String {
    request(id, method, &format!(r#"{{"_meta":{{{ENVELOPE}}}{more}}}"#))
}

pub(crate) fn notice(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

pub(crate) fn cancel(id: &str) -> String {
    notice(
        "notifications/cancelled",
        &format!(r#"{{"requestId":{id},"reason":"no"}}"#),
    )
}

pub(crate) fn progress(token: &str) -> String {
    notice(
        "notifications/progress",
        &format!(r#"{{"progressToken":{token},"progress":0.10}}"#),
    )
}

pub(crate) fn result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

pub(crate) fn error(id: &str, code: i64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"?"}}}}"#)
}

/// What a line's id is, as spelled.
pub(crate) fn id_of(line: &str) -> String {
    let message = Message::parse(line.as_bytes()).expect("well-formed");
    text(message.id().expect("an id").raw().to_vec())
}

/// `(id, code)` of an error line.
pub(crate) fn refusal(line: &str) -> (String, i64) {
    let value: Value = serde_json::from_str(line).expect("JSON");
    let code = value["error"]["code"].as_i64();
    (
        value["id"].to_string(),
        code.unwrap_or_else(|| panic!("{line}")),
    )
}

/// `data.reason` of an error line.
pub(crate) fn reason(line: &str) -> String {
    let value: Value = serde_json::from_str(line).expect("JSON");
    value["error"]["data"]["reason"]
        .as_str()
        .unwrap_or_else(|| panic!("{line}"))
        .to_owned()
}

pub(crate) fn text(line: Vec<u8>) -> String {
    String::from_utf8(line).expect("text")
}
