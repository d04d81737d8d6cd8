//! The clients: each asks under the lowest id that is free, as all others do.

use kennel_core::message::Key;
use kennel_core::mux::ClientId;
use kennel_core::time::Moment;
use proptest::test_runner::{TestCaseError, TestCaseResult};
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

use crate::play::{cancel, result};

use super::{Client, Fact, Open, World, call, nth};

impl World {
    pub(super) fn client_calls(&mut self, which: usize, with_token: bool) -> TestCaseResult {
        self.serials += 1;
        let serial = self.serials;
        let Some(number) = nth(self.clients.keys(), which).copied() else {
            return Ok(());
        };
        let fact = Fact {
            session: self.clients[&number].session,
            sent: false,
            client: Some(number),
            answered: false,
            task: false,
            heard: 0,
            progress: 0,
        };
        if self.clients[&number].greeted {
            self.facts.insert(serial, fact);
        }
        self.client_asks(which, |_, id| {
            (
                Open::Call(serial),
                call(&id.to_string(), with_token, serial),
            )
        })
    }

    /// A client asks something under the lowest id that is free: the same as all others do.
    pub(super) fn client_asks(
        &mut self,
        which: usize,
        ask: impl FnOnce(&mut Client, u64) -> (Open, String),
    ) -> TestCaseResult {
        let Some((number, client)) = nth(self.clients.iter_mut(), which) else {
            return Ok(());
        };
        if !client.greeted {
            return Ok(());
        }
        let number = *number;
        let free = (0..).find(|id| !client.open.contains_key(id));
        let id = free.expect("there are many");
        let (open, line) = ask(client, id);
        client.open.insert(id, open);
        self.client_says(number, &line)
    }

    pub(super) fn client_cancels(&mut self, which: usize, other: usize) -> TestCaseResult {
        let Some((number, client)) = nth(self.clients.iter_mut(), which) else {
            return Ok(());
        };
        let cancellable = |open: &Open| !matches!(open, Open::Greeting | Open::Unsubscribe);
        let ids = client.open.iter().filter(|(_, open)| cancellable(open));
        let Some(id) = nth(ids.map(|(id, _)| *id), other) else {
            return Ok(());
        };
        let number = *number;
        if let Some(Open::Call(serial)) = client.open.remove(&id) {
            let fact = self.facts.get_mut(&serial).expect("it is known");
            fact.client = None;
        } else {
            self.haunted.insert(client.session);
        }
        self.client_says(number, &cancel(&id.to_string()))
    }

    /// Lines that are no messages, and answers to what the one who gives them was never asked.
    pub(super) fn nonsense(&mut self, which: usize) -> TestCaseResult {
        self.server_says("Listening...")?;
        self.server_says(&result("999999", r#"{"of":0}"#))?;
        let Some(number) = nth(self.clients.keys(), which).copied() else {
            return Ok(());
        };
        self.client_says(number, "{")?;
        let others = self.clients.iter().filter(|(other, _)| **other != number);
        let not_its = others.flat_map(|(_, other)| &other.asked);
        for id in not_its.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.client_says(number, &result(&id, r#"{"by":0,"roots":[0]}"#))?;
        }
        Ok(())
    }

    pub(super) fn client_answers(&mut self, which: usize) -> TestCaseResult {
        let Some((number, client)) = nth(self.clients.iter_mut(), which) else {
            return Ok(());
        };
        if client.asked.is_empty() {
            return Ok(());
        }
        let (id, method) = client.asked.remove(0);
        let answer = match &*method {
            "roots/list" => format!(r#"{{"roots":{}}}"#, client.roots),
            _ => format!(r#"{{"by":{}}}"#, client.session),
        };
        let number = *number;
        self.client_says(number, &result(&id, &answer))
    }

    pub(super) fn client_says(&mut self, client: u64, line: &str) -> TestCaseResult {
        self.mux
            .handle_client_line(ClientId(client), line.as_bytes(), Moment::START);
        self.poll()
    }

    /// `true`: its handshake is done now.
    pub(super) fn client_hears(&mut self, number: u64, line: &[u8]) -> Result<bool, TestCaseError> {
        let value: Value = serde_json::from_slice(line).expect("JSON");
        let client = self.clients.get_mut(&number);
        prop_assert!(client.is_some(), "{number} is gone");
        let client = client.expect("it is here");
        match (value["method"].as_str(), value.get("id")) {
            (Some("notifications/progress"), None) => {
                let id = value["params"]["progressToken"].as_u64().expect("its own");
                let of = value["params"]["of"].as_u64();
                let open = client.open.get(&id);
                prop_assert!(
                    matches!(open, Some(Open::Call(serial)) if Some(*serial) == of),
                    "progress of another's, or of what is over: {open:?} {value}"
                );
                self.facts
                    .get_mut(&of.expect("a serial"))
                    .expect("known")
                    .progress += 1;
            }
            (Some("notifications/resources/updated"), None) => {
                // Until the end of one is answered, the server may not have heard of it: what a client says whose
                // roots are waited for waits, too.
                let open = |it: &Open| {
                    matches!(it, Open::Subscribe { void: false, .. } | Open::Unsubscribe)
                };
                let uri = value["params"]["uri"].as_str().expect("a uri");
                let uri: u64 = uri.parse().expect("a number");
                prop_assert!(client.wants.contains(&uri) || client.open.values().any(open));
                client.updates += 1;
            }
            (Some("notifications/tasks/status"), None) => {
                let task = value["params"]["taskId"].as_str().expect("a task");
                let serial: u64 = task.parse().expect("its serial");
                prop_assert_eq!(self.facts[&serial].session, client.session, "another's");
            }
            (Some("notifications/tools/list_changed"), None) => {
                prop_assert!(client.initialized || self.server.confirmations == 0);
                client.version = value["params"]["v"].as_u64().expect("a version");
            }
            (Some(method), Some(id)) => {
                if method == "elicitation/create" {
                    let truly = value["params"]["for"].as_u64();
                    let truly = truly.map(|serial| self.facts[&serial].session);
                    prop_assert!(
                        truly == Some(client.session)
                            || (truly.is_none() && self.is_its_by_default(number)),
                        "the wrong client is asked: {value}"
                    );
                }
                let client = self.clients.get_mut(&number).expect("it is here");
                client.asked.push((id.to_string(), method.to_owned()));
            }
            (Some("notifications/cancelled"), None) => {
                let id = value["params"]["requestId"].to_string();
                client.asked.retain(|(asked, _)| *asked != id);
            }
            (None, Some(id)) => return self.client_hears_answer(number, id, &value),
            other => prop_assert!(false, "{other:?}"),
        }
        Ok(false)
    }

    /// Whether a question about nothing is rightly this client's: nobody else was ever there, or the
    /// server works for this one and for nobody else, or greets it.
    pub(super) fn is_its_by_default(&self, number: u64) -> bool {
        let client = &self.clients[&number];
        let session = client.session;
        let asks = |(number, client): (&u64, &Client)| {
            let unheard = self.mux.queued_requests_of(ClientId(*number));
            let is_heard = |id: u64| !unheard.contains(&Key::Number(id as i64));
            let mut open = client.open.iter();
            open.any(|(id, open)| !matches!(open, Open::Greeting) && is_heard(*id))
        };
        let works = Fact::goes_on;
        let mut others = self.clients.iter().filter(|(other, _)| **other != number);
        let alone = others.all(|other| !asks(other))
            && !self
                .facts
                .values()
                .any(|it| works(it) && it.session != session);
        let busy = asks((&number, client))
            || self.haunted.contains(&session)
            || self
                .facts
                .values()
                .any(|it| works(it) && it.session == session);
        let greeted_first = number == 1 && !client.greeted;
        self.sessions.len() == 1 || (alone && (busy || greeted_first))
    }

    pub(super) fn client_hears_answer(
        &mut self,
        number: u64,
        id: &Value,
        value: &Value,
    ) -> Result<bool, TestCaseError> {
        if id.is_null() {
            prop_assert_eq!(&value["error"]["code"], -32700, "only of nonsense");
            return Ok(false);
        }
        let client = self.clients.get_mut(&number).expect("it is here");
        let open = client.open.remove(&id.as_u64().expect("its own"));
        prop_assert!(open.is_some(), "rule 4: nobody asked for {value}");
        match open.expect("it is open") {
            Open::Greeting => {
                prop_assert!(value["result"].get("serverInfo").is_some());
                client.greeted = true;
                client.initialized = true;
                return Ok(true);
            }
            Open::Call(serial) => {
                let of = value["result"]["of"].as_i64();
                let of = of.or(value["error"]["code"].as_i64().map(|code| -code));
                prop_assert_eq!(of, Some(serial as i64), "rule 4: another's");
                let fact = self.facts.get_mut(&serial).expect("known");
                prop_assert_eq!(fact.client, Some(number), "after it was cancelled");
                fact.heard += 1;
            }
            Open::List(at_least) => {
                let version = value["result"]["v"].as_u64();
                prop_assert!(
                    version >= Some(at_least),
                    "from before a change it heard of"
                );
            }
            Open::Subscribe { uri, void } => {
                if !void {
                    client.wants.insert(uri);
                }
            }
            Open::Unsubscribe => {}
        }
        Ok(false)
    }
}
