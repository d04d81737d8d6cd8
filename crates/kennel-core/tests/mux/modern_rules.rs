//! What holds for every order of events in the modern era: calls, their progress and log messages, and
//! subscriptions, of clients that all count from 0.

use std::collections::BTreeMap;

use kennel_core::mux::{Class, ClientId, MuxPolicy, Output};
use kennel_core::time::Moment;
use proptest::prelude::{Just, Strategy, any};
use proptest::test_runner::TestCaseResult;
use proptest::{collection, prop_assert, prop_assert_eq, prop_oneof};
use serde_json::Value;

use crate::chance::holds;
use crate::play::{ENVELOPE, cancel, error, notice, request, result};
use crate::twins::Twins;

#[derive(Clone, Copy, Debug)]
enum Step {
    Join,
    Leave(usize),
    Ask(usize, Asked),
    Cancel(usize, usize),
    /// It goes on with something, cancelled or not: progress, a log message, news.
    GoOn(usize),
    Answer {
        which: usize,
        kindly: bool,
    },
    EndBySide(usize),
}

/// What a request wants beside its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    listens: bool,
    token: bool,
    logs: bool,
}

#[derive(Default)]
struct World {
    clients: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// What the server works on, by the id it knows.
    pending: BTreeMap<u64, u64>,
    facts: BTreeMap<u64, Fact>,
    joined: u64,
}

struct Fact {
    asked: Asked,
    /// Who wants it, under which id; nobody any more, once it is cancelled or over.
    by: Option<(u64, u64)>,
    answers: usize,
}

#[test]
fn rules_4_and_11_hold_in_the_modern_era() {
    let which = 0..6_usize;
    let asked = any::<(bool, bool, u8)>().prop_map(|(token, logs, listens)| Asked {
        listens: listens < 60,
        token,
        logs,
    });
    let step = prop_oneof![
        3 => Just(Step::Join),
        1 => which.clone().prop_map(Step::Leave),
        10 => (which.clone(), asked).prop_map(|(which, asked)| Step::Ask(which, asked)),
        3 => (which.clone(), which.clone()).prop_map(|(who, which)| Step::Cancel(who, which)),
        12 => which.clone().prop_map(Step::GoOn),
        8 => (which.clone(), any::<bool>())
            .prop_map(|(which, kindly)| Step::Answer { which, kindly }),
        1 => which.prop_map(Step::EndBySide),
    ];
    holds("modern mux", collection::vec(step, 0..100), |steps| {
        let mut mux = Twins::new(Class::modern(), MuxPolicy::default());
        let mut world = World::default();
        for step in steps {
            world.play(&mut mux, step)?;
        }
        while !world.pending.is_empty() {
            let step = Step::Answer {
                which: 0,
                kindly: true,
            };
            world.play(&mut mux, step)?;
        }
        for (client, open) in &world.clients {
            prop_assert!(open.is_empty(), "{client} waits");
            prop_assert!(mux.in_flight_of(ClientId(*client)).is_empty());
        }
        Ok(())
    });
}

impl World {
    fn play(&mut self, mux: &mut Twins, step: Step) -> TestCaseResult {
        match step {
            Step::Join => {
                self.joined += 1;
                self.clients.insert(self.joined, BTreeMap::new());
                mux.join(ClientId(self.joined), &self.joined.to_string());
                Ok(())
            }
            Step::Leave(which) => {
                let Some(client) = nth(self.clients.keys(), which) else {
                    return Ok(());
                };
                for serial in self.clients.remove(&client).expect("it is here").values() {
                    self.facts.get_mut(serial).expect("known").by = None;
                }
                mux.leave(ClientId(client), Moment::START);
                self.poll(mux)
            }
            Step::Ask(which, asked) => {
                let Some(client) = nth(self.clients.keys(), which) else {
                    return Ok(());
                };
                let open = self.clients.get_mut(&client).expect("it is here");
                let free = (0..).find(|id| !open.contains_key(id));
                let id = free.expect("there are many");
                let serial = self.facts.len() as u64;
                open.insert(id, serial);
                let fact = Fact {
                    asked,
                    by: Some((client, id)),
                    answers: 0,
                };
                self.facts.insert(serial, fact);
                let line = line(&id.to_string(), asked, serial);
                mux.handle_client_line(ClientId(client), line.as_bytes(), Moment::START);
                self.poll(mux)
            }
            Step::Cancel(who, which) => {
                let Some(client) = nth(self.clients.keys(), who) else {
                    return Ok(());
                };
                let open = self.clients.get_mut(&client).expect("it is here");
                let Some(id) = nth(open.keys(), which) else {
                    return Ok(());
                };
                let serial = open.remove(&id).expect("it is open");
                self.facts.get_mut(&serial).expect("known").by = None;
                let line = cancel(&id.to_string());
                mux.handle_client_line(ClientId(client), line.as_bytes(), Moment::START);
                self.poll(mux)
            }
            Step::GoOn(which) => {
                let Some(id) = nth(self.pending.keys(), which) else {
                    return Ok(());
                };
                let serial = self.pending[&id];
                let asked = self.facts[&serial].asked;
                if asked.token {
                    let params = format!(r#"{{"of":{serial}, "progressToken":{id}}}"#);
                    self.server_says(mux, &notice("notifications/progress", &params))?;
                }
                if asked.logs {
                    let params = format!(r#"{{"of":{serial},"level":"info"}}"#);
                    self.server_says(mux, &notice("notifications/message", &params))?;
                }
                if asked.listens {
                    let meta = format!(r#"{{"io.modelcontextprotocol/subscriptionId": {id}}}"#);
                    let params = format!(r#"{{"of":{serial},"_meta":{meta}}}"#);
                    self.server_says(mux, &notice("notifications/resources/updated", &params))?;
                }
                Ok(())
            }
            Step::Answer { which, kindly } => {
                let Some(id) = nth(self.pending.keys(), which) else {
                    return Ok(());
                };
                let serial = self.pending.remove(&id).expect("it is there");
                let line = match kindly {
                    true => result(&id.to_string(), &format!(r#"{{"of":{serial}}}"#)),
                    false => error(&id.to_string(), serial as i64),
                };
                self.server_says(mux, &line)?;
                // And once more: nobody hears that.
                self.server_says(mux, &line)
            }
            Step::EndBySide(which) => {
                let Some(id) = nth(self.pending.keys(), which) else {
                    return Ok(());
                };
                if self.facts[&self.pending[&id]].asked.listens {
                    self.pending.remove(&id);
                }
                self.server_says(mux, &cancel(&id.to_string()))
            }
        }
    }

    fn server_says(&mut self, mux: &mut Twins, line: &str) -> TestCaseResult {
        mux.handle_server_line(line.as_bytes(), Moment::START);
        self.poll(mux)
    }

    fn poll(&mut self, mux: &mut Twins) -> TestCaseResult {
        while let Some(out) = mux.poll_output() {
            match out {
                Output::ToServer { line, .. } => self.server_hears(&text(line.into()))?,
                Output::ToClient { client, line } => {
                    self.client_hears(client.0, &text(line.into()))?
                }
                Output::ToClients { clients, line } => {
                    for client in clients {
                        self.client_hears(client.0, &text(line.to_vec()))?;
                    }
                }
                Output::Dismiss { .. } => prop_assert!(false, "nobody has to go"),
            }
        }
        Ok(())
    }

    fn server_hears(&mut self, heard: &str) -> TestCaseResult {
        let value: Value = serde_json::from_str(heard).expect("JSON");
        if let Some(id) = value["id"].as_u64() {
            let serial = value["params"]["serial"].as_u64().expect("a serial");
            let asked = self.facts[&serial].asked;
            prop_assert_eq!(heard, line(&id.to_string(), asked, serial), "rule 11");
            prop_assert_eq!(self.pending.insert(id, serial), None, "an id given twice");
        } else {
            prop_assert_eq!(value["method"].as_str(), Some("notifications/cancelled"));
        }
        Ok(())
    }

    fn client_hears(&mut self, client: u64, heard: &str) -> TestCaseResult {
        let value: Value = serde_json::from_str(heard).expect("JSON");
        let open = self.clients.get_mut(&client);
        prop_assert!(open.is_some(), "{client} is gone");
        let open = open.expect("it is here");
        if value["method"] == "notifications/cancelled" {
            let id = value["params"]["requestId"].as_u64().expect("its own");
            let serial = open.remove(&id);
            prop_assert!(serial.is_some(), "not its own");
            let fact = self
                .facts
                .get_mut(&serial.expect("its own"))
                .expect("known");
            prop_assert!(fact.asked.listens);
            fact.by = None;
            return Ok(());
        }
        if let Some(id) = value["id"].as_u64() {
            let of = value["result"]["of"].as_u64();
            let of = of.or(value["error"]["code"].as_u64());
            let fact = self.facts.get_mut(&of.expect("a serial")).expect("known");
            prop_assert_eq!(fact.by.take(), Some((client, id)), "rule 4: another's");
            prop_assert_eq!(open.remove(&id), of);
            fact.answers += 1;
            prop_assert_eq!(fact.answers, 1, "rule 4");
            return Ok(());
        }
        let params = &value["params"];
        let fact = &self.facts[&params["of"].as_u64().expect("a serial")];
        let by = fact.by;
        prop_assert_eq!(by.map(|(by, _)| by), Some(client), "another's, or over");
        let id = by.map(|(_, id)| id);
        let meta = &params["_meta"]["io.modelcontextprotocol/subscriptionId"];
        for known_by in [&params["progressToken"], meta] {
            prop_assert!(known_by.is_null() || known_by.as_u64() == id);
        }
        Ok(())
    }
}

fn line(id: &str, asked: Asked, serial: u64) -> String {
    let token = match asked.token {
        true => format!(r#""progressToken" : {id},"#),
        false => String::new(),
    };
    let logs = match asked.logs {
        true => r#""io.modelcontextprotocol/logLevel":"info","#,
        false => "",
    };
    let method = match asked.listens {
        true => "subscriptions/listen",
        false => "tools/call",
    };
    let params = format!(r#"{{"serial":{serial},"_meta":{{{token}{logs}{ENVELOPE}}},"x":1.0}}"#);
    request(id, method, &params)
}

fn nth<'a>(of: impl Iterator<Item = &'a u64>, which: usize) -> Option<u64> {
    let all: Vec<u64> = of.copied().collect();
    match all.len() {
        0 => None,
        count => Some(all[which % count]),
    }
}

fn text(line: Vec<u8>) -> String {
    String::from_utf8(line).expect("text")
}
