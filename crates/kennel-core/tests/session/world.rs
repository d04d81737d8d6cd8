//! A session between an app and its servers, driven step by step.

use kennel_core::session::{SERVER_RESTARTED, Session, Verdict};
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

use crate::sides::{App, Asked, Greeting, OwnRequest, Server, Shown, answer_to_server};

const GREETING: &str =
    r#"{"jsonrpc":"2.0", "id":"greeting","method":"initialize","params":{"x":1.0}}"#;
const CONFIRMATION: &str = r#"{"method":"notifications/initialized" ,"jsonrpc":"2.0"}"#;
const BAD_LINES: [&str; 6] = [
    "",
    "Listening...",
    "{",
    "!lost {}",
    "[]",
    r#"{"jsonrpc":"2.0"}"#,
];

/// One thing that happens. A number chooses among what there is to choose from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Greet,
    Confirm,
    Ask { ping: bool },
    AskTwice(usize),
    AskInBatch(usize),
    Tell,
    Cancel(usize),
    AnswerServer(usize),
    AppNonsense(usize),
    Answer { which: usize, respelled: bool },
    AnswerAllInBatch,
    AnswerTwice(usize),
    AnswerGreeting { kindly: bool },
    ServerAsks(usize),
    ServerCancels(usize),
    ServerTells,
    ServerNonsense(usize),
    Attach,
    Lose,
    GiveUp,
    Expect,
    PollApp(usize),
    PollUpstream(usize),
}

pub(crate) struct World {
    session: Session,
    app: App,
    server: Option<Server>,
    servers: usize,
    serials: u64,
    order: u64,
    /// Both sides are polled after every step.
    eager: bool,
}

impl World {
    pub(crate) fn new(eager: bool) -> World {
        World {
            session: Session::new(),
            app: App::default(),
            server: None,
            servers: 0,
            serials: 0,
            order: 0,
            eager,
        }
    }

    pub(crate) fn play(&mut self, step: Step) -> TestCaseResult {
        match step {
            Step::Greet => self.greet()?,
            Step::Confirm => {
                // Whether its greeting failed, it has to know before.
                self.poll_app(usize::MAX)?;
                if self.app.greeting != Greeting::None && !self.app.confirmed {
                    self.app.confirmed = true;
                    self.app_says(CONFIRMATION)?;
                }
            }
            Step::Ask { ping } => {
                let line = self.new_request(if ping { "ping" } else { "tools/call" });
                self.app_says(&line)?;
            }
            Step::AskTwice(which) => self.ask_twice(which)?,
            Step::AskInBatch(count) => {
                let lines: Vec<_> = (0..count).map(|_| self.new_request("x")).collect();
                self.app_says(&format!("[{}]", lines.join(" ,")))?;
            }
            Step::Tell => {
                let serial = self.next_serial();
                let line = format!(
                    r#"{{"jsonrpc":"2.0","method":"n","params":{{"serial":{serial},"x":1e2}}}}"#
                );
                self.remember(serial, &line, None);
                self.app_says(&line)?;
            }
            Step::Cancel(which) => self.cancel(which)?,
            Step::AnswerServer(which) => {
                let open = |&(_, shown): &(&u64, &Shown)| !shown.answered;
                let chosen = nth(self.app.shown.iter().filter(open), which);
                if let Some(of) = chosen.map(|(of, _)| *of) {
                    self.answer_server(of)?;
                }
            }
            Step::AppNonsense(which) => self.app_says(BAD_LINES[which % BAD_LINES.len()])?,
            Step::ServerNonsense(which) => {
                self.server_says(BAD_LINES[which % BAD_LINES.len()])?;
                self.server_says(r#"{"jsonrpc":"2.0","id":"nobody's","result":{"of":0}}"#)?;
            }
            Step::Answer { which, respelled } => self.answer(which, respelled)?,
            Step::AnswerAllInBatch => self.answer_all_in_batch()?,
            Step::AnswerTwice(which) => {
                let pending = self
                    .server
                    .as_ref()
                    .and_then(|it| nth(it.pending.iter(), which));
                if let Some(serial) = pending.copied() {
                    let answer = self.answer_line(serial, false);
                    self.answer(which, false)?;
                    self.server_says(&answer)?;
                }
            }
            Step::AnswerGreeting { kindly } => self.answer_greeting(kindly)?,
            Step::ServerAsks(which) => self.server_asks(which)?,
            Step::ServerCancels(which) => self.server_cancels(which)?,
            Step::ServerTells => {
                let line = self.stamped(r#""method":"notifications/message""#);
                self.server_says(&line)?;
            }
            Step::Attach => self.attach()?,
            Step::Lose => self.lose(),
            Step::GiveUp => {
                self.session.give_up("why", "detail");
                self.server = None;
            }
            Step::Expect => self.session.upstream_expected(),
            Step::PollApp(count) => self.poll_app(count)?,
            Step::PollUpstream(count) => self.poll_upstream(count)?,
        }
        match self.eager {
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
            while self
                .server
                .as_ref()
                .is_some_and(|it| !it.pending.is_empty())
            {
                self.answer(0, false)?;
            }
            // Those of lost servers must have been withdrawn.
            let here = self.servers;
            let open = |shown: &Shown| shown.server == here && !shown.answered && !shown.withdrawn;
            let shown = self.app.shown.iter().filter(|(_, shown)| open(shown));
            for of in shown.map(|(of, _)| *of).collect::<Vec<_>>() {
                self.answer_server(of)?;
            }
        }
        prop_assert_eq!(self.app.greetings_answered, self.app.greetings_sent);
        for (serial, asked) in &self.app.requests {
            match (&asked.id, asked.cancelled) {
                (Some(_), false) => prop_assert_eq!(asked.answers, 1, "rule 4: {}", serial),
                (Some(_), true) => prop_assert!(asked.answers <= 1, "rule 4: {serial}"),
                (None, _) => {}
            }
        }
        prop_assert!(self.app.refusals_due.is_empty());
        let server = self.server.expect("one is attached");
        prop_assert!(server.refusals_due.is_empty());
        for (serial, shown) in &self.app.shown {
            let mine = shown.server == server.number;
            prop_assert!(mine || shown.answered || shown.withdrawn, "{serial} hangs");
        }
        for (serial, own) in &server.asked {
            prop_assert!(own.answered || own.cancelled, "{serial} is not answered");
        }
        prop_assert_eq!(self.session.in_flight(), 0);
        prop_assert!(self.session.is_idle() && self.session.all_is_sent());
        Ok(())
    }

    fn greet(&mut self) -> TestCaseResult {
        if self.app.greeting == Greeting::None {
            self.app.greeting = Greeting::Waiting;
            self.app.greetings_sent += 1;
            self.app_says(GREETING)?;
        }
        Ok(())
    }

    fn ask_twice(&mut self, which: usize) -> TestCaseResult {
        let delivered_here = |asked: &&Asked| match &self.server {
            Some(server) => asked.delivered_to == Some(server.number),
            None => false,
        };
        let in_flight = self.app.requests.iter().filter(|(serial, asked)| {
            let pending = self.server.as_ref().map(|server| &server.pending);
            delivered_here(asked) && pending.is_some_and(|pending| pending.contains(serial))
        });
        if let Some((_, asked)) = nth(in_flight, which) {
            let line = asked.line.clone();
            self.app.refusals_due.extend(asked.id.clone());
            self.app_says(&line)?;
        }
        Ok(())
    }

    fn cancel(&mut self, which: usize) -> TestCaseResult {
        let open = |(_, it): &(&u64, &Asked)| it.id.is_some() && it.answers == 0 && !it.cancelled;
        let open = self
            .app
            .requests
            .iter()
            .filter(open)
            .map(|(serial, _)| *serial);
        if let Some(serial) = nth(open, which) {
            let asked = self.app.requests.get_mut(&serial).expect("it is there");
            asked.cancelled = true;
            let id = asked.id.as_ref().expect("a request").to_string();
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"of":{serial}}}}}"#
            );
            self.app_says(&line)?;
        }
        Ok(())
    }

    fn answer_server(&mut self, of: u64) -> TestCaseResult {
        let shown = self.app.shown.get_mut(&of).expect("it was shown");
        shown.answered = true;
        let line = answer_to_server(&shown.id, of);
        let again = shown.server > 1;
        self.app_says(&line)?;
        // The first server's ids may be in use again by now.
        if again {
            self.app_says(&line)?;
        }
        Ok(())
    }

    fn answer(&mut self, which: usize, respelled: bool) -> TestCaseResult {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        if server.pending.is_empty() {
            return Ok(());
        }
        let serial = server.pending.remove(which % server.pending.len());
        let line = self.answer_line(serial, respelled);
        self.server_says(&line)
    }

    fn answer_all_in_batch(&mut self) -> TestCaseResult {
        let pending = match &mut self.server {
            Some(server) => std::mem::take(&mut server.pending),
            None => Vec::new(),
        };
        if pending.is_empty() {
            return Ok(());
        }
        let mut answers: Vec<_> = pending
            .iter()
            .map(|serial| self.answer_line(*serial, false))
            .collect();
        answers.push(r#"{"jsonrpc":"2.0","id":"nobody's","result":{"of":0}}"#.to_owned());
        self.server_says(&format!("[{}]", answers.join(", ")))
    }

    fn answer_greeting(&mut self, kindly: bool) -> TestCaseResult {
        if !kindly {
            // An `initialized` that was sent too early reaches it before it says no, as it would directly.
            self.poll_upstream(usize::MAX)?;
        }
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        if server.greetings == 0 || server.greeting_answered {
            return Ok(());
        }
        server.greeting_answered = kindly;
        if !kindly {
            // Unless it is abandoned for this, the app may greet it once more.
            server.greeted_by_session = false;
            server.greetings = 0;
            server.confirmations = 0;
        }
        let line = match kindly {
            true => self.stamped(r#""id":"greeting","result":{}"#),
            false => self.stamped(r#""id":"greeting","error":{"code":-1,"message":""}"#),
        };
        self.server_says(&line)
    }

    fn server_asks(&mut self, which: usize) -> TestCaseResult {
        // Most of them are ids of the app's requests, too: each direction has its own.
        let ids = ["0", "3", "6", "9", "\"a\"", "\"s1\"", "\"s4\"", "12"];
        let id = ids[which % ids.len()].to_owned();
        let (serial, fields) = {
            let serial = self.next_serial();
            let number = self.servers;
            let params = format!(r#"{{"serial":{serial},"server":{number},"x":1.0}}"#);
            (
                serial,
                format!(r#""method":"roots/list","id":{id}, "params":{params}"#),
            )
        };
        let line = self.stamped(&fields);
        let Some(server) = &mut self.server else {
            return self.server_says(&line);
        };
        if server.burnt.contains(&id) {
            return Ok(());
        }
        if let Some(open) = server.open(&id) {
            if self
                .app
                .shown
                .get(&open)
                .is_some_and(|shown| shown.answered)
            {
                return Ok(()); // The answer is on its way.
            }
            let id = serde_json::from_str(&id).expect("JSON");
            server.refusals_due.push(id);
        } else {
            let own = OwnRequest {
                line: line.clone(),
                id,
                answered: false,
                cancelled: false,
                cancel: None,
            };
            server.asked.insert(serial, own);
        }
        self.server_says(&line)
    }

    fn server_cancels(&mut self, which: usize) -> TestCaseResult {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        let open = server
            .asked
            .iter()
            .filter(|(_, own)| !own.answered && !own.cancelled);
        let Some((of, id)) = nth(open.map(|(of, own)| (*of, own.id.clone())), which) else {
            return Ok(());
        };
        let params = format!(r#"{{"requestId":{id},"of":{of}}}"#);
        let line = self.stamped(&format!(
            r#""method":"notifications/cancelled","params":{params}"#
        ));
        let server = self.server.as_mut().expect("it cancels");
        server.burnt.insert(id);
        let own = server.asked.get_mut(&of).expect("it asked");
        own.cancelled = true;
        own.cancel = Some(line.clone());
        self.server_says(&line)
    }

    fn attach(&mut self) -> TestCaseResult {
        self.lose();
        // What the server is to hear first depends on what the app knows.
        self.poll_app(usize::MAX)?;
        self.servers += 1;
        self.session.upstream_attached();
        self.server = Some(Server::new(self.servers, &self.app));
        Ok(())
    }

    fn lose(&mut self) {
        self.session.upstream_lost(SERVER_RESTARTED);
        self.server = None;
    }

    fn app_says(&mut self, line: &str) -> TestCaseResult {
        match self.session.from_app(line.as_bytes()) {
            Verdict::Forward => self.server_hears(line.as_bytes()),
            Verdict::Replace(other) => self.server_hears(&other),
            Verdict::Drop => Ok(()),
            Verdict::Abandon => panic!("the app cannot make an upstream refuse"),
        }
    }

    fn server_says(&mut self, line: &str) -> TestCaseResult {
        match self.session.from_upstream(line.as_bytes()) {
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

    fn server_hears(&mut self, line: &[u8]) -> TestCaseResult {
        let server = self.server.as_mut();
        let server = server.expect("nothing is sent while no upstream is there");
        server.hear(line, &mut self.app)
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
                Some(line) => self.server_hears(&line)?,
                None => break,
            }
        }
        Ok(())
    }

    fn poll_all(&mut self) -> TestCaseResult {
        self.poll_app(usize::MAX)?;
        self.poll_upstream(usize::MAX)
    }

    /// A request with an id of its own, in one of several spellings.
    fn new_request(&mut self, method: &str) -> String {
        let serial = self.next_serial();
        let id = match serial % 3 {
            0 => format!("{serial}"),
            1 => format!("\"s{serial}\""),
            _ => format!("\"\\u0073{serial}\\/\""),
        };
        let line = format!(
            r#"{{"id" :{id},"jsonrpc":"2.0","method":"{method}","params":{{"serial":{serial},"x":1.0}}}}"#
        );
        let id = serde_json::from_str(&id).expect("JSON");
        self.remember(serial, &line, Some(id));
        line
    }

    fn remember(&mut self, serial: u64, line: &str, id: Option<Value>) {
        let asked = Asked {
            line: line.to_owned(),
            id,
            cancelled: false,
            delivered_to: None,
            answers: 0,
        };
        self.app.requests.insert(serial, asked);
    }

    fn answer_line(&mut self, serial: u64, respelled: bool) -> String {
        let id = self.app.requests[&serial].id.as_ref().expect("a request");
        let mut id = id.to_string();
        if respelled {
            id = id.replace('s', "\\u0073");
        }
        self.stamped(&format!(r#""id":{id},"result":{{"of":{serial}}}"#))
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

/// One of several, if there are any.
fn nth<T>(all: impl Iterator<Item = T>, which: usize) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    match all.len() {
        0 => None,
        count => Some(all.swap_remove(which % count)),
    }
}
