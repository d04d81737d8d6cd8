//! The shim: the process the app starts. It speaks MCP on stdin and stdout, and it *is* the session: it
//! ends when its app is gone, and never because something behind it died.
//!
//! One thread, one sleep on the app, the server, whoever started us, and signals. What the lines mean
//! is decided by [`Session`]; this is its hands: `sleep` is where it waits, `watch` what for, `hear` and `client`
//! what it does about what it hears.
//!
//! ```text
//! app ── stdin ──> Inbox ──> Session::from_app ──────> Outbox ── pipe ──> server
//!     <─ stdout ── Outbox <── Session::from_upstream <── Inbox <── pipe ──┘
//! ```

mod app;
pub(crate) mod budget;
mod client;
mod end;
mod few_descriptors;
mod for_now;
mod hear;
pub(crate) mod lines;
mod link;
mod listed;
mod pipes;
mod records;
mod rest;
mod server;
mod sleep;
pub(crate) mod spare;
mod stderr;
mod stopped;
mod unread;
mod watch;
pub(crate) mod width;

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_core::hello::ClientHello;
use kennel_core::session::{Ending, SERVER_RESTARTED, Session, Unsent};
use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::starter::Starter;
use kennel_sys::tree::{self, Exit};
use rustix::event::epoll::Event;

use app::Input;
use budget::RestartLimit;
use end::{End, Gone};
use for_now::ForNow;
use lines::{Inbox, Outbox};
use link::Link;
use listed::{Listed, Tally};
use rest::Hibernation;
use server::Server;
pub(crate) use server::Spec;
use sleep::Alarmed;
use stderr::StderrQueue;
use stopped::StoppedCheck;
use watch::{Watch, Watched, Who};
use width::Width;

use crate::election::{self, Elected, FormerKey, Pending, Policy, Wanted};
use crate::output::Output;
use crate::printed::Printed;
use crate::values;

/// Past this much that the other side has not taken, no more is read: the pipe is the buffer then.
const ENOUGH: usize = 1024 * 1024;
/// How many times the first time of `--stop-after` answers of a shared server are waited for once the app has closed
/// its input: 12 s by default.
const PATIENCE_AFTER_EOF: u32 = 6;
/// The same for a dedicated server, which would go on without Kennel, too: 60 s by default, as long as the official SDKs
/// wait for an answer.
const DEDICATED_PATIENCE_AFTER_EOF: u32 = 30;
/// A dedicated server that has not answered anything yet may still be installed by its launcher: it gets this much at least.
const DEDICATED_START: Duration = Duration::from_secs(300);
/// What is left of a tree that lost both its guardians gets this long after SIGTERM.
const LEFTOVER_TERM: Duration = Duration::from_secs(1);

/// Whoever started this process, as seen first thing in `main`.
pub(crate) type Origin = io::Result<Starter>;

/// What a shim needs to be a daemon's client.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) key: String,
    pub(crate) former: Arc<FormerKey>,
    pub(crate) hello: Arc<ClientHello>,
    pub(crate) policy: Policy,
    pub(crate) start_timeout: Duration,
    /// Why it shares, or does not.
    pub(crate) why: String,
}

impl Sharing {
    /// Whether only sessions of the modern era share: what this one is of, its first request says.
    fn is_modern_only(&self) -> bool {
        !self.hello.shares.legacy
    }

    fn wanted(&self, suspect: Option<ProcessRef>) -> Wanted {
        Wanted {
            key: self.key.clone(),
            former: Arc::clone(&self.former),
            hello: Arc::clone(&self.hello),
            policy: self.policy,
            start_timeout: self.start_timeout,
            suspect,
            greeting: None,
        }
    }
}

/// Whether the end of the app ends the session, though nobody closes stdin.
fn parent_is_watched() -> bool {
    let means = "the end of the app ends the session";
    values::variable_switch("KENNEL_PARENT_WATCH", true, means)
}

/// Runs a session until its app is gone: with a server of its own, or as a daemon's client.
pub(crate) fn run(spec: Spec, sharing: Option<Sharing>, origin: Origin) -> ExitCode {
    lines::set_max_line(spec.max_line);
    kennel_sys::signals::survive_file_size_limit();
    let signals = match Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]) {
        Ok(signals) => signals,
        Err(error) => return crate::fail(&format!("cannot catch signals: {error}")),
    };
    let starter = match origin {
        Ok(starter) if parent_is_watched() => starter,
        _ => Starter::Nobody,
    };
    let watch = match watch(&signals, &starter) {
        Ok(watch) => watch,
        Err(error) => return crate::fail(&format!("cannot wait for events: {error}")),
    };
    let mut shim = Shim {
        records: records::Lazily::default(),
        session: Session::replaying(spec.replay),
        stdin: watch.over(Input::stdin(), Who::Stdin),
        stdin_open: true,
        stdin_width: Width::default(),
        ends_apart: !Output::stdout_is_stdin(),
        stdout: watch.over(Output::stdout(), Who::Stdout),
        stderr: watch.over(Output::stderr(), Who::Stderr),
        from_app: Inbox::default(),
        to_app: Outbox::default(),
        to_stderr: StderrQueue::default(),
        sharing,
        why_solo: spec.why_solo.clone(),
        for_now: None,
        coming_back: None,
        hibernation: spec.hibernate.map(Hibernation::after),
        stopped: StoppedCheck::default(),
        resting: false,
        election: None,
        suspect: None,
        link: None,
        server: None,
        given_up: false,
        next_start: Some(Instant::now()),
        era_remembered: false,
        introduced: false,
        refused: None,
        answered_once: false,
        printed: Printed::default(),
        started_once: false,
        limit: RestartLimit::default(),
        upstream_answered: false,
        retry_at: None,
        answers_until: None,
        unread_until: None,
        leave_at: None,
        last_exit: None,
        listed: None,
        tally: Tally::begin(),
        spec,
        starter,
        signals,
        watch,
        alarm: None,
        happened: Vec::new(),
    };
    match shim.serve() {
        Ok(end) => {
            end.say_why();
            end.code()
        }
        Err(error) => crate::fail(&format!("the session ended: {error}")),
    }
}

/// What is waited for from the first moment to the last.
fn watch(signals: &Signals, starter: &Starter) -> io::Result<Watch> {
    let watch = Watch::new()?;
    watch.add(signals.as_fd(), Who::Signals)?;
    if let Starter::Watch(watched) = starter {
        let exits = watched
            .iter()
            .filter_map(|watched| watched.process.exit_fd());
        for exit in exits {
            watch.add(exit, Who::Starter)?;
        }
    }
    Ok(watch)
}

struct Shim {
    spec: Spec,
    records: records::Lazily,
    session: Session,

    stdin: Watched<Input>,
    stdin_open: bool,
    stdin_width: Width,
    stdout: Watched<Output>,
    /// stdin and stdout are two: an end of the one is not the other's.
    ends_apart: bool,
    stderr: Watched<Output>,
    from_app: Inbox,
    to_app: Outbox,
    to_stderr: StderrQueue,

    /// How to be a daemon's client; `None` for a server of our own.
    sharing: Option<Sharing>,
    /// Why it has a server of its own, if anybody wonders.
    why_solo: Option<String>,
    /// It has one only because there was no daemon.
    for_now: Option<ForNow>,
    /// The daemon that is there again, while our own server ends.
    coming_back: Option<Box<Link>>,
    hibernation: Option<Hibernation>,
    stopped: StoppedCheck,
    /// It has no upstream, and wants none before somebody asks for something.
    resting: bool,
    election: Option<Watched<Pending>>,
    /// The daemon that did not answer.
    suspect: Option<ProcessRef>,
    /// Boxed: it changes hands while it is heard.
    link: Option<Box<Link>>,
    server: Option<Upstream>,
    /// The daemon has given our server up until somebody asks again.
    given_up: bool,
    /// When the upstream is to be had, if it is not there.
    next_start: Option<Instant>,
    era_remembered: bool,
    /// The app has made its first request: it is known who asks, and in which era.
    introduced: bool,
    /// The server cannot be started at all: the exit code for that.
    refused: Option<u8>,
    /// Whether any server ever said anything: one that dies before that is broken, not unlucky.
    answered_once: bool,
    /// What its own servers printed on stdout that is no message.
    printed: Printed,
    started_once: bool,
    limit: RestartLimit,
    /// The present upstream, or the last one, has answered something.
    upstream_answered: bool,
    /// Before this, no request has a server started.
    retry_at: Option<Instant>,
    /// The app has closed its input: for so long its answers from a daemon are waited for.
    answers_until: Option<Instant>,
    /// The app has closed its input and does not read: for so long it is waited for.
    unread_until: Option<Instant>,
    last_exit: Option<Exit>,
    leave_at: Option<Instant>,

    /// This session in the listing.
    listed: Option<Listed>,
    tally: Tally,

    starter: Starter,
    signals: Signals,
    watch: Watch,
    /// For times that are not short, once there was one.
    alarm: Option<Alarmed>,
    happened: Vec<Event>,
}

/// The server, or what is left of one that the session has given up.
struct Upstream {
    server: Server,
    /// The session has lost it; its tree must be empty before the next one starts.
    lost: bool,
}

impl Shim {
    fn serve(&mut self) -> io::Result<End> {
        if let Starter::Gone(role) = self.starter {
            return Ok(End::without_app(&self.stdin, Gone::Starter(role)));
        }
        if self.sharing.is_some() && election::is_readable(&self.stdin) {
            // Before there is anybody to tell: so the daemon hears it together with the hello.
            self.hear_app()?;
        }
        let (mut slept, mut settled) = (false, false);
        loop {
            self.count_if_due();
            self.rest_if_due();
            self.look_for_a_daemon_if_due();
            self.arrive();
            self.start_if_due();
            self.stop_waiting_if_due();
            self.check_for_stop();
            self.pass_on();
            if let Some(end) = self.over() {
                return Ok(end);
            }
            if slept || self.session.is_idle() {
                record_ancestors(&mut self.starter);
            }
            if !settled && self.answered_once && self.to_app.is_empty() {
                // The app has its first answer: what the start needed is of no more use.
                settled = true;
                kennel_sys::memory::give_back_free();
            }
            let ready = self.sleep()?;
            slept = true;
            spare::let_go_if_due();
            if let Some(end) = self.look(&ready)? {
                return Ok(end);
            }
        }
    }

    /// Moves what the session has to say towards whom it is for.
    fn pass_on(&mut self) {
        while let Some(line) = self.session.poll_to_app() {
            self.to_app.push(&line);
        }
        if let Some(Upstream {
            server,
            lost: false,
        }) = &mut self.server
        {
            while server.to.len() < ENOUGH
                && let Some(line) = self.session.poll_to_upstream()
            {
                server.to.push_in_turn(&line);
            }
            server.flush();
            let no_more = self.session.app_is_done() && self.session.all_is_sent();
            if no_more && server.to.is_between_lines() {
                server.stdin = None;
            }
        }
        if let Some(link) = &mut self.link {
            while link.to.len() < ENOUGH
                && let Some(line) = self.session.poll_to_upstream()
            {
                link.to.push(&line);
            }
            link.flush();
            let no_more = self.session.app_is_done() && self.session.all_is_sent();
            if no_more && link.to.is_empty() {
                link.end_input();
            }
        }
        while self.session.poll_note().is_some() {}
        let stderr = &self.stderr;
        self.to_stderr.flush(|bytes| stderr.write(bytes));
    }

    /// Whether there is nothing left to do.
    fn over(&mut self) -> Option<End> {
        if let Some(code) = self.refused {
            return Some(End::Refused(code));
        }
        let waiting = self.to_app.len();
        if self.to_app.flush(|bytes| self.stdout.write(bytes)).is_err() {
            return Some(End::without_app(&self.stdin, Gone::Reader));
        }
        if waiting > 0 && self.is_left_unread(waiting) {
            return Some(End::Unread);
        }
        if !self.session.app_is_done() || !self.session.is_idle() || !self.to_app.is_empty() {
            return None;
        }
        // Everything is answered. Its server has what it has to end by itself: for its last words, and because
        // its exit code is ours.
        let leave_at = *self
            .leave_at
            .get_or_insert_with(|| Instant::now() + self.spec.ladder.after_eof);
        let exited = match &self.server {
            None => true,
            // What it said last is read before.
            Some(upstream) => self.last_exit.is_some() && !upstream.server.has_said_more(),
        };
        (exited || Instant::now() >= leave_at).then_some(End::AppIsDone(self.last_exit))
    }

    /// The app has closed its input. A server need not end by that, so answers are waited for some times as long as it may
    /// take to end, counted from the last one. A server that has not answered yet may still be starting.
    fn stop_waiting_if_due(&mut self) {
        let after_eof = self.spec.ladder.after_eof;
        let (patience, start) = match &self.sharing {
            Some(sharing) => (after_eof * PATIENCE_AFTER_EOF, sharing.start_timeout),
            None => (after_eof * DEDICATED_PATIENCE_AFTER_EOF, DEDICATED_START),
        };
        let patience = match self.answered_once {
            true => patience,
            false => patience.max(start),
        };
        if !self.session.app_is_done() || self.session.is_idle() {
            return;
        }
        let now = Instant::now();
        let until = *self.answers_until.get_or_insert(now + patience);
        if now >= until {
            let why = "the app closed its input, and the server did not answer in time";
            self.link = None;
            self.election = None;
            self.next_start = None;
            self.session.give_up(why, "");
        }
    }

    fn start_if_due(&mut self) {
        if self.link.is_some() || self.coming_back.is_some() {
            self.next_start = None;
            return;
        }
        let due = self.next_start.is_some_and(|at| Instant::now() >= at);
        if !due || self.server.is_some() {
            return;
        }
        self.next_start = None;
        if let Some(sharing) = &self.sharing {
            // A daemon that this session may not share would be started for nobody.
            if sharing.is_modern_only() && !self.introduced {
                return;
            }
            return self.elect();
        }
        self.start_own();
    }

    /// Looks for a daemon. With a suspect, the one it has may turn out to be the one.
    fn elect(&mut self) {
        if let Some(sharing) = &self.sharing {
            let mut wanted = sharing.wanted(self.suspect.take());
            wanted.greeting = self.session.greeting().map(<[u8]>::to_vec);
            self.begin_election(wanted);
        }
    }

    fn begin_election(&mut self, wanted: Wanted) {
        // While a thread elects: the process that started us may exit soon. Where a daemon answers at once, the app is
        // answered first.
        let starter = &mut self.starter;
        match election::elect(wanted, || record_ancestors(starter)) {
            Ok(Elected::AtOnce(outcome)) => self.elected(outcome),
            Ok(Elected::Pending(pending)) => {
                self.election = Some(self.watch.over(pending, Who::Election));
            }
            Err(error) => self.go_solo(&format!("no thread for an election: {error}")),
        }
    }

    /// A subreaper only now: a daemon that an election starts must not become our child.
    fn prepare_for_a_tree(&self) -> io::Result<()> {
        if let Some(records) = self.records.get() {
            // Only where an earlier session was killed together with its warden.
            let _ = tree::end_leftovers(records.trees.as_fd(), LEFTOVER_TERM);
        }
        tree::become_subreaper()
    }

    fn start_own(&mut self) {
        record_ancestors(&mut self.starter);
        if !self.started_once
            && let Err(error) = self.prepare_for_a_tree()
        {
            return self
                .session
                .give_up(&format!("the server cannot be started: {error}"), "");
        }
        let records = self.records.get().map(|records| records.trees.as_fd());
        let start = || Server::start(&self.spec, records, &self.watch);
        match few_descriptors::with_more(start) {
            Ok(server) => {
                self.last_exit = None;
                self.server = Some(Upstream {
                    server,
                    lost: false,
                });
                self.upstream_answered = false;
                self.session.upstream_attached();
            }
            Err(error) => {
                let advice = few_descriptors::advice(&error);
                let why = format!("the server cannot be started: {error}{advice}");
                self.session.give_up(&why, "");
            }
        }
    }

    /// The session has lost its server: it hears so as soon as that one has let go of what it was told; the next one starts
    /// when nothing is left of it.
    fn lose(&mut self) {
        let Some(upstream) = &mut self.server else {
            return;
        };
        if upstream.lost {
            return;
        }
        upstream.lost = true;
        upstream.server.hang_up();
        // Its tree may live on behind a closed stdout; whoever holds its store must be gone first.
        let _ = upstream.server.tree.stop();
        let unsent = Unsent::LastBytes(upstream.server.unheard());
        let exit = self.last_exit.or_else(|| upstream.server.await_exit());
        // Only now: its stdout may have ended before its last words on stderr were read.
        let detail = self.last_words();
        self.session.upstream_ended(exit.map(ending));
        self.session.upstream_lost(SERVER_RESTARTED, unsent);
        if self.session.app_is_done() {
            return self.session.give_up("the server ended", &detail);
        }
        let now = Instant::now();
        let next_start = self.limit.lost(now, self.upstream_answered);
        self.next_start = match next_start {
            Some(at) if self.answered_once => Some(at),
            _ => {
                let why = match self.answered_once {
                    true => "the server ended too often before it answered",
                    false => "the server ended before it answered",
                };
                self.retry_at = self.limit.retry_at();
                self.session.retry_after(millis_until(self.retry_at, now));
                self.session.give_up(why, &detail);
                None
            }
        };
    }
}

/// While they live, and once; not while the app waits for what could be done first.
fn record_ancestors(starter: &mut Starter) {
    if let Starter::Watch(origin) = starter {
        origin.record_ancestors();
    }
}

/// How many milliseconds it is until then, if it is in the future.
fn millis_until(moment: Option<Instant>, now: Instant) -> Option<u64> {
    let wait = moment?.checked_duration_since(now)?;
    // Rounded up: earlier is too early.
    u64::try_from(wait.as_micros().div_ceil(1000))
        .ok()
        .filter(|wait| *wait > 0)
}

/// How a server ended, for the errors of the session.
pub(crate) fn ending(exit: Exit) -> Ending {
    match exit {
        Exit::Code(code) => Ending::Code(code),
        Exit::Signal(signal) => Ending::Signal(signal),
    }
}
