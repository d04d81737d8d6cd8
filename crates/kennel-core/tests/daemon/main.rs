//! The engine of `kennel daemon`: which server a client gets, what it is told, and when the daemon ends.

mod clients;
mod life;
mod memory;
mod servers;
mod snapshot;

use std::time::Duration;

use kennel_core::engine::daemon::{
    Action, Daemon, InputLine, Introduction, Report, Settings, SlotId,
};
use kennel_core::hello::{Control, Lost, Shares};
use kennel_core::lifetime::{ClientId, Liveness, Owner, Policy};
use kennel_core::mux;
use kennel_core::session::ServerExit;
use kennel_core::time::Moment;

const SECOND: Duration = Duration::from_secs(1);
const LINGER: Duration = Duration::from_secs(60);

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"app","version":"1"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const DISCOVER: &str = r#"{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

/// An engine, its clock, and a driver that writes to servers whatever it is told.
struct Stage {
    daemon: Daemon,
    now: Moment,
    /// Lines that went to servers.
    written: Vec<(SlotId, String)>,
    /// Slots whose clients changed.
    changed: Vec<SlotId>,
}

impl Stage {
    fn new() -> Stage {
        Stage::owned(Owner::None)
    }

    fn owned(owner: Owner) -> Stage {
        Stage {
            daemon: Daemon::new(&settings(owner), Moment::START),
            now: Moment::START,
            written: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// All that is to be done, but for lines to servers, which are written, and for what only timers need.
    fn actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(action) = self.daemon.poll_action() {
            match action {
                Action::ToServer { slot, line, .. } => self.written.push((slot, text(&line))),
                Action::UpdateTimer { .. } => {}
                Action::ClientsChanged { slot } => self.changed.push(slot),
                action => actions.push(action),
            }
        }
        actions
    }

    fn pass(&mut self, length: Duration) -> Vec<Action> {
        self.now = self.now + length;
        self.daemon.advance(self.now);
        self.actions()
    }

    /// A client that came, and was admitted.
    fn client(&mut self, session: &str) -> ClientId {
        self.client_with(introduction(session))
    }

    fn client_with(&mut self, introduction: Introduction) -> ClientId {
        let client = self
            .daemon
            .handle_client_arrived(Liveness::Watchable, self.now);
        self.daemon.handle_introduction(client, introduction);
        client
    }

    fn say(&mut self, client: ClientId, line: &str) -> Vec<Action> {
        let line = InputLine::from(line.as_bytes());
        self.daemon.handle_client_line(client, line, self.now);
        self.actions()
    }

    fn server_says(&mut self, slot: SlotId, line: &str) -> Vec<Action> {
        let line = InputLine::from(line.as_bytes());
        self.daemon.handle_server_line(slot, line, self.now);
        self.actions()
    }

    /// Starts the server of a slot, and writes what waited for it.
    fn start(&mut self, slot: SlotId) {
        self.daemon.handle_server_started(slot);
        while let Some(chunk) = self.daemon.next_chunk(slot) {
            let lines = chunk.split(|&byte| byte == b'\n');
            let lines = lines.filter(|line| !line.is_empty());
            self.written.extend(lines.map(|line| (slot, text(line))));
            self.daemon.set_writing(slot, false);
        }
    }

    /// A client with a server that has answered its handshake.
    fn served(&mut self, session: &str) -> (ClientId, SlotId) {
        let client = self.client(session);
        let opened = slot(&self.say(client, INITIALIZE));
        self.start(opened);
        let answers = self.server_says(opened, &initialized(1));
        assert!(
            matches!(&answers[..], [Action::ToClient { .. }]),
            "{answers:?}"
        );
        self.say(client, INITIALIZED);
        (client, opened)
    }

    fn lose(&mut self, slot: SlotId) -> Vec<Action> {
        self.lose_by(slot, None)
    }

    /// The server of a slot ended like this.
    fn end(&mut self, slot: SlotId, ending: ServerExit) -> Vec<Action> {
        self.lose_by(slot, Some(ending))
    }

    fn lose_by(&mut self, slot: SlotId, ending: Option<ServerExit>) -> Vec<Action> {
        let none = std::iter::empty();
        let now = self.now;
        self.daemon
            .handle_server_lost(slot, ending, String::new(), none, now);
        self.actions()
    }

    fn gone(&mut self, client: ClientId) -> Vec<Action> {
        self.daemon.handle_client_gone(client, self.now);
        self.actions()
    }

    fn end_slot(&mut self, slot: SlotId) -> Vec<Action> {
        self.daemon.handle_slot_ended(slot, self.now);
        self.actions()
    }
}

fn settings(owner: Owner) -> Settings {
    Settings {
        lifetime: Policy {
            linger: Some(LINGER),
            grace: 5 * SECOND,
            max_idle: None,
        },
        owner,
        max_line: 1 << 20,
    }
}

fn introduction(session: &str) -> Introduction {
    Introduction {
        session: session.to_owned(),
        bare: false,
        shares: Shares::default(),
        policy: mux::MuxPolicy::default(),
        hibernate_after: None,
    }
}

fn initialized(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-06-18","capabilities":{{}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
    )
}

fn call(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"pay"}}}}"#)
}

/// The slot that was opened.
fn slot(actions: &[Action]) -> SlotId {
    let opened = actions.iter().find_map(|action| match action {
        Action::OpenSlot { slot, .. } => Some(*slot),
        _ => None,
    });
    opened.unwrap_or_else(|| panic!("no slot: {actions:?}"))
}

fn starts(actions: &[Action], slot: SlotId) -> bool {
    let is_it =
        |it: &Action| matches!(it, Action::StartServer { slot: started } if *started == slot);
    actions.iter().any(is_it)
}

fn stops(actions: &[Action], slot: SlotId) -> bool {
    let is_it =
        |it: &Action| matches!(it, Action::StopServer { slot: stopped } if *stopped == slot);
    actions.iter().any(is_it)
}

fn finishes(actions: &[Action], client: ClientId) -> bool {
    let is_it = |it: &Action| matches!(it, Action::Finish { client: it } if *it == client);
    actions.iter().any(is_it)
}

/// The control messages that a client is sent.
fn told(actions: &[Action], client: ClientId) -> Vec<&Control> {
    let told = actions.iter().filter_map(|action| match action {
        Action::Tell {
            client: it,
            control,
        } if *it == client => Some(&**control),
        _ => None,
    });
    told.collect()
}

/// How a client is told that its server is lost.
fn lost(actions: &[Action], client: ClientId) -> &Lost {
    match &told(actions, client)[..] {
        [Control::Lost(lost)] => lost,
        other => panic!("{other:?} in {actions:?}"),
    }
}

fn reports(actions: &[Action]) -> Vec<&Report> {
    let reports = actions.iter().filter_map(|action| match action {
        Action::Report(report) => Some(report),
        _ => None,
    });
    reports.collect()
}

/// The lines for a client.
fn lines(actions: &[Action], client: ClientId) -> Vec<String> {
    let lines = actions.iter().filter_map(|action| match action {
        Action::ToClient { client: it, line } if *it == client => Some(text(line)),
        Action::ToClients { clients, line } if clients.contains(&client) => Some(text(line)),
        _ => None,
    });
    lines.collect()
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

#[test]
fn an_action_is_small_enough_to_be_moved_for_each_line() {
    assert!(size_of::<Action>() <= 80, "{} bytes", size_of::<Action>());
}
