//! The server: it reads lane by lane, and answers when and how chance will have it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kennel_core::mux::Lane;
use kennel_core::time::Moment;
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

use crate::play::{WELCOME, error, notice, request, result};

use super::{Ask, Asked, Client, Open, Pending, World, about, call, nth};

impl World {
    /// The server reads one line of some lane, but of the front one first.
    pub(super) fn read(&mut self, which: usize) -> TestCaseResult {
        let lanes = &mut self.server.lanes;
        lanes.retain(|_, lines| !lines.is_empty());
        let front = lanes.get_mut(&Lane::Front);
        let line = match front {
            Some(front) => front.pop_front(),
            None => nth(lanes.values_mut(), which).and_then(VecDeque::pop_front),
        };
        match line {
            Some(line) => self.server_hears(&line),
            None => Ok(()),
        }
    }

    pub(super) fn server_hears(&mut self, line: &str) -> TestCaseResult {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let method = value["method"].as_str();
        let Some(id) = value.get("id") else {
            match method {
                Some("notifications/initialized") => self.server.confirmations += 1,
                Some("notifications/cancelled") => {
                    let id = value["params"]["requestId"].as_u64().expect("minted");
                    prop_assert!(id <= self.server.highest + 1000);
                    // It stops, or not: `answer` decides by chance which of them it goes on with.
                }
                other => prop_assert!(false, "{other:?}"),
            }
            prop_assert!(self.server.confirmations <= 1);
            return Ok(());
        };
        let id = id.as_u64().expect("a number");
        let Some(method) = method else {
            return self.server_hears_answer(id, &value);
        };
        let known = self.server.pending.iter().any(|it| it.id == id);
        prop_assert!(!known, "{id} is taken");
        self.server.highest = self.server.highest.max(id);
        let uri = || {
            value["params"]["uri"]
                .as_str()
                .expect("a uri")
                .parse()
                .expect("a number")
        };
        let mut token = false;
        let what = match method {
            "initialize" => {
                self.server.greetings += 1;
                prop_assert_eq!(self.server.greetings, 1);
                Asked::Greeting
            }
            "tools/call" => {
                let serial = value["params"]["serial"].as_u64().expect("a serial");
                token = value["params"].get("_meta").is_some();
                prop_assert_eq!(line, call(&id.to_string(), token, serial), "rule 11");
                Asked::Call(serial)
            }
            "tools/list" => Asked::List(self.server.version),
            "resources/subscribe" => Asked::Subscribe(uri()),
            "resources/unsubscribe" => {
                let uri = uri();
                self.server.holds.remove(&uri);
                Asked::Unsubscribe
            }
            other => panic!("{other}"),
        };
        if let Asked::Subscribe(uri) = what {
            self.server.holds.insert(uri);
        }
        self.server.pending.push(Pending { id, what, token });
        Ok(())
    }

    pub(super) fn server_hears_answer(&mut self, id: u64, value: &Value) -> TestCaseResult {
        let Some(ask) = self.server.asks.remove(&id) else {
            // It was cancelled while the answer was on its way in a lane.
            return Ok(());
        };
        if let Some(by) = value["result"]["by"].as_u64() {
            // Whom a question about nothing went to was judged when it did.
            let truly = ask.serial.map(|serial| self.facts[&serial].session);
            prop_assert!(
                truly.is_none_or(|truly| truly == by),
                "the wrong one answers"
            );
        } else if let Some(roots) = value["result"].get("roots") {
            prop_assert!(ask.roots);
            self.server.told = Some(roots.to_string());
        } else {
            let reason = value["error"]["data"]["reason"].as_str();
            prop_assert!(
                matches!(reason, Some("client_gone" | "ambiguous_client")),
                "{value}"
            );
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, which: usize, kindly: bool) -> TestCaseResult {
        if self.server.pending.is_empty() {
            return Ok(());
        }
        let place = which % self.server.pending.len();
        let Pending { id, what, .. } = self.server.pending.remove(place);
        // As some servers spell it.
        let id = match which % 5 {
            0 => format!("\"{id}\""),
            1 => format!("{id}.0"),
            _ => id.to_string(),
        };
        let line = match what {
            Asked::Greeting => result(&id, WELCOME),
            Asked::Call(serial) if kindly => {
                let fact = self.facts.get_mut(&serial).expect("known");
                fact.answered = true;
                fact.task = which % 4 == 3;
                let task = match fact.task {
                    true => format!(r#","task":{{"taskId":"{serial}","status":"working"}}"#),
                    false => String::new(),
                };
                result(&id, &format!(r#"{{"of":{serial}{task}}}"#))
            }
            Asked::Call(serial) => {
                self.facts.get_mut(&serial).expect("known").answered = true;
                error(&id, -(serial as i64))
            }
            Asked::List(version) => result(&id, &format!(r#"{{"tools":[],"v":{version}}}"#)),
            Asked::Subscribe(_) | Asked::Unsubscribe => result(&id, "{}"),
        };
        self.server.given.push(line.clone());
        self.server_says(&line)
    }

    pub(super) fn progress(&mut self, which: usize) -> TestCaseResult {
        let Some(pending) = nth(self.server.pending.iter(), which) else {
            return Ok(());
        };
        let Asked::Call(serial) = pending.what else {
            return Ok(());
        };
        let token = match which % 5 {
            0 => format!("\"{}\"", pending.id),
            _ => pending.id.to_string(),
        };
        let params = format!(r#"{{"progressToken":{token},"of":{serial}}}"#);
        let heard_by_its_own = pending.token && self.facts[&serial].client.is_some();
        let before = self.progress_heard();
        self.server_says(&notice("notifications/progress", &params))?;
        let heard = self.progress_heard() - before;
        prop_assert_eq!(heard, usize::from(heard_by_its_own));
        Ok(())
    }

    pub(super) fn updated(&mut self, uri: u64) -> TestCaseResult {
        if !self.server.holds.contains(&uri) {
            return Ok(());
        }
        let updates = |clients: &BTreeMap<u64, Client>| -> Vec<usize> {
            let wants = clients.values().filter(|it| it.wants.contains(&uri));
            wants.map(|it| it.updates).collect()
        };
        let before = updates(&self.clients);
        self.server_says(&notice("notifications/resources/updated", &about(uri)))?;
        let once_more: Vec<_> = before.iter().map(|count| count + 1).collect();
        prop_assert_eq!(updates(&self.clients), once_more);
        Ok(())
    }

    pub(super) fn task_ends(&mut self, which: usize) -> TestCaseResult {
        let mut tasks = self.facts.iter_mut().filter(|(_, fact)| fact.task);
        let Some((serial, fact)) = nth(tasks.by_ref(), which) else {
            return Ok(());
        };
        fact.task = false;
        let params = format!(r#"{{"taskId":"{serial}","status":"completed"}}"#);
        self.server_says(&notice("notifications/tasks/status", &params))
    }

    pub(super) fn server_asks(
        &mut self,
        which: usize,
        other: usize,
        about_nothing: bool,
    ) -> TestCaseResult {
        let id = other as u64 % 8;
        if self.server.has_used(id) || self.server.greetings == 0 {
            return Ok(());
        }
        let working = self.facts.iter().filter(|(_, fact)| fact.goes_on());
        let working: BTreeMap<u64, u64> =
            working.map(|(serial, it)| (*serial, it.session)).collect();
        let serial = match about_nothing {
            true => None,
            false => nth(working.keys().copied(), which),
        };
        let ask = Ask {
            serial,
            roots: false,
        };
        self.server.asks.insert(id, ask);
        let task = serial.filter(|serial| self.facts[serial].task && which.is_multiple_of(2));
        let meta = task.map_or(String::new(), |task| {
            let key = "io.modelcontextprotocol/related-task";
            format!(r#","_meta":{{"{key}":{{"taskId":"{task}"}}}}"#)
        });
        let serial = serial.map_or("null".to_owned(), |serial| serial.to_string());
        let line = request(
            &id.to_string(),
            "elicitation/create",
            &format!(r#"{{"for":{serial}{meta}}}"#),
        );
        let before = self.questions();
        self.server_says(&line)?;
        let is_here = |session| self.clients.values().any(|it| it.session == session);
        if let Some(task) = task {
            let here = is_here(self.facts[&task].session);
            prop_assert_eq!(self.questions() - before, usize::from(here));
            return Ok(());
        }
        // Where it is clear whose it is, that one is asked.
        let sessions: BTreeSet<u64> = working.values().copied().collect();
        let nothing_else = self.clients.values().all(|client| {
            let call = |open: &Open| matches!(open, Open::Call(_));
            client.open.values().all(call)
        }) && self
            .server
            .pending
            .iter()
            .all(|it| matches!(it.what, Asked::Call(_)))
            && self
                .server
                .lanes
                .get(&Lane::Own)
                .is_none_or(VecDeque::is_empty)
            && self
                .server
                .lanes
                .get(&Lane::Front)
                .is_none_or(VecDeque::is_empty);
        if let (1, Some(session), true) = (sessions.len(), sessions.first(), nothing_else) {
            prop_assert_eq!(self.questions() - before, usize::from(is_here(*session)));
        }
        Ok(())
    }

    pub(super) fn server_asks_roots(&mut self, which: usize) -> TestCaseResult {
        let id = which as u64 % 8;
        if self.server.has_used(id) || self.server.confirmations == 0 {
            return Ok(());
        }
        let ask = Ask {
            serial: None,
            roots: true,
        };
        self.server.asks.insert(id, ask);
        self.server_says(&request(&id.to_string(), "roots/list", "{}"))
    }

    pub(super) fn server_says(&mut self, line: &str) -> TestCaseResult {
        self.mux.handle_server_line(line.as_bytes(), Moment::START);
        self.poll()
    }
}
