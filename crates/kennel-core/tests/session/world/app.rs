//! The app, which checks every message it hears against what was said and done.
//!
//! Every request has a serial of its own and every answer says which serial it is `of`; so an answer
//! that reaches the wrong one shows, whatever the ids are.

use std::collections::{BTreeMap, BTreeSet};

use kennel_core::message::{Key, Message, splice};
use kennel_core::session::Replay;
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::Value;

use super::server::Server;
use super::{for_each_message, serial, text, with_id};

/// How often a request may run at most: once, and twice again.
const MOST_RUNS: u32 = 3;

/// What the app asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Ping,
    Read,
    /// A tool of which the server says nothing good.
    Pay,
    /// One that is read-only, for those who have seen the list.
    Look,
    /// One that is idempotent.
    Put,
    /// A harmless one, as the next step of an exchange.
    GoOn,
    ListTools,
    SetLevel,
    Subscribe(u8),
    Unsubscribe(u8),
    Listen,
    Other,
}

impl Kind {
    /// Its method, and what more is in its params.
    pub(super) fn method(self) -> (&'static str, String) {
        let call = |tool: &str| format!(r#","name":"{tool}""#);
        match self {
            Kind::Ping => ("ping", String::new()),
            Kind::Read => ("resources/read", String::new()),
            Kind::Pay => ("tools/call", call("pay")),
            Kind::Look => ("tools/call", call("look")),
            Kind::Put => ("tools/call", call("put")),
            Kind::GoOn => ("tools/call", call("look") + r#","requestState":"s""#),
            Kind::ListTools => ("tools/list", String::new()),
            Kind::SetLevel => ("logging/setLevel", String::new()),
            Kind::Subscribe(uri) => ("resources/subscribe", format!(r#","uri":"u:{uri}""#)),
            Kind::Unsubscribe(uri) => ("resources/unsubscribe", format!(r#","uri":"u:{uri}""#)),
            Kind::Listen => ("subscriptions/listen", String::new()),
            Kind::Other => ("x", String::new()),
        }
    }

    /// Whether it changes what the server holds for the app.
    pub(super) fn is_state(self) -> bool {
        matches!(
            self,
            Kind::SetLevel | Kind::Subscribe(_) | Kind::Unsubscribe(_)
        )
    }

    /// Whether it may run again; `None` if that depends on what the app knows of the tools.
    fn repeats(self, replay: Replay) -> Option<bool> {
        match (self, replay) {
            (Kind::Listen, _) => Some(true),
            (Kind::Ping, _) => Some(false),
            (_, Replay::All) => Some(true),
            (_, Replay::None) => Some(false),
            (Kind::Look | Kind::Put, Replay::Safe) => None,
            (Kind::Read | Kind::ListTools, Replay::Safe) => Some(true),
            (state, Replay::Safe) => Some(state.is_state()),
        }
    }
}

/// The app, and what is true of what it sent.
#[derive(Default)]
pub(crate) struct App {
    pub(super) requests: BTreeMap<u64, Asked>,
    pub(super) greeting: Greeting,
    pub(super) greetings_sent: usize,
    greetings_answered: usize,
    pub(super) confirmed: bool,
    /// The servers' requests, by serial.
    pub(super) shown: BTreeMap<u64, Shown>,
    /// Ids whose next error is for a request that was refused.
    pub(super) refusals_due: Vec<Value>,
    last_heard: u64,
    /// What it set up, by what it was answered.
    pub(super) level: Option<u64>,
    pub(super) subscriptions: BTreeSet<u8>,
    /// It cancelled some of that: nobody knows.
    pub(super) murky: bool,
    /// It saw a list of tools, and heard of no change since: which server's.
    pub(super) listed: Option<usize>,
    ever_listed: bool,
    replay: Replay,
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
    pub(super) line: String,
    pub(super) id: Option<Value>,
    pub(super) kind: Kind,
    pub(super) cancelled: bool,
    pub(super) handed_to: Option<usize>,
    /// How often it ran.
    runs: u32,
    /// How many servers were lost that may have run it.
    may_be_done: u32,
    pub(super) answers: usize,
    acknowledgements: usize,
    progress: u64,
}

impl Asked {
    pub(super) fn new(line: &str, id: Option<Value>, kind: Kind) -> Asked {
        Asked {
            line: line.to_owned(),
            id,
            kind,
            cancelled: false,
            handed_to: None,
            runs: 0,
            may_be_done: 0,
            answers: 0,
            acknowledgements: 0,
            progress: 0,
        }
    }
}

/// A server's request as the app knows it.
pub(crate) struct Shown {
    pub(super) id: String,
    pub(super) server: usize,
    pub(super) answered: bool,
    withdrawn: bool,
}

impl App {
    pub(super) fn new(replay: Replay) -> App {
        App {
            replay,
            ..App::default()
        }
    }

    /// A request runs (rule 5: not again unless it may).
    pub(super) fn runs(&mut self, serial: u64, replay: Replay) -> TestCaseResult {
        let ever_listed = self.ever_listed;
        let asked = self.requests.get_mut(&serial).expect("the app asked it");
        asked.runs += 1;
        if asked.runs > 1 {
            let may = asked.kind.repeats(replay).unwrap_or(ever_listed);
            prop_assert!(may, "rule 5: {} ran again", asked.line);
            let endless = asked.kind == Kind::Listen;
            prop_assert!(endless || asked.runs <= MOST_RUNS, "{}", asked.line);
        }
        Ok(())
    }

    /// These were with a server that is lost, and it is not known that it has not heard them.
    pub(super) fn may_be_done(&mut self, serials: Vec<u64>) {
        for serial in serials {
            let asked = self.requests.get_mut(&serial).expect("the app asked it");
            asked.may_be_done += 1;
        }
    }

    pub(super) fn key(&self, serial: u64) -> Key {
        let line = self.requests[&serial].line.as_bytes();
        let message = Message::parse(line).expect("a message");
        message.id().expect("a request").key()
    }

    /// What a server asks that is neither answered nor withdrawn.
    pub(super) fn open_questions(&self, server: usize) -> Vec<u64> {
        let open = |shown: &Shown| shown.server == server && !shown.answered && !shown.withdrawn;
        let open = self.shown.iter().filter(|(_, shown)| open(shown));
        open.map(|(of, _)| *of).collect()
    }

    /// Everything was answered, once.
    pub(super) fn is_content(&self, server: usize) -> TestCaseResult {
        prop_assert_eq!(self.greetings_answered, self.greetings_sent);
        for (serial, asked) in &self.requests {
            match (&asked.id, asked.cancelled) {
                (Some(_), false) => prop_assert_eq!(asked.answers, 1, "rule 4: {}", serial),
                (Some(_), true) => prop_assert!(asked.answers <= 1, "rule 4: {serial}"),
                (None, _) => {}
            }
        }
        prop_assert!(self.refusals_due.is_empty());
        for (serial, shown) in &self.shown {
            let mine = shown.server == server;
            prop_assert!(mine || shown.answered || shown.withdrawn, "{serial} hangs");
        }
        Ok(())
    }

    /// Hears a line while `server` is the one attached, if any.
    pub(super) fn hear(&mut self, line: &[u8], server: Option<&mut Server>) -> TestCaseResult {
        let mut server = server;
        for_each_message(line, |message, value| {
            let order = value.pointer("/order").and_then(Value::as_u64);
            if let Some(order) = order {
                prop_assert!(order > self.last_heard, "the server's lines in their order");
                self.last_heard = order;
            }
            match (value.get("method").and_then(Value::as_str), value.get("id")) {
                (Some("notifications/cancelled"), None) => {
                    self.hear_cancel(message, value, server.as_deref_mut())
                }
                (Some("notifications/tools/list_changed"), None) => {
                    // Of several subscriptions, each is told.
                    let again = value["params"]["_meta"].is_object() && self.ever_listed;
                    prop_assert!(self.listed.is_some() || again, "it knows no list");
                    self.listed = None;
                    Ok(())
                }
                (Some("notifications/progress"), None) => self.hear_progress(value),
                (Some(method), None) => self.hear_notification(method, value),
                (Some(_), Some(_)) => self.hear_request(message, value, server.as_deref_mut()),
                (None, _) => self.hear_answer(value, server.as_deref()),
            }
        })
    }

    fn hear_progress(&mut self, value: &Value) -> TestCaseResult {
        let asked = self
            .requests
            .get_mut(&serial(value, "/params/progressToken"));
        let asked = asked.expect("the app asked it");
        let progress = serial(value, "/params/progress");
        prop_assert!(progress > asked.progress, "progress goes back: {value}");
        prop_assert_eq!(asked.answers, 0, "it is over: {}", value);
        asked.progress = progress;
        Ok(())
    }

    /// One of a subscription names it, and comes after its only acknowledgement.
    fn hear_notification(&mut self, method: &str, value: &Value) -> TestCaseResult {
        let Some(of) = value.pointer("/params/of").and_then(Value::as_u64) else {
            return Ok(());
        };
        let asked = self.requests.get_mut(&of).expect("the app asked it");
        if method == "notifications/subscriptions/acknowledged" {
            asked.acknowledgements += 1;
        }
        let cancelled = asked.cancelled;
        prop_assert!(asked.acknowledgements == 1 || cancelled, "{value}");
        Ok(())
    }

    fn hear_request(
        &mut self,
        message: &[u8],
        value: &Value,
        server: Option<&mut Server>,
    ) -> TestCaseResult {
        // One that waited until its server was lost is known to no one any more: its answer is
        // checked to reach nobody.
        let serial_of = serial(value, "/params/serial");
        let id = value["id"].to_string();
        let number = serial(value, "/params/server") as usize;
        if let Some(own) = server.as_ref().and_then(|it| it.asked.get(&serial_of)) {
            prop_assert_eq!(with_id(message, &own.id), own.line.as_bytes(), "rule 11");
            prop_assert!(
                number > 1 || id == own.id,
                "the first server's ids are as they are"
            );
        }
        for (other, shown) in &self.shown {
            let open = !shown.answered && !shown.withdrawn;
            let unique = shown.id != id || (number == 1 && shown.server == 1 && !open);
            prop_assert!(unique, "{other} and {serial_of} are both known by {id}");
        }
        let shown = Shown {
            id,
            server: number,
            answered: false,
            withdrawn: false,
        };
        self.shown.insert(serial_of, shown);
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
        if id.is_null() && value["error"]["code"] != 0 {
            // Of nonsense, or of a request whose id is another's.
            self.refusals_due.retain(|due| due != id);
            return Ok(());
        }
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
            .iter_mut()
            .find(|(_, it)| it.id.as_ref() == Some(id));
        prop_assert!(asked.is_some(), "the app never asked {id}");
        let (&asked_serial, asked) = asked.expect("it did");
        asked.answers += 1;
        prop_assert_eq!(asked.answers, 1, "rule 4: a second answer");
        let data = &value["error"]["data"];
        match (value.get("result"), data["outcome"].as_str()) {
            (Some(result), _) if result.get("of").is_some() => {
                let of = serial(value, "/result/of");
                prop_assert_eq!(of, asked_serial, "rule 4: another's");
                prop_assert!(asked.runs > 0);
                self.learn(asked_serial, server);
            }
            (Some(_), _) => prop_assert_eq!(asked.kind, Kind::Ping),
            (None, Some("unknown")) => {
                let times = asked.may_be_done;
                prop_assert!(times > 0, "no server can have heard it");
                prop_assert_eq!(data["replayed"].as_bool(), Some(times > 1));
                let restarted = data["reason"] == "server_restarted";
                // Had it been safe, it would have been asked again.
                let might_go_on =
                    times < MOST_RUNS && asked.kind.repeats(self.replay) == Some(true);
                prop_assert!(!restarted || !might_go_on, "{value} for {}", asked.line);
            }
            (None, Some("unsent")) => {
                prop_assert_eq!(asked.runs, 0, "{}", value);
                prop_assert_eq!(&data["reason"], "server_unavailable");
            }
            (None, _) => prop_assert!(false, "{value}"),
        }
        Ok(())
    }

    /// What it makes of a result.
    fn learn(&mut self, of: u64, server: Option<&Server>) {
        let asked = &self.requests[&of];
        if asked.cancelled {
            return;
        }
        match asked.kind {
            Kind::SetLevel => self.level = self.level.max(Some(of)),
            Kind::Subscribe(uri) => {
                self.subscriptions.insert(uri);
            }
            Kind::Unsubscribe(uri) => {
                self.subscriptions.remove(&uri);
            }
            Kind::ListTools => {
                self.ever_listed = true;
                self.listed = server.map(|server| server.number).or(Some(0));
            }
            _ => {}
        }
    }
}
