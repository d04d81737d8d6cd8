//! A shim: a real [`Session`], with the way to its upstream that `kennel run` has.

use std::time::Duration;

use kennel_core::election::{Look, Patience, Watch};
use kennel_core::hello::{ClientHello, Control, PROTOCOL, Shares, Spec, Text};
use kennel_core::message::{Key, Message, Outcome};
use kennel_core::session::{SERVER_RESTARTED, Session, Unsent, Verdict};
use kennel_core::time::Moment;

use crate::budget::Budget;
use crate::elector::{Elected, Elector};
use crate::kernel::{End, Heard, Kernel, Pid, PipeId};
use crate::spare;

/// As `shim/link.rs` has them.
const ASK_AFTER: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) struct Shim {
    pid: Pid,
    app: Pid,
    session: Session,
    stdin: PipeId,
    stdin_open: bool,
    stdout: PipeId,
    /// It may be a daemon's client.
    shares: bool,
    link: Option<Link>,
    own: Option<Own>,
    election: Option<Elector>,
    next_start: Option<Moment>,
    /// The daemon has given its server up until somebody asks again.
    given_up: bool,
    /// It wants no upstream before somebody asks for something.
    resting: bool,
    answered_once: bool,
    budget: Budget,
}

/// A connection to a daemon.
struct Link {
    end: End,
    said_all: bool,
    /// Since when it owes something and says nothing.
    silent: Option<Moment>,
    /// It was asked, and has not answered; when to look next.
    asked: Option<(Watch, Moment)>,
}

/// A server of its own.
struct Own {
    pid: Pid,
    stdin: PipeId,
    stdout: PipeId,
    lost: bool,
}

/// Whether a connection to a daemon goes on.
#[derive(PartialEq, Eq)]
enum Stays {
    Yes,
    No,
    NotUntilNeeded,
}

impl Shim {
    pub(crate) fn new(pid: Pid, app: Pid, stdin: PipeId, stdout: PipeId, now: Moment) -> Shim {
        Shim {
            pid,
            app,
            session: Session::new(),
            stdin,
            stdin_open: true,
            stdout,
            shares: true,
            link: None,
            own: None,
            election: None,
            next_start: Some(now),
            given_up: false,
            resting: false,
            answered_once: false,
            budget: Budget::default(),
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        let link = self.link.as_ref();
        !kernel.alive(self.app)
            || (self.stdin_open && !self.session.queue_is_full() && kernel.readable(self.stdin))
            || link.is_some_and(|link| kernel.readable(link.end.read))
            || self.own.as_ref().is_some_and(|own| own.stirs(kernel))
            || self.election.as_ref().is_some_and(|it| it.is_ready(kernel))
            || self.due().is_some_and(|at| at <= kernel.now)
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        let election = self.election.as_ref().and_then(Elector::wake);
        [election, self.due()].into_iter().flatten().min()
    }

    /// When it has something to do by itself.
    fn due(&self) -> Option<Moment> {
        let waits = self.session.owed() > 0 && self.election.is_none();
        let look = self.link.as_ref().filter(|_| waits).and_then(|link| {
            match (&link.asked, link.silent) {
                (Some((_, at)), _) => Some(*at),
                (None, Some(since)) => Some(since + ASK_AFTER),
                (None, None) => None,
            }
        });
        let start = self.next_start.filter(|_| self.own.is_none());
        [look, start].into_iter().flatten().min()
    }

    /// One of the things there are to do; `false` once it is over.
    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        if !kernel.alive(self.app) {
            kernel.say(self.pid, || "its app is gone".to_owned());
            return false;
        }
        let ways: [fn(&mut Shim, &mut Kernel) -> bool; 6] = [
            Shim::hear_app,
            Shim::hear_daemon,
            Shim::hear_own,
            Shim::elect_on,
            Shim::look_after_daemon,
            Shim::start_if_due,
        ];
        for nth in 0..ways.len() {
            if ways[(nth + salt as usize) % ways.len()](self, kernel) {
                break;
            }
        }
        self.pass_on(kernel);
        !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.session.app_is_done() && self.session.is_idle()
    }

    fn pass_on(&mut self, kernel: &mut Kernel) {
        while let Some(line) = self.session.poll_to_app() {
            if let Ok(Message::Response(it)) = Message::parse(&line)
                && let (Outcome::Error(_), Some(id)) = (it.outcome, it.id)
                && let Key::Number(id) = id.key()
                && let Err(broken) = kernel.books.refused(self.app, id)
            {
                kernel.must(false, || broken);
            }
            kernel.write(self.stdout, &line);
        }
        let done = self.session.app_is_done();
        if let Some(to) = self.to_upstream() {
            while let Some(line) = self.session.poll_to_upstream() {
                kernel.write(to, &line);
            }
            if done && self.session.all_is_sent() {
                kernel.close_write(to);
                if let Some(link) = &mut self.link {
                    link.said_all = true;
                }
            }
        }
        while self.session.poll_note().is_some() {}
        // The wait for an answer begins with the question.
        if let Some(link) = &mut self.link {
            match self.session.owed() > 0 {
                true => link.silent = link.silent.or(Some(kernel.now)),
                false => link.is_there(),
            }
        }
    }

    fn to_upstream(&self) -> Option<PipeId> {
        match (&self.link, &self.own) {
            (Some(link), _) => Some(link.end.write),
            (None, Some(own)) if !own.lost => Some(own.stdin),
            (None, _) => None,
        }
    }

    fn hear_app(&mut self, kernel: &mut Kernel) -> bool {
        if !self.stdin_open || self.session.queue_is_full() || !kernel.readable(self.stdin) {
            return false;
        }
        match kernel.read(self.stdin) {
            Heard::Line(line) => self.take_from_app(&line, kernel),
            Heard::End => {
                self.stdin_open = false;
                self.session.app_eof();
                if self.resting {
                    self.session.give_up("it was stopped", "");
                }
            }
            Heard::Nothing => {}
        }
        true
    }

    fn take_from_app(&mut self, line: &[u8], kernel: &mut Kernel) {
        let message = Message::parse(line);
        if let Ok(Message::Notification(it)) = &message
            && let Ok(Some(id)) = it.cancelled()
            && let Key::Number(id) = id.key()
        {
            let between = !self.session.is_attached();
            let last = between.then(|| kernel.last_pid());
            kernel.books.cancel_heard(self.app, id, last);
        }
        let asks = matches!(&message, Ok(Message::Request(it)) if !it.method.is("ping"));
        if asks && (self.resting || self.is_left_alone()) {
            self.wake_up(kernel);
            self.ask_again(kernel);
            self.expect_a_server(kernel);
        }
        match (self.session.from_app(line), self.to_upstream()) {
            (Verdict::Forward, Some(to)) => drop(kernel.write(to, line)),
            (Verdict::Replace(line), Some(to)) => drop(kernel.write(to, &line)),
            _ => {}
        }
    }

    fn is_left_alone(&self) -> bool {
        let upstream = self.own.is_some() || self.link.is_some() || self.election.is_some();
        self.given_up || (!upstream && self.next_start.is_none())
    }

    fn wake_up(&mut self, kernel: &Kernel) {
        if std::mem::take(&mut self.resting) {
            self.session.upstream_expected();
            self.next_start = Some(kernel.now);
        }
    }

    fn ask_again(&mut self, kernel: &mut Kernel) {
        if self.given_up
            && let Some(link) = &self.link
        {
            self.given_up = false;
            kernel.write(link.end.write, &Control::Again.line());
            self.session.upstream_attached();
        }
    }

    fn expect_a_server(&mut self, kernel: &Kernel) {
        if self.is_left_alone()
            && !self.session.app_is_done()
            && let Some(at) = self.budget.spend(spare::instant(kernel.now))
        {
            self.session.upstream_expected();
            self.next_start = Some(spare::moment(at));
        }
    }

    fn hear_daemon(&mut self, kernel: &mut Kernel) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let end = link.end;
        if !kernel.readable(end.read) {
            return false;
        }
        let stays = match kernel.read(end.read) {
            Heard::Nothing => return false,
            Heard::End => Stays::No,
            Heard::Line(line) => {
                link.is_there();
                match Control::parse(&line) {
                    Some(word) => self.obey(word, end, kernel),
                    None => {
                        self.answered_once = true;
                        match self.session.from_upstream(&line[..]) {
                            Verdict::Forward => drop(kernel.write(self.stdout, &line)),
                            Verdict::Replace(line) => drop(kernel.write(self.stdout, &line)),
                            Verdict::Drop => {}
                            Verdict::Abandon => {
                                self.lose_daemon(kernel);
                                return true;
                            }
                        }
                        Stays::Yes
                    }
                }
            }
        };
        match stays {
            Stays::Yes => {}
            Stays::No => self.lose_daemon(kernel),
            Stays::NotUntilNeeded => self.rest(kernel),
        }
        true
    }

    fn obey(&mut self, word: Control, end: End, kernel: &mut Kernel) -> Stays {
        kernel.say(self.pid, || format!("is told {word:?}"));
        match word {
            Control::Lost(lost) => {
                let unsent = Unsent::Told {
                    ids: &lost.unsent,
                    heard: lost.heard,
                };
                self.session.upstream_lost(&lost.reason, unsent);
                if lost.final_word || self.session.app_is_done() {
                    self.given_up = true;
                    self.session.give_up("the server does not start again", "");
                } else {
                    kernel.write(end.write, &Control::Again.line());
                    self.session.upstream_attached();
                }
                Stays::Yes
            }
            Control::Going => Stays::No,
            Control::Stopped => Stays::NotUntilNeeded,
            Control::Solo(solo) => {
                let unsent = Unsent::Told {
                    ids: &solo.unsent,
                    heard: solo.heard,
                };
                self.session.upstream_lost(SERVER_RESTARTED, unsent);
                self.shares = false;
                Stays::No
            }
            _ => Stays::Yes,
        }
    }

    fn drop_link(&mut self, kernel: &mut Kernel) {
        if let Some(link) = self.link.take() {
            kernel.hang_up(link.end);
        }
    }

    fn lose_daemon(&mut self, kernel: &mut Kernel) {
        kernel.say(self.pid, || "loses its daemon".to_owned());
        self.drop_link(kernel);
        self.given_up = false;
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        if self.session.app_is_done() && self.session.in_flight() == 0 {
            return self.session.give_up("the daemon ended", "");
        }
        if self.election.is_some() {
            return;
        }
        match self.budget.spend(spare::instant(kernel.now)) {
            Some(at) => {
                self.session.upstream_expected();
                self.next_start = Some(spare::moment(at));
            }
            None => self.session.give_up("daemons ended too often", ""),
        }
    }

    /// A person stopped the server: the next request starts it again.
    fn rest(&mut self, kernel: &mut Kernel) {
        self.drop_link(kernel);
        self.given_up = false;
        if let Some(election) = self.election.take() {
            election.abandon(kernel);
        }
        let busy = !self.session.is_quiet();
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        if self.session.app_is_done() && self.session.owed() == 0 {
            return self.session.give_up("it was stopped", "");
        }
        self.resting = true;
        if busy {
            self.wake_up(kernel);
        }
    }

    fn elect_on(&mut self, kernel: &mut Kernel) -> bool {
        let Some(election) = self.election.as_mut().filter(|it| it.is_ready(kernel)) else {
            return false;
        };
        if let Some(outcome) = election.turn(kernel) {
            self.election = None;
            self.elected(outcome, kernel);
        }
        true
    }

    fn elected(&mut self, outcome: Elected, kernel: &mut Kernel) {
        match outcome {
            Elected::NotStuck => match &mut self.link {
                Some(link) => link.is_there(),
                None => self.lose_daemon(kernel),
            },
            Elected::Connected(end) => {
                self.drop_link(kernel);
                self.given_up = false;
                self.link = Some(Link {
                    end,
                    said_all: false,
                    silent: None,
                    asked: None,
                });
                self.session.upstream_attached();
            }
            Elected::Solo => {
                self.shares = false;
                self.drop_link(kernel);
                self.session
                    .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
                self.start_own(kernel);
            }
        }
    }

    fn look_after_daemon(&mut self, kernel: &mut Kernel) -> bool {
        if self.election.is_some() || self.session.owed() == 0 {
            return false;
        }
        let Some(link) = &mut self.link else {
            return false;
        };
        let now = kernel.now;
        let suspect = match (&mut link.asked, link.silent) {
            (Some((watch, at)), _) if *at <= now => {
                *at = now + LOOK_EVERY;
                watch.look(kernel.work(link.end.peer), now) == Look::Stuck
            }
            (None, Some(since)) if since + ASK_AFTER <= now => {
                kernel.write(link.end.write, &Control::Ping.line());
                link.asked = Some((Watch::new(Patience::First, now), now + LOOK_EVERY));
                false
            }
            _ => return false,
        };
        if suspect {
            let suspect = link.end.peer;
            self.elect(Some(suspect), kernel);
        }
        true
    }

    fn start_if_due(&mut self, kernel: &mut Kernel) -> bool {
        if self.link.is_some() {
            self.next_start = None;
        }
        if self.own.is_some() || self.next_start.is_none_or(|at| at > kernel.now) {
            return false;
        }
        self.next_start = None;
        match self.shares {
            true => self.elect(None, kernel),
            false => self.start_own(kernel),
        }
        true
    }

    fn elect(&mut self, suspect: Option<Pid>, kernel: &Kernel) {
        let hello = hello(self.pid, self.app, kernel.house.in_turn).line();
        self.election = Some(Elector::new(self.pid, hello, suspect, kernel.now));
    }

    fn start_own(&mut self, kernel: &mut Kernel) {
        let (pid, stdin, stdout) = kernel.start_server(self.pid, None);
        kernel.say(self.pid, || format!("starts {pid}, a server of its own"));
        self.own = Some(Own {
            pid,
            stdin,
            stdout,
            lost: false,
        });
        self.session.upstream_attached();
    }

    fn hear_own(&mut self, kernel: &mut Kernel) -> bool {
        let Some(own) = self.own.as_mut().filter(|own| own.stirs(kernel)) else {
            return false;
        };
        let (pid, stdout, lost) = (own.pid, own.stdout, own.lost);
        if lost {
            if kernel.tree_is_empty(pid) {
                self.own = None;
            }
            return true;
        }
        match kernel.read(stdout) {
            Heard::Line(line) => {
                self.answered_once = true;
                match self.session.from_upstream(&line[..]) {
                    Verdict::Forward => drop(kernel.write(self.stdout, &line)),
                    Verdict::Replace(line) => drop(kernel.write(self.stdout, &line)),
                    Verdict::Drop => {}
                    Verdict::Abandon => self.lose_own(kernel),
                }
            }
            Heard::End => self.lose_own(kernel),
            Heard::Nothing => return false,
        }
        true
    }

    fn lose_own(&mut self, kernel: &mut Kernel) {
        let Some(own) = &mut self.own else {
            return;
        };
        own.lost = true;
        kernel.close_write(own.stdin);
        kernel.close_read(own.stdout);
        kernel.stop_tree(own.pid);
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        if self.session.app_is_done() {
            return self.session.give_up("the server ended", "");
        }
        self.next_start = match self.budget.spend(spare::instant(kernel.now)) {
            Some(at) if self.answered_once => Some(spare::moment(at)),
            _ => {
                self.session.give_up("the server ended too often", "");
                None
            }
        };
    }
}

impl Link {
    fn is_there(&mut self) {
        self.silent = None;
        self.asked = None;
    }
}

impl Own {
    fn stirs(&self, kernel: &Kernel) -> bool {
        match self.lost {
            true => kernel.tree_is_empty(self.pid),
            false => kernel.readable(self.stdout),
        }
    }
}

fn hello(shim: Pid, app: Pid, in_turn: bool) -> ClientHello {
    ClientHello {
        version: "0".to_owned(),
        protocol: PROTOCOL,
        pid: shim,
        identity: shim.to_string(),
        app: None,
        session: format!("session of {app}"),
        spec: Spec {
            command: vec![Text::from(&b"server"[..])],
            cwd: Text::from(&b"/"[..]),
            ladder: (2000, 2000),
            cache: true,
            in_turn,
            hibernate: None,
            replace: false,
        },
        env: Vec::new(),
        shares: Shares::default(),
        build: String::new(),
        program: Text::from(&b""[..]),
    }
}
