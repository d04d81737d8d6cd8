//! One app and its upstreams, as bytes tell it.
//!
//! Each line is a step, and its first byte says which: `>…` the app says the rest of the line, `<…` the upstream
//! does; `+` an upstream is there, `-` it is lost, `_` too, and all that it was asked and has not answered is
//! known not to have reached it, `!` none can be had, `?` one is to be expected again, `.` the
//! app will say no more; `~` the upstream does not read until the next step; `an` the upstream answers its `n`th
//! open request. A first line `*` has everything sent again, `0` nothing.

use std::collections::{BTreeMap, BTreeSet};

use kennel_core::message::{Key, Message, Request, result_reply};
use kennel_core::session::{Replay, SERVER_RESTARTED, Session, Unsent, Verdict};

use crate::ledger::{Ledger, as_app_reads, as_read, is_refusal, messages, well_formed};

/// What may be done twice, whoever says so.
const HARMLESS: [&str; 11] = [
    "server/discover",
    "tools/list",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "completion/complete",
    "logging/setLevel",
];

pub(crate) fn check(bytes: &[u8]) {
    let mut world = World::default();
    let replay = match bytes.first() {
        Some(b'*') => Replay::All,
        Some(b'0') => Replay::None,
        _ => Replay::Safe,
    };
    world.session = Session::replaying(replay);
    world.replay = replay;
    for line in bytes.split(|&byte| byte == b'\n') {
        if let Some((step, rest)) = line.split_first() {
            world.step(*step, rest);
        }
    }
    world.finish();
}

#[derive(Default)]
struct World {
    session: Session,
    replay: Replay,
    done: bool,
    app: Ledger,
    /// What the present upstream asked.
    upstream: Ledger,
    /// What the present upstream was asked: its ids as spelled.
    open: BTreeMap<Key, Vec<u8>>,
    /// What an upstream may have done of what is not answered: how often.
    may_be_done: BTreeMap<Key, usize>,
    /// What the app was asked.
    questions: BTreeMap<Key, Vec<u8>>,
}

impl World {
    fn step(&mut self, step: u8, rest: &[u8]) {
        let nth = |count: usize| usize::from(rest.first().copied().unwrap_or(0)) % count.max(1);
        let mut reads = true;
        match step {
            b'>' if !self.done => self.app_says(rest),
            b'<' => self.upstream_says(rest),
            b'+' => {
                self.lost();
                self.session.handle_upstream_attached();
            }
            b'_' if self.session.is_attached() => {
                let unsent: Vec<Key> = self.open.keys().cloned().collect();
                for key in &unsent {
                    if let Some(times) = self.may_be_done.get_mut(key) {
                        *times = times.saturating_sub(1);
                    }
                }
                self.lost();
                self.session.handle_upstream_lost(
                    SERVER_RESTARTED,
                    Unsent::Reported {
                        ids: &unsent,
                        received: None,
                    },
                );
            }
            b'-' => {
                self.lost();
                self.session
                    .handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
            }
            b'!' => {
                self.lost();
                self.session.give_up("it is away", "oh");
            }
            b'?' => self.session.expect_upstream(),
            b'.' => {
                self.done = true;
                self.session.handle_app_eof();
            }
            b'~' => reads = false,
            b'a' => {
                if let Some(id) = self.open.values().nth(nth(self.open.len())).cloned() {
                    self.upstream_says(&result_reply(&id, "{}"));
                }
            }
            b'q' if !self.done => {
                if let Some(id) = self
                    .questions
                    .values()
                    .nth(nth(self.questions.len()))
                    .cloned()
                {
                    self.app_says(&result_reply(&id, "{}"));
                }
            }
            _ => {}
        }
        self.settle(reads);
    }

    /// Nothing of what was between us and the upstream is of use to the next.
    fn lost(&mut self) {
        if self.session.is_attached() {
            self.open.clear();
            self.upstream = Ledger::default();
        }
    }

    fn app_says(&mut self, line: &[u8]) {
        let mut cancelled = BTreeSet::new();
        // What is no message may be refused.
        if let Ok(message) = Message::parse(line) {
            for message in messages(&message) {
                match message {
                    Message::Request(request) => {
                        cancelled.remove(&request.id.key());
                        self.app.asked(request.id.key());
                    }
                    Message::Notification(it) => {
                        if let Ok(Some(id)) = it.cancelled() {
                            self.app.perhaps_cancelled(&id.key());
                            cancelled.insert(id.key());
                        }
                    }
                    Message::Response(it) => {
                        if let Some(id) = it.id {
                            self.questions.remove(&id.key());
                        }
                    }
                    Message::Batch(_) => panic!("a batch in a batch"),
                }
            }
        }
        match self.session.handle_app_line(line) {
            Verdict::Forward => self.upstream_hears(line),
            Verdict::Replace(line) => self.upstream_hears(&line),
            Verdict::Drop => {}
            Verdict::Abandon => panic!("an app is not abandoned"),
        }
        // A request may be cancelled by the very batch it is in: what has its id later is another one.
        self.may_be_done.retain(|key, _| !cancelled.contains(key));
    }

    fn upstream_says(&mut self, line: &[u8]) {
        let read = as_app_reads(&as_read(line));
        if let Ok(message) = Message::parse(&read)
            && self.session.is_attached()
        {
            for message in messages(&message) {
                match message {
                    Message::Request(request) => self.upstream.asked(request.id.key()),
                    Message::Notification(it) => {
                        if let Ok(Some(id)) = it.cancelled() {
                            self.upstream.perhaps_cancelled(&id.key());
                        }
                    }
                    Message::Response(it) => {
                        if let Some(id) = it.id {
                            self.open.remove(&id.key());
                        }
                    }
                    Message::Batch(_) => panic!("a batch in a batch"),
                }
            }
        }
        match self.session.handle_upstream_line(line) {
            Verdict::Forward => self.app_hears(line),
            Verdict::Replace(line) => self.app_hears(&line),
            Verdict::Drop => {}
            Verdict::Abandon => {
                assert!(!self.session.is_attached(), "an abandoned one is lost");
                self.open.clear();
                self.upstream = Ledger::default();
            }
        }
    }

    fn settle(&mut self, reads: bool) {
        while let Some(line) = self.session.poll_to_app() {
            self.app_hears(&line);
        }
        while reads && let Some(line) = self.session.poll_to_upstream() {
            assert!(self.session.is_attached(), "somebody hears it");
            self.upstream_hears(&line);
        }
        while let Some(note) = self.session.poll_note() {
            assert!(!note.to_string().contains('\n'), "one line of the log");
        }
    }

    fn app_hears(&mut self, line: &[u8]) {
        for message in messages(&well_formed(&as_app_reads(line))) {
            match message {
                Message::Request(request) => {
                    let id = request.id;
                    self.questions.insert(id.key(), id.raw().to_vec());
                }
                Message::Notification(_) => {}
                Message::Response(it) => {
                    // An error without an id answers nothing.
                    if let Some(id) = it.id.filter(|id| id.raw() != b"null") {
                        let key = id.key();
                        self.may_be_done.remove(&key);
                        let asked = self.app.answered(&key) || is_refusal(it);
                        assert!(asked, "the app never asked {key}");
                    }
                }
                Message::Batch(_) => panic!("a batch in a batch"),
            }
        }
    }

    fn upstream_hears(&mut self, line: &[u8]) {
        for message in messages(&well_formed(line)) {
            match message {
                Message::Request(request) => {
                    let id = request.id;
                    self.open.insert(id.key(), id.raw().to_vec());
                    self.is_done(request);
                }
                Message::Notification(_) => {}
                Message::Response(it) => {
                    let key = it.id.expect("it answers something").key();
                    let asked = self.upstream.answered(&key) || is_refusal(it);
                    assert!(asked, "it never asked {key}");
                }
                Message::Batch(_) => panic!("a batch in a batch"),
            }
        }
    }

    /// Rule 5: what may not be done twice is not asked twice.
    fn is_done(&mut self, request: &Request<'_>) {
        let key = request.id.key();
        let method = request.method.name();
        // Of the session itself, under an id that may be another's by now.
        let own = matches!(&key, Key::Text(name) if name.starts_with("kennel-"));
        if own || method == "initialize" {
            return;
        }
        let times = self.may_be_done.entry(key).or_default();
        *times += 1;
        let may_repeat = match self.replay {
            _ if method == "subscriptions/listen" => true,
            Replay::All => *times <= 3,
            Replay::None => false,
            Replay::Safe => *times <= 3 && (HARMLESS.contains(&&*method) || method == "tools/call"),
        };
        assert!(*times == 1 || may_repeat, "{method} again");
    }

    fn finish(&mut self) {
        self.settle(true);
        self.lost();
        // Else it would go on listening.
        self.session.handle_app_eof();
        self.session.give_up("it is away", "oh");
        self.settle(true);
        assert_eq!(self.session.in_flight(), 0);
        let waiting: Vec<_> = self
            .app
            .waiting()
            .into_iter()
            .filter(|key| key.is_acceptable())
            .collect();
        assert!(waiting.is_empty(), "the app waits for {waiting:?}");
        assert!(self.session.is_idle(), "nothing is owed to anybody");
    }
}
