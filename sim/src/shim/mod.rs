//! A shim: a real [`Session`], with the way to its upstream that `kennel run` has.

mod client;
mod own;

use std::time::Duration;

use kennel_core::election::Watch;
use kennel_core::hello::{ClientHello, PROTOCOL, Shares, Spec, Text};
use kennel_core::message::{Key, Message, Outcome};
use kennel_core::session::{Session, Verdict};
use kennel_core::time::Moment;

use crate::budget::RestartLimit;
use crate::elector::Elector;
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
    limit: RestartLimit,
    /// The present upstream, or the last, has answered something.
    upstream_answered: bool,
    /// Before this, no request has a server started.
    retry_at: Option<Moment>,
}

/// A connection to a daemon.
struct Link {
    end: End,
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
            limit: RestartLimit::default(),
            upstream_answered: false,
            retry_at: None,
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
            let is_too_early = self.retry_at.is_some_and(|at| kernel.now < at);
            if !is_too_early || !self.is_left_alone() {
                self.ask_again(kernel);
                self.expect_a_server(kernel);
            }
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

    fn expect_a_server(&mut self, kernel: &Kernel) {
        if self.is_left_alone() && !self.session.app_is_done() {
            let at = self.limit.next_attempt(spare::instant(kernel.now));
            self.session.upstream_expected();
            self.next_start = Some(spare::moment(at));
        }
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
            detached: None,
        },
        env: Vec::new(),
        shares: Shares::default(),
        build: String::new(),
        program: Text::from(&b""[..]),
        pipes: false,
        key: None,
    }
}
