//! What a server does.

use proptest::test_runner::TestCaseResult;

use super::app::Kind;
use super::server::OwnRequest;
use super::{NOBODYS, World, nth};

impl World {
    pub(super) fn answer(&mut self, which: usize, respelled: bool) -> TestCaseResult {
        let app = &self.app;
        let Some(serial) = self.server.as_mut().and_then(|it| it.settle(which, app)) else {
            return Ok(());
        };
        let line = self.answer_line(serial, respelled);
        self.server_says(&line)
    }

    pub(super) fn answer_all_in_batch(&mut self) -> TestCaseResult {
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
        answers.push(NOBODYS.to_owned());
        self.server_says(&format!("[{}]", answers.join(", ")))
    }

    pub(super) fn answer_twice(&mut self, which: usize) -> TestCaseResult {
        let app = &self.app;
        let Some(serial) = self.server.as_mut().and_then(|it| it.settle(which, app)) else {
            return Ok(());
        };
        let again = self.answer_line(serial, false);
        let line = self.answer_line(serial, false);
        self.server_says(&line)?;
        self.server_says(&again)
    }

    /// Answers what the session asked on its own account.
    pub(super) fn answer_session(&mut self) -> TestCaseResult {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        let Some((id, kind)) = server.errands.pop_front() else {
            return Ok(());
        };
        let result = match kind {
            Kind::ListTools => server.tools(),
            _ => String::from(r#""ok":true"#),
        };
        let line = self.stamped(&format!(r#""id":{id},"result":{{{result}}}"#));
        self.server_says(&line)
    }

    pub(super) fn answer_greeting(&mut self, kindly: bool) -> TestCaseResult {
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
            true => self.stamped(
                r#""id":"greeting","result":{"capabilities":{"tools":{"listChanged":true}}}"#,
            ),
            false => self.stamped(r#""id":"greeting","error":{"code":-1,"message":""}"#),
        };
        self.server_says(&line)
    }

    pub(super) fn acknowledge(&mut self, serial: u64) -> TestCaseResult {
        let method = "notifications/subscriptions/acknowledged";
        self.say_on_subscription(
            serial,
            method,
            r#","notifications":{"toolsListChanged":true}"#,
        )
    }

    pub(super) fn server_updates(&mut self, which: usize) -> TestCaseResult {
        let listens = |serial: &u64| self.app.requests[serial].kind == Kind::Listen;
        let server = self.server.iter().flat_map(|server| &server.pending);
        match nth(server.copied().filter(listens), which) {
            Some(serial) => self.say_on_subscription(serial, "notifications/resources/updated", ""),
            None => Ok(()),
        }
    }

    fn say_on_subscription(&mut self, serial: u64, method: &str, more: &str) -> TestCaseResult {
        let id = self.app.requests[&serial].id.as_ref().expect("a request");
        let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
        let params = format!(r#"{{{meta}{more},"of":{serial}}}"#);
        let line = self.stamped(&format!(r#""method":"{method}","params":{params}"#));
        self.server_says(&line)
    }

    pub(super) fn server_progress(&mut self, which: usize) -> TestCaseResult {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        // Every other request has a token.
        let tokens = server.pending.iter().copied().filter(|it| it % 2 == 0);
        let Some(serial) = nth(tokens, which) else {
            return Ok(());
        };
        let progress = server.progress.entry(serial).or_default();
        *progress += 1;
        let params = format!(r#"{{"progressToken":{serial},"progress":{progress}}}"#);
        let line = self.stamped(&format!(
            r#""method":"notifications/progress","params":{params}"#
        ));
        self.server_says(&line)
    }

    pub(super) fn server_asks(&mut self, which: usize) -> TestCaseResult {
        // Most of them are ids of the app's requests, too: each direction has its own.
        let ids = ["0", "3", "6", "9", "\"a\"", "\"s1\"", "\"s4\"", "12"];
        let id = ids[which % ids.len()].to_owned();
        let serial = self.next_serial();
        let number = self.servers;
        let params = format!(r#"{{"serial":{serial},"server":{number},"x":1.0}}"#);
        let line = self.stamped(&format!(
            r#""method":"roots/list","id":{id}, "params":{params}"#
        ));
        let Some(server) = &mut self.server else {
            return self.server_says(&line);
        };
        if server.burnt.contains(&id) {
            return Ok(());
        }
        if let Some(open) = server.open(&id) {
            let shown = self.app.shown.get(&open);
            if shown.is_some_and(|shown| shown.answered) {
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

    pub(super) fn server_cancels(&mut self, which: usize) -> TestCaseResult {
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

    fn answer_line(&mut self, serial: u64, respelled: bool) -> String {
        let asked = &self.app.requests[&serial];
        let mut id = asked.id.as_ref().expect("a request").to_string();
        if respelled {
            id = id.replace('s', "\\u0073");
        }
        let more = match (asked.kind, &self.server) {
            (Kind::ListTools, Some(server)) => format!(",{}", server.tools()),
            _ => String::new(),
        };
        self.stamped(&format!(r#""id":{id},"result":{{"of":{serial}{more}}}"#))
    }
}
