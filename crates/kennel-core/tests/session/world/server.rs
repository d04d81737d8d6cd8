//! One server, which checks what it is handed against what the app said.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kennel_core::session::Replay;
use proptest::test_runner::{TestCaseError, TestCaseResult};
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

use super::app::{App, Greeting, Kind};
use super::{answer_to_server, for_each_message, serial, text};

/// One server, from its attaching to its loss.
pub(crate) struct Server {
    pub(super) number: usize,
    /// Greeted on behalf of the app: nothing may come before.
    pub(super) greeted_by_session: bool,
    confirmed_before: bool,
    /// The app had been told that it would hear of changed lists.
    announces: bool,
    pub(super) greetings: usize,
    pub(super) greeting_answered: bool,
    pub(super) confirmations: usize,
    /// What it was handed, line by line, and how many of them it has taken.
    handed: Vec<Handed>,
    taken: usize,
    last_handed: Option<u64>,
    /// Serials of the app that it runs, and may answer.
    pub(super) pending: Vec<u64>,
    /// What the session asked it: the id, and what.
    pub(super) errands: VecDeque<(String, Kind)>,
    /// How far each request has come.
    pub(super) progress: BTreeMap<u64, u64>,
    level: Option<u64>,
    subscriptions: BTreeSet<u8>,
    /// Its own requests, by serial.
    pub(super) asked: BTreeMap<u64, OwnRequest>,
    /// Ids not to be used again: the app may yet answer what was cancelled.
    pub(super) burnt: BTreeSet<String>,
    pub(super) refusals_due: Vec<Value>,
}

/// A line on its way.
struct Handed {
    length: usize,
    requests: Vec<Handled>,
}

/// A request on its way.
#[derive(Clone)]
struct Handled {
    /// The app's; or one that the session copied.
    serial: u64,
    /// By the session, under this id.
    errand: Option<String>,
}

pub(crate) struct OwnRequest {
    pub(super) line: String,
    pub(super) id: String,
    pub(super) answered: bool,
    pub(super) cancelled: bool,
    /// The line that cancelled it.
    pub(super) cancel: Option<String>,
}

impl Server {
    pub(super) fn new(number: usize, app: &App) -> Server {
        Server {
            number,
            greeted_by_session: app.greeting != Greeting::None,
            confirmed_before: app.confirmed,
            announces: app.confirmed && app.greeting == Greeting::Done,
            greetings: 0,
            greeting_answered: false,
            confirmations: 0,
            handed: Vec::new(),
            taken: 0,
            last_handed: None,
            pending: Vec::new(),
            errands: VecDeque::new(),
            progress: BTreeMap::new(),
            level: None,
            subscriptions: BTreeSet::new(),
            asked: BTreeMap::new(),
            burnt: BTreeSet::new(),
            refusals_due: Vec::new(),
        }
    }

    /// Its own request that waits for the app's answer under this id.
    pub(super) fn open(&self, id: &str) -> Option<u64> {
        let open = |own: &&OwnRequest| own.id == id && !own.answered && !own.cancelled;
        let (serial, _) = self.asked.iter().find(|(_, own)| open(own))?;
        Some(*serial)
    }

    /// Its list of tools. Every other server has the same.
    pub(super) fn tools(&self) -> String {
        let more = match self.number % 2 {
            0 => "",
            _ => r#",{"name":"odd"}"#,
        };
        let safe = |name: &str, hint: &str| {
            format!(r#"{{"name":"{name}","annotations":{{"{hint}":true}}}}"#)
        };
        let (look, put) = (safe("look", "readOnlyHint"), safe("put", "idempotentHint"));
        format!(r#""tools":[{look},{{"name":"pay"}},{put}{more}]"#)
    }

    /// A line for it goes on its way.
    pub(super) fn is_handed(&mut self, line: &[u8], app: &mut App) -> TestCaseResult {
        let mut requests = Vec::new();
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
                    prop_assert_eq!(app.requests[&of].handed_to, Some(self.number));
                    prop_assert!(app.requests[&of].cancelled);
                }
                (Some(_), Some(id)) if is_errand(id) => {
                    self.may_be_asked()?;
                    let serial = serial(value, "/params/serial");
                    prop_assert_eq!(self.last_handed, None, "what stands comes first");
                    requests.push(Handled {
                        serial,
                        errand: Some(id.to_string()),
                    });
                }
                (Some(_), id) => {
                    let serial = serial(value, "/params/serial");
                    self.is_handed_in_turn(message, serial, app)?;
                    if id.is_some() {
                        requests.push(Handled {
                            serial,
                            errand: None,
                        });
                    }
                }
                (None, _) => self.hear_answer(message, value, app)?,
            }
            Ok(())
        })?;
        self.handed.push(Handed {
            length: line.len(),
            requests,
        });
        Ok(())
    }

    fn is_handed_in_turn(&mut self, message: &[u8], serial: u64, app: &mut App) -> TestCaseResult {
        self.may_be_asked()?;
        // Nothing twice, and nothing overtakes.
        prop_assert!(self.last_handed < Some(serial));
        self.last_handed = Some(serial);

        let asked = app.requests.get_mut(&serial).expect("the app said it");
        prop_assert_eq!(message, asked.line.as_bytes(), "rule 11");
        prop_assert!(!asked.cancelled, "lesson 37: a cancelled request came back");
        let told_before = asked.id.is_none() && asked.handed_to.is_some();
        prop_assert!(!told_before, "a notification came back");
        asked.handed_to = Some(self.number);
        Ok(())
    }

    fn may_be_asked(&self) -> TestCaseResult {
        if self.greeted_by_session {
            prop_assert!(self.greeting_answered, "before the handshake was answered");
            prop_assert!(self.confirmations == 1 || !self.confirmed_before);
        }
        Ok(())
    }

    /// Takes the next lines and runs what is in them. Gives the subscriptions that were opened.
    pub(super) fn take(
        &mut self,
        lines: usize,
        app: &mut App,
        replay: Replay,
    ) -> Result<Vec<u64>, TestCaseError> {
        let mut opened = Vec::new();
        let end = self.handed.len().min(self.taken.saturating_add(lines));
        for taken in std::mem::replace(&mut self.taken, end)..end {
            for Handled { serial, errand } in self.handed[taken].requests.clone() {
                let kind = app.requests[&serial].kind;
                match errand {
                    Some(id) => {
                        prop_assert!(kind.is_state() || kind == Kind::ListTools);
                        self.errands.push_back((id, kind));
                    }
                    None => {
                        app.runs(serial, replay)?;
                        self.pending.push(serial);
                    }
                }
                match kind {
                    Kind::SetLevel => self.level = Some(serial),
                    Kind::Subscribe(uri) => {
                        self.subscriptions.insert(uri);
                    }
                    Kind::Unsubscribe(uri) => {
                        self.subscriptions.remove(&uri);
                    }
                    Kind::Listen => opened.push(serial),
                    _ => {}
                }
            }
        }
        Ok(opened)
    }

    /// Chooses one to answer. What changes its state is answered in order, as servers do.
    pub(super) fn settle(&mut self, which: usize, app: &App) -> Option<u64> {
        let is_state = |serial: &u64| app.requests[serial].kind.is_state();
        let chosen = which.checked_rem(self.pending.len())?;
        let chosen = match is_state(&self.pending[chosen]) {
            true => self.pending.iter().position(is_state)?,
            false => chosen,
        };
        let serial = self.pending.remove(chosen);
        self.progress.remove(&serial);
        Some(serial)
    }

    pub(super) fn owes(&self) -> bool {
        !self.pending.is_empty() || !self.errands.is_empty()
    }

    pub(super) fn lines_to_take(&self) -> usize {
        self.handed.len() - self.taken
    }

    /// So many of the last requests that it has not taken will never be. Gives them.
    pub(super) fn withdraw_requests(&mut self, count: usize) -> Vec<u64> {
        let untaken = self.handed[self.taken..].iter_mut().rev();
        let mut withdrawn = Vec::new();
        for handed in untaken {
            while withdrawn.len() < count
                && let Some(last) = handed.requests.pop()
            {
                if last.errand.is_none() {
                    withdrawn.push(last.serial);
                }
            }
        }
        withdrawn
    }

    /// So many of the last lines that it has not taken were not written, but for some bytes of the first of
    /// them. Gives how many bytes were not.
    pub(super) fn withdraw_lines(&mut self, lines: usize, written: usize) -> usize {
        let mut first = self.taken.max(self.handed.len().saturating_sub(lines));
        let bytes: usize = self.handed[first..].iter().map(|it| it.length + 1).sum();
        let written = match self.handed.get(first) {
            Some(handed) => written % (handed.length + 1),
            None => 0,
        };
        // All but its newline: that is enough for many servers.
        if self
            .handed
            .get(first)
            .is_some_and(|handed| handed.length == written)
        {
            first += 1;
        }
        self.handed.truncate(first);
        bytes - written
    }

    /// How much it was handed, as far as it was not withdrawn.
    pub(super) fn bytes_handed(&self) -> u64 {
        self.handed.iter().map(|it| it.length as u64 + 1).sum()
    }

    /// The app's requests that it has or may have.
    pub(super) fn in_flight(&self) -> Vec<u64> {
        let untaken = self.handed[self.taken..].iter().flat_map(|it| &it.requests);
        let untaken = untaken.filter(|it| it.errand.is_none());
        let untaken = untaken.map(|it| it.serial);
        untaken.chain(self.pending.iter().copied()).collect()
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

    /// It was answered all it asked, and holds what the app set up.
    pub(super) fn is_content(&self, app: &App) -> TestCaseResult {
        prop_assert!(self.refusals_due.is_empty());
        for (serial, own) in &self.asked {
            prop_assert!(own.answered || own.cancelled, "{serial} is not answered");
        }
        if !app.murky {
            prop_assert_eq!(self.level, app.level, "the log level");
            prop_assert_eq!(&self.subscriptions, &app.subscriptions);
        }
        if let Some(listed) = app.listed
            && self.announces
        {
            let same = listed % 2 == self.number % 2;
            prop_assert!(same, "nobody told it that the tools are others");
        }
        Ok(())
    }
}

/// Whether the session asked it on its own account.
fn is_errand(id: &Value) -> bool {
    id.as_str().is_some_and(|id| id.starts_with("kennel-"))
}
