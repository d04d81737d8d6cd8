//! What a small call costs: `hot-path PART COUNT` makes so many round trips without a clock, a socket or a file, so
//! that a count of instructions is the same each time. `cargo xtask instructions` counts them.
//!
//! Parts: `shim` is a session with its upstream, `daemon` ten clients of one server, `line` what both read of every line.

use std::hint::black_box;

use kennel_core::message::Message;
use kennel_core::mux::{Class, ClientId, Mux, Opening, Out, Policy, opening};
use kennel_core::session::{Session, Verdict};
use kennel_core::time::Moment;

const CLIENTS: u64 = 10;
const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const OFFER: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"0"}}"#;
const RESULT: &str = r#"{"content":[{"type":"text","text":"Echo: a call of the usual length"}]}"#;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [part, count] = &arguments[..] else {
        panic!("hot-path PART COUNT");
    };
    let count: u64 = count.parse().expect("a count");
    match &**part {
        "line" => line(count),
        "shim" => shim(count),
        "daemon" => daemon(count),
        other => panic!("no part is called {other}"),
    }
}

fn call(id: u64) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"message":"a call of the usual length"}}}}}}"#)
        .into_bytes()
}

fn answer(id: &[u8], result: &str) -> Vec<u8> {
    let id = String::from_utf8_lossy(id);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into_bytes()
}

/// A request and an answer, read.
fn line(count: u64) {
    let (request, reply) = (call(1), answer(b"1", RESULT));
    for _ in 0..count {
        for line in [&request, &reply] {
            black_box(Message::parse(black_box(&**line)).expect("a message"));
        }
    }
}

fn shim(count: u64) {
    let mut session = Session::new();
    session.upstream_attached();
    assert_eq!(session.from_app(INITIALIZE), Verdict::Forward);
    let offered = answer(b"0", OFFER);
    assert_eq!(session.from_upstream(&*offered), Verdict::Forward);
    assert_eq!(session.from_app(INITIALIZED), Verdict::Forward);
    let (request, reply) = (call(1), answer(b"1", RESULT));
    for _ in 0..count {
        assert_eq!(session.from_app(&*request), Verdict::Forward);
        assert_eq!(session.from_upstream(&*reply), Verdict::Forward);
    }
    assert!(session.is_idle());
}

fn daemon(count: u64) {
    let message = Message::parse(INITIALIZE).expect("a message");
    let Opening::Legacy(class) = opening(&message) else {
        panic!("an opening");
    };
    let mut house = House::new(class);
    for client in 0..CLIENTS {
        house
            .mux
            .join(ClientId(client), &format!("session {client}"));
        house
            .mux
            .from_client(ClientId(client), INITIALIZE, Moment::START);
        house.settle(OFFER);
        house
            .mux
            .from_client(ClientId(client), INITIALIZED, Moment::START);
        house.settle(OFFER);
    }
    house.answered = 0;
    let request = call(1);
    for id in 0..count {
        let client = ClientId(id % CLIENTS);
        house.mux.from_client(client, &*request, Moment::START);
        house.settle(RESULT);
    }
    assert_eq!(house.answered, count);
}

/// A mux, and a server that answers at once.
struct House {
    mux: Mux,
    answered: u64,
}

impl House {
    fn new(class: Class) -> House {
        House {
            mux: Mux::new(class, Policy::default()),
            answered: 0,
        }
    }

    fn settle(&mut self, result: &str) {
        while let Some(out) = self.mux.poll() {
            match out {
                Out::ToServer { line, .. } => {
                    let message = Message::parse(&*line).expect("a message");
                    if let Some(id) = message.id() {
                        let reply = answer(id.raw(), result);
                        self.mux.from_server(&*reply, Moment::START);
                    }
                }
                Out::ToClient { line, .. } | Out::ToClients { line, .. } => {
                    black_box(line);
                    self.answered += 1;
                }
                Out::Dismiss { why, .. } => panic!("dismissed: {why}"),
            }
        }
    }
}
