//! A session between an app and its servers, driven step by step.
//!
//! What the session hands out for a server is on its way until the server takes it, line by line, and runs it:
//! so it is known what ran how often, and what a lost server can never have heard.

mod app;
mod app_says;
mod server;
mod server_says;

use kennel_core::message::{Key, Message, splice};
use kennel_core::session::{Replay, SERVER_RESTARTED, Session, Unsent, Verdict};
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

use app::App;
pub(crate) use app::Kind;
use server::Server;

/// One thing that happens. A number chooses among what there is to choose from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Greet,
    Confirm,
    Ask(Kind),
    AskTwice(usize),
    AskInBatch(usize),
    Tell,
    Cancel(usize),
    AnswerServer(usize),
    AppNonsense(usize),
    Answer { which: usize, respelled: bool },
    AnswerAllInBatch,
    AnswerTwice(usize),
    AnswerSession,
    AnswerGreeting { kindly: bool },
    ServerAsks(usize),
    ServerCancels(usize),
    ServerTells,
    ServerProgress(usize),
    ServerUpdates(usize),
    ServerNonsense(usize),
    Take(usize),
    Attach,
    Lose(Known),
    GiveUp,
    Expect,
    PollApp(usize),
    PollUpstream(usize),
}

/// What is known of what a lost server has not heard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known {
    Nothing,
    /// The ids of so many of the last requests, as far as the server has not taken them.
    Ids(usize),
    /// So many of the last lines were not written, and of the first of them so many bytes were.
    Bytes {
        lines: usize,
        written: usize,
    },
    /// All but so many of the last lines were counted.
    Counted(usize),
}

/// What kind of world it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Both sides are polled after every step, and servers take what they are sent.
    pub(crate) eager: bool,
    /// There is no handshake.
    pub(crate) modern: bool,
    pub(crate) replay: Replay,
}

pub(crate) struct World {
    session: Session,
    app: App,
    server: Option<Server>,
    servers: usize,
    serials: u64,
    order: u64,
    setting: Setting,
}

impl World {
    pub(crate) fn new(setting: Setting) -> World {
        World {
            session: Session::replaying(setting.replay),
            app: App::new(setting.replay),
            server: None,
            servers: 0,
            serials: 0,
            order: 0,
            setting,
        }
    }

    pub(crate) fn play(&mut self, step: Step) -> TestCaseResult {
        match step {
            Step::Greet => self.greet()?,
            Step::Confirm => self.confirm()?,
            Step::Ask(kind) => self.ask(kind)?,
            Step::AskTwice(which) => self.ask_twice(which)?,
            Step::AskInBatch(count) => self.ask_in_batch(count)?,
            Step::Tell => self.tell()?,
            Step::Cancel(which) => self.cancel(which)?,
            Step::AnswerServer(which) => self.answer_server(which)?,
            Step::AppNonsense(which) => self.app_says(nonsense(which))?,
            Step::ServerNonsense(which) => {
                self.server_says(nonsense(which))?;
                self.server_says(NOBODYS)?;
            }
            Step::Answer { which, respelled } => self.answer(which, respelled)?,
            Step::AnswerAllInBatch => self.answer_all_in_batch()?,
            Step::AnswerTwice(which) => self.answer_twice(which)?,
            Step::AnswerSession => self.answer_session()?,
            Step::AnswerGreeting { kindly } => self.answer_greeting(kindly)?,
            Step::ServerAsks(which) => self.server_asks(which)?,
            Step::ServerCancels(which) => self.server_cancels(which)?,
            Step::ServerTells => {
                let line = self.stamped(r#""method":"notifications/message""#);
                self.server_says(&line)?;
            }
            Step::ServerProgress(which) => self.server_progress(which)?,
            Step::ServerUpdates(which) => self.server_updates(which)?,
            Step::Take(lines) => self.take(lines)?,
            Step::Attach => self.attach()?,
            Step::Lose(known) => self.lose(known)?,
            Step::GiveUp => {
                if let Some(server) = self.server.take() {
                    self.app.may_be_done(server.in_flight());
                }
                self.session.give_up("why", "detail");
            }
            Step::Expect => self.session.expect_upstream(),
            Step::PollApp(count) => self.poll_app(count)?,
            Step::PollUpstream(count) => self.poll_upstream(count)?,
        }
        match self.setting.eager {
            true => self.poll_all(),
            false => Ok(()),
        }
    }

    /// Lets everybody finish what they owe, and checks that nothing is owed any more.
    pub(crate) fn finish(mut self) -> TestCaseResult {
        self.poll_all()?;
        if self.server.is_none() {
            self.attach()?;
        }
        for _ in 0..4 {
            self.poll_all()?;
            self.answer_greeting(true)?;
            self.poll_all()?;
            while self.server.as_ref().is_some_and(Server::owes) {
                self.answer_session()?;
                self.answer(0, false)?;
            }
            // Those of lost servers must have been withdrawn.
            for of in self.app.open_questions(self.servers) {
                self.answer_question(of)?;
            }
        }
        self.poll_all()?;
        let server = self.server.expect("one is attached");
        self.app.is_content(server.number)?;
        server.is_content(&self.app)?;
        prop_assert_eq!(self.session.in_flight(), 0);
        prop_assert!(self.session.is_idle() && self.session.all_is_sent());
        Ok(())
    }

    fn attach(&mut self) -> TestCaseResult {
        self.lose(Known::Nothing)?;
        // What the server is to hear first depends on what the app knows.
        self.poll_app(usize::MAX)?;
        self.servers += 1;
        self.session.handle_upstream_attached();
        self.server = Some(Server::new(self.servers, &self.app));
        Ok(())
    }

    fn lose(&mut self, known: Known) -> TestCaseResult {
        let Some(mut server) = self.server.take() else {
            self.session
                .handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
            return Ok(());
        };
        let mut ids: Vec<Key> = Vec::new();
        let unsent = match known {
            Known::Nothing => Unsent::Nothing,
            Known::Ids(count) => {
                let unheard = server.withdraw_requests(count);
                ids.extend(unheard.iter().map(|serial| self.app.key(*serial)));
                Unsent::Reported {
                    ids: &ids,
                    received: None,
                }
            }
            Known::Counted(lines) => {
                server.withdraw_lines(lines, 0);
                let rest = server.lines_to_take();
                server.take(rest, &mut self.app, self.setting.replay)?;
                Unsent::Reported {
                    ids: &ids,
                    received: Some(server.bytes_handed()),
                }
            }
            Known::Bytes { lines, written } => {
                let bytes = server.withdraw_lines(lines, written);
                // All that was written in full may have been heard in the last moment.
                let rest = server.lines_to_take();
                server.take(rest, &mut self.app, self.setting.replay)?;
                Unsent::LastBytes(bytes)
            }
        };
        self.app.may_be_done(server.in_flight());
        self.session.handle_upstream_lost(SERVER_RESTARTED, unsent);
        Ok(())
    }

    /// The server hears what was on its way, and runs it.
    fn take(&mut self, lines: usize) -> TestCaseResult {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        let opened = server.take(lines, &mut self.app, self.setting.replay)?;
        for serial in opened {
            self.acknowledge(serial)?;
        }
        Ok(())
    }

    fn app_says(&mut self, line: &str) -> TestCaseResult {
        match self.session.handle_app_line(line.as_bytes()) {
            Verdict::Forward => self.hand_out(line.as_bytes()),
            Verdict::Replace(other) => self.hand_out(&other),
            Verdict::Drop => Ok(()),
            Verdict::Abandon => panic!("the app cannot make an upstream refuse"),
        }
    }

    fn server_says(&mut self, line: &str) -> TestCaseResult {
        match self.session.handle_upstream_line(line.as_bytes()) {
            Verdict::Forward => self.app.hear(line.as_bytes(), self.server.as_mut()),
            Verdict::Replace(other) => self.app.hear(&other, self.server.as_mut()),
            Verdict::Drop => Ok(()),
            Verdict::Abandon => {
                prop_assert!(line.contains("greeting") && line.contains("error"));
                self.server = None;
                Ok(())
            }
        }
    }

    fn hand_out(&mut self, line: &[u8]) -> TestCaseResult {
        let server = self.server.as_mut();
        let server = server.expect("nothing is sent while no upstream is there");
        server.is_handed(line, &mut self.app)
    }

    fn poll_app(&mut self, count: usize) -> TestCaseResult {
        for _ in 0..count {
            match self.session.poll_to_app() {
                Some(line) => self.app.hear(&line, self.server.as_mut())?,
                None => break,
            }
        }
        Ok(())
    }

    fn poll_upstream(&mut self, count: usize) -> TestCaseResult {
        for _ in 0..count {
            match self.session.poll_to_upstream() {
                Some(line) => self.hand_out(&line)?,
                None => break,
            }
        }
        Ok(())
    }

    fn poll_all(&mut self) -> TestCaseResult {
        self.poll_app(usize::MAX)?;
        self.poll_upstream(usize::MAX)?;
        self.take(usize::MAX)?;
        self.poll_app(usize::MAX)
    }

    /// A server's line, which shows its place among all of them.
    fn stamped(&mut self, fields: &str) -> String {
        self.order += 1;
        let order = self.order;
        format!(r#"{{"jsonrpc":"2.0",{fields},"order":{order}}}"#)
    }

    fn next_serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }
}

const NOBODYS: &str = r#"{"jsonrpc":"2.0","id":"nobody's","result":{"of":0}}"#;

fn nonsense(which: usize) -> &'static str {
    let lines = [
        "",
        "Listening...",
        "{",
        "!lost {}",
        "[]",
        r#"{"jsonrpc":"2.0"}"#,
    ];
    lines[which % lines.len()]
}

/// The app's answer to a server's request.
fn answer_to_server(id: &str, of: u64) -> String {
    format!(r#"{{"result":{{"of":{of},"x":1.0}}, "id":{id},"jsonrpc":"2.0"}}"#)
}

fn for_each_message(
    line: &[u8],
    mut hear: impl FnMut(&[u8], &Value) -> TestCaseResult,
) -> TestCaseResult {
    let mut each = |bytes: &[u8]| {
        let value: Value = serde_json::from_slice(bytes).expect("a message is JSON");
        hear(bytes, &value)
    };
    match Message::parse(line).expect("only messages pass") {
        Message::Batch(batch) => batch
            .members
            .iter()
            .try_for_each(|member| each(member.whole.bytes())),
        _ => each(line),
    }
}

fn with_id(message: &[u8], id: &str) -> Vec<u8> {
    let parsed = Message::parse(message).expect("a message");
    let place = parsed.id().expect("an id").part().range();
    splice(message, &[(place, id.as_bytes())])
}

fn serial(value: &Value, at: &str) -> u64 {
    let serial = value.pointer(at).and_then(Value::as_u64);
    serial.unwrap_or_else(|| panic!("{value} has a number at {at}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// One of several, if there are any.
fn nth<T>(all: impl Iterator<Item = T>, which: usize) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    match all.len() {
        0 => None,
        count => Some(all.swap_remove(which % count)),
    }
}
