//! The two sides of a session, each of which checks every message it hears against what the other
//! one said.
//!
//! Every request has a serial of its own and every answer says which serial it is `of`; so an answer
//! that reaches the wrong one shows, whatever the ids are.

use std::collections::{BTreeMap, BTreeSet};

use kennel_core::message::{Message, splice};
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

/// The app, and what is true of what it sent.
#[derive(Default)]
pub(crate) struct App {
    pub(crate) requests: BTreeMap<u64, Asked>,
    pub(crate) greeting: Greeting,
    pub(crate) greetings_sent: usize,
    pub(crate) greetings_answered: usize,
    pub(crate) confirmed: bool,
    /// The servers' requests, by serial.
    pub(crate) shown: BTreeMap<u64, Shown>,
    /// Ids whose next error is for a request that was refused.
    pub(crate) refusals_due: Vec<Value>,
    /// In its turn at a server, each message comes after those that were sent before it.
    last_delivered: Option<u64>,
    last_heard: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Greeting {
    #[default]
    None,
    Waiting,
    Done,
}

/// A message of the app that goes in its turn: a request, or a notification (which has no id).
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) id: Option<Value>,
    pub(crate) cancelled: bool,
    pub(crate) delivered_to: Option<usize>,
    pub(crate) answers: usize,
}

/// A server's request as the app knows it.
pub(crate) struct Shown {
    pub(crate) id: String,
    pub(crate) server: usize,
    pub(crate) answered: bool,
    pub(crate) withdrawn: bool,
}

/// One server, from its attaching to its loss.
pub(crate) struct Server {
    pub(crate) number: usize,
    /// Greeted on behalf of the app: nothing may come before.
    pub(crate) greeted_by_session: bool,
    pub(crate) confirmed_before: bool,
    pub(crate) greetings: usize,
    pub(crate) greeting_answered: bool,
    pub(crate) confirmations: usize,
    /// Serials of the app that it may answer.
    pub(crate) pending: Vec<u64>,
    /// Its own requests, by serial.
    pub(crate) asked: BTreeMap<u64, OwnRequest>,
    /// Ids not to be used again: the app may yet answer what was cancelled.
    pub(crate) burnt: BTreeSet<String>,
    pub(crate) refusals_due: Vec<Value>,
}

pub(crate) struct OwnRequest {
    pub(crate) line: String,
    pub(crate) id: String,
    pub(crate) answered: bool,
    pub(crate) cancelled: bool,
    /// The line that cancelled it.
    pub(crate) cancel: Option<String>,
}

impl Server {
    pub(crate) fn new(number: usize, app: &App) -> Server {
        Server {
            number,
            greeted_by_session: app.greeting != Greeting::None,
            confirmed_before: app.confirmed,
            greetings: 0,
            greeting_answered: false,
            confirmations: 0,
            pending: Vec::new(),
            asked: BTreeMap::new(),
            burnt: BTreeSet::new(),
            refusals_due: Vec::new(),
        }
    }

    /// Its own request that waits for the app's answer under this id.
    pub(crate) fn open(&self, id: &str) -> Option<u64> {
        let open = |own: &&OwnRequest| own.id == id && !own.answered && !own.cancelled;
        let (serial, _) = self.asked.iter().find(|(_, own)| open(own))?;
        Some(*serial)
    }

    /// Hears a line.
    pub(crate) fn hear(&mut self, line: &[u8], app: &mut App) -> TestCaseResult {
        for_each_message(line, |message, value| {
            match (value.get("method").and_then(Value::as_str), value.get("id")) {
                (Some("initialize"), Some(_)) => {
                    self.greetings += 1;
                    prop_assert_eq!(self.greetings, 1);
                    prop_assert!(app.greeting != Greeting::None);
                }
                (Some("notifications/initialized"), None) => {
                    self.confirmations += 1;
                    prop_assert_eq!(self.confirmations, 1);
                    prop_assert!(self.greeting_answered || !self.greeted_by_session);
                    prop_assert!(app.confirmed);
                }
                (Some("notifications/cancelled"), None) => {
                    let of = serial(value, "/params/of");
                    prop_assert_eq!(app.requests[&of].delivered_to, Some(self.number));
                    prop_assert!(app.requests[&of].cancelled);
                }
                (Some(_), id) => {
                    self.hear_in_turn(message, serial(value, "/params/serial"), id, app)?
                }
                (None, _) => self.hear_answer(message, value, app)?,
            }
            Ok(())
        })
    }

    fn hear_in_turn(
        &mut self,
        message: &[u8],
        serial: u64,
        id: Option<&Value>,
        app: &mut App,
    ) -> TestCaseResult {
        if self.greeted_by_session {
            prop_assert!(self.greeting_answered, "before the handshake was answered");
            prop_assert!(self.confirmations == 1 || !self.confirmed_before);
        }
        // Rule 5: nothing twice; and nothing overtakes.
        prop_assert!(app.last_delivered < Some(serial));
        app.last_delivered = Some(serial);

        let asked = app.requests.get_mut(&serial).expect("the app said it");
        prop_assert_eq!(message, asked.line.as_bytes(), "rule 11");
        prop_assert!(!asked.cancelled, "lesson 37: a cancelled request came back");
        asked.delivered_to = Some(self.number);
        if id.is_some() {
            self.pending.push(serial);
        }
        Ok(())
    }

    fn hear_answer(&mut self, message: &[u8], value: &Value, app: &App) -> TestCaseResult {
        if value["error"]["code"] == -32600 {
            let due = self.refusals_due.iter().position(|id| *id == value["id"]);
            prop_assert!(due.is_some(), "{value}");
            self.refusals_due.remove(due.expect("it is due"));
            return Ok(());
        }
        let of = serial(value, "/result/of");
        let own = self.asked.get_mut(&of);
        prop_assert!(own.is_some(), "an answer to another server's request");
        let own = own.expect("it is ours");
        prop_assert!(!own.answered, "rule 4");
        own.answered = true;
        prop_assert_eq!(&own.id, &value["id"].to_string());
        prop_assert_eq!(text(message), answer_to_server(&own.id, of), "rule 11");
        prop_assert!(app.shown[&of].answered);
        Ok(())
    }
}

impl App {
    /// Hears a line while `server` is the one attached, if any.
    pub(crate) fn hear(&mut self, line: &[u8], server: Option<&mut Server>) -> TestCaseResult {
        let mut server = server;
        for_each_message(line, |message, value| {
            if let Some(order) = value.pointer("/order").and_then(Value::as_u64) {
                prop_assert!(order > self.last_heard, "the server's lines in their order");
                self.last_heard = order;
            }
            match (value.get("method").and_then(Value::as_str), value.get("id")) {
                (Some("notifications/cancelled"), None) => {
                    self.hear_cancel(message, value, server.as_deref_mut())
                }
                (Some(_), None) => Ok(()),
                (Some(_), Some(_)) => self.hear_request(message, value, server.as_deref_mut()),
                (None, _) => self.hear_answer(value, server.as_deref()),
            }
        })
    }

    fn hear_request(
        &mut self,
        message: &[u8],
        value: &Value,
        server: Option<&mut Server>,
    ) -> TestCaseResult {
        // One that waited until its server was lost is known to no one any more: its answer is
        // checked to reach nobody.
        let serial = serial(value, "/params/serial");
        let id = value["id"].to_string();
        let number = serial_server(value);
        if let Some(own) = server.as_ref().and_then(|it| it.asked.get(&serial)) {
            prop_assert_eq!(with_id(message, &own.id), own.line.as_bytes(), "rule 11");
            prop_assert!(
                number > 1 || id == own.id,
                "the first server's ids are as they are"
            );
        }
        for (other, shown) in &self.shown {
            let open = !shown.answered && !shown.withdrawn;
            let unique = shown.id != id || (number == 1 && shown.server == 1 && !open);
            prop_assert!(unique, "{other} and {serial} are both known by {id}");
        }
        let shown = Shown {
            id,
            server: number,
            answered: false,
            withdrawn: false,
        };
        self.shown.insert(serial, shown);
        Ok(())
    }

    fn hear_cancel(
        &mut self,
        message: &[u8],
        value: &Value,
        server: Option<&mut Server>,
    ) -> TestCaseResult {
        let named = value["params"]["requestId"].to_string();
        // The latest: the first server may have used the id before.
        let known = |shown: &&mut Shown| shown.id == named && !shown.withdrawn;
        let by_server = value.pointer("/params/of").and_then(Value::as_u64);
        let shown = match by_server {
            Some(of) => self.shown.get_mut(&of),
            None => self.shown.values_mut().rfind(known),
        };
        prop_assert!(shown.is_some(), "{named} was never shown");
        let shown = shown.expect("it was shown");
        prop_assert_eq!(&shown.id, &named);
        prop_assert!(!shown.withdrawn, "twice");
        shown.withdrawn = true;
        if let (Some(of), Some(server)) = (by_server, server)
            && let Some(own) = server.asked.get(&of)
        {
            let place = text(message).find("\"requestId\":").expect("it names one") + 12;
            let back = splice(message, &[(place..place + named.len(), own.id.as_bytes())]);
            prop_assert_eq!(Some(text(&back)), own.cancel.clone(), "rule 11");
        }
        Ok(())
    }

    fn hear_answer(&mut self, value: &Value, server: Option<&Server>) -> TestCaseResult {
        let id = &value["id"];
        if value["error"]["code"] == -32600 {
            let due = self.refusals_due.iter().position(|due| due == id);
            prop_assert!(due.is_some(), "{value}");
            self.refusals_due.remove(due.expect("it is due"));
            return Ok(());
        }
        if id == "greeting" {
            prop_assert_eq!(self.greeting, Greeting::Waiting);
            self.greetings_answered += 1;
            (self.greeting, self.confirmed) = match value.get("result") {
                Some(_) => (Greeting::Done, self.confirmed),
                None => (Greeting::None, false),
            };
            return Ok(());
        }
        let asked = self
            .requests
            .values_mut()
            .find(|it| it.id.as_ref() == Some(id));
        let asked = asked.expect("the app asked it");
        asked.answers += 1;
        prop_assert_eq!(asked.answers, 1, "rule 4: a second answer");
        let asked_serial = serial(
            &serde_json::from_str(&asked.line).expect("JSON"),
            "/params/serial",
        );
        let here = server.map(|server| server.number);
        match (
            value.get("result"),
            value["error"]["data"]["outcome"].as_str(),
        ) {
            (Some(result), _) if result.get("of").is_some() => {
                prop_assert_eq!(
                    serial(value, "/result/of"),
                    asked_serial,
                    "rule 4: another's"
                );
                prop_assert!(asked.delivered_to.is_some());
            }
            (Some(_), _) => {
                prop_assert!(asked.line.contains("\"ping\""));
                prop_assert_eq!(asked.delivered_to, None);
            }
            (None, Some("unknown")) => {
                prop_assert!(asked.delivered_to.is_some() && asked.delivered_to != here);
            }
            (None, Some("unsent")) => prop_assert_eq!(asked.delivered_to, None),
            (None, _) => prop_assert!(false, "{value}"),
        }
        Ok(())
    }
}

/// The app's answer to a server's request.
pub(crate) fn answer_to_server(id: &str, of: u64) -> String {
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

fn serial_server(value: &Value) -> usize {
    serial(value, "/params/server") as usize
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}
