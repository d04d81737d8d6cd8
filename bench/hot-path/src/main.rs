//! What a small call costs: `hot-path PART COUNT` makes so many round trips without a clock, a socket or a file, so
//! that a count of instructions is the same each time. `cargo xtask instructions` counts them.
//!
//! Parts: `shim` is a session with its upstream, `daemon` the mux of a server with ten clients, `engine` the whole
//! engine of a daemon with them, `line` what both read of every line.

use std::hint::black_box;
use std::time::Duration;

use kennel_core::engine::daemon::{Action, Daemon, InputLine, Introduction, Settings, SlotId};
use kennel_core::hello::Shares;
use kennel_core::lifetime::{Liveness, Owner, Policy};
use kennel_core::message::Message;
use kennel_core::mux::{self, Class, ClientId, Mux, Opening, Output, opening};
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
        "engine" => engine(count),
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
    session.handle_upstream_attached();
    assert_eq!(session.handle_app_line(INITIALIZE), Verdict::Forward);
    let offered = answer(b"0", OFFER);
    assert_eq!(session.handle_upstream_line(&*offered), Verdict::Forward);
    assert_eq!(session.handle_app_line(INITIALIZED), Verdict::Forward);
    let (request, reply) = (call(1), answer(b"1", RESULT));
    for _ in 0..count {
        assert_eq!(session.handle_app_line(&*request), Verdict::Forward);
        assert_eq!(session.handle_upstream_line(&*reply), Verdict::Forward);
    }
    assert!(session.is_idle());
}

fn daemon(count: u64) {
    let message = Message::parse(INITIALIZE).expect("a message");
    let Opening::Legacy(class) = opening(&message) else {
        panic!("an opening");
    };
    let mut stage = MuxStage::new(class);
    for client in 0..CLIENTS {
        stage
            .mux
            .join(ClientId(client), &format!("session {client}"));
        stage
            .mux
            .handle_client_line(ClientId(client), INITIALIZE, Moment::START);
        stage.settle(OFFER);
        stage
            .mux
            .handle_client_line(ClientId(client), INITIALIZED, Moment::START);
        stage.settle(OFFER);
    }
    stage.answered = 0;
    let request = call(1);
    for id in 0..count {
        let client = ClientId(id % CLIENTS);
        stage
            .mux
            .handle_client_line(client, &*request, Moment::START);
        stage.settle(RESULT);
    }
    assert_eq!(stage.answered, count);
}

/// A mux, and a server that answers at once.
struct MuxStage {
    mux: Mux,
    answered: u64,
}

impl MuxStage {
    fn new(class: Class) -> MuxStage {
        MuxStage {
            mux: Mux::new(class, mux::MuxPolicy::default()),
            answered: 0,
        }
    }

    fn settle(&mut self, result: &str) {
        while let Some(out) = self.mux.poll_output() {
            match out {
                Output::ToServer { line, .. } => {
                    let message = Message::parse(&*line).expect("a message");
                    if let Some(id) = message.id() {
                        let reply = answer(id.raw(), result);
                        self.mux.handle_server_line(&*reply, Moment::START);
                    }
                }
                Output::ToClient { line, .. } | Output::ToClients { line, .. } => {
                    black_box(line);
                    self.answered += 1;
                }
                Output::Dismiss { why, .. } => panic!("dismissed: {why}"),
            }
        }
    }
}

fn engine(count: u64) {
    let mut stage = Stage::new();
    let clients: Vec<ClientId> = (0..CLIENTS).map(|nth| stage.client(nth)).collect();
    stage.answered = 0;
    let request = call(1);
    for client in clients.iter().cycle().take(count as usize) {
        stage.say(*client, &request, RESULT);
    }
    assert_eq!(stage.answered, count);
}

/// The engine of a daemon, and a server that answers at once.
struct Stage {
    daemon: Daemon,
    answered: u64,
}

impl Stage {
    fn new() -> Stage {
        let settings = Settings {
            lifetime: Policy {
                linger: None,
                grace: Duration::ZERO,
                max_idle: None,
            },
            owner: Owner::None,
            max_line: 1 << 20,
        };
        Stage {
            daemon: Daemon::new(&settings, Moment::START),
            answered: 0,
        }
    }

    fn client(&mut self, nth: u64) -> ClientId {
        let client = self
            .daemon
            .handle_client_arrived(Liveness::Watchable, Moment::START);
        let introduction = Introduction {
            session: format!("session {nth}"),
            bare: false,
            shares: Shares::default(),
            policy: mux::MuxPolicy::default(),
            hibernate_after: None,
        };
        self.daemon.handle_introduction(client, introduction);
        self.say(client, INITIALIZE, OFFER);
        self.say(client, INITIALIZED, OFFER);
        client
    }

    fn say(&mut self, client: ClientId, line: &[u8], result: &str) {
        let daemon = &mut self.daemon;
        daemon.handle_client_line(client, line.into(), Moment::START);
        while let Some(action) = self.daemon.poll_action() {
            self.carry_out(action, result);
        }
    }

    fn carry_out(&mut self, action: Action, result: &str) {
        match action {
            Action::StartServer { slot } => {
                self.daemon.handle_server_started(slot);
                while let Some(chunk) = self.daemon.next_chunk(slot) {
                    self.daemon.set_writing(slot, false);
                    self.answer(slot, chunk.trim_ascii_end(), result);
                }
            }
            Action::ToServer { slot, line, .. } => self.answer(slot, &line, result),
            Action::ToClient { line, .. } | Action::ToClients { line, .. } => {
                black_box(line);
                self.answered += 1;
            }
            Action::UpdateTimer { slot } => {
                black_box(self.daemon.slot_timeout(slot, Moment::START));
            }
            Action::OpenSlot { .. } | Action::ClientsChanged { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, slot: SlotId, line: &[u8], result: &str) {
        let message = Message::parse(line).expect("a message");
        if let Some(id) = message.id() {
            let reply = answer(id.raw(), result);
            let line = InputLine::from(&reply[..]);
            self.daemon.handle_server_line(slot, line, Moment::START);
        }
    }
}
