//! The shim: the process the app starts. It speaks MCP on stdin and stdout, and it *is* the session: it
//! ends when its app is gone, and never because something behind it died.
//!
//! One thread, one `poll` over the app, the server, whoever started us, and signals. What the lines mean
//! is decided by [`Session`]; this is its hands.
//!
//! ```text
//! app ── stdin ──> Inbox ──> Session::from_app ──────> Outbox ── pipe ──> server
//!     <─ stdout ── Outbox <── Session::from_upstream <── Inbox <── pipe ──┘
//! ```

mod app;
pub(crate) mod budget;
pub(crate) mod lines;
mod link;
mod server;

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Control};
use kennel_core::session::{SERVER_RESTARTED, Session, Verdict};
use kennel_sys::Signal;
use kennel_sys::process::{ProcessRef, SWEEP};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::signals::Signals;
use kennel_sys::starter::{self, Starter};
use kennel_sys::tree::{self, Exit, Report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use app::{Input, Output};
use budget::Budget;
use lines::{Inbox, Outbox};
use link::Link;
use server::Server;
pub(crate) use server::Spec;

use crate::election::{self, Outcome, Pending, Policy, Wanted};
use crate::listing::SoloRecord;

/// How much is read at once.
const CHUNK: usize = 64 * 1024;
/// Past this much that the other side has not taken, no more is read: the pipe is the buffer then.
const ENOUGH: usize = 1024 * 1024;
/// What of the server's stderr may wait for an app that does not read it; more is dropped.
const STDERR_WAITING: usize = 256 * 1024;
/// After the app's EOF, with nothing in flight, the server has this long for its exit code to be ours.
const FAREWELL: Duration = Duration::from_millis(80);
/// What is left of a tree that lost both its guardians gets this long after SIGTERM.
const LEFTOVER_TERM: Duration = Duration::from_secs(1);

/// Whoever started this process, as seen first thing in `main`.
pub(crate) type Origin = io::Result<Starter>;

/// What a shim needs to be a daemon's client.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) key: String,
    pub(crate) hello: ClientHello,
    pub(crate) policy: Policy,
    pub(crate) start_timeout: Duration,
}

/// Runs a session until its app is gone: with a server of its own, or as a daemon's client.
pub(crate) fn run(spec: Spec, sharing: Option<Sharing>, origin: Origin) -> ExitCode {
    let signals = match Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]) {
        Ok(signals) => signals,
        Err(error) => return crate::fail(&format!("cannot catch signals: {error}")),
    };
    let starter = match origin {
        Ok(starter)
            if starter::watch_enabled(std::env::var_os("KENNEL_PARENT_WATCH").as_deref()) =>
        {
            starter
        }
        _ => Starter::Nobody,
    };
    let mut shim = Shim {
        records: Records::open(),
        session: Session::new(),
        stdin: Input,
        stdin_open: true,
        stdout: Output::stdout(),
        stderr: Output::stderr(),
        from_app: Inbox::default(),
        to_app: Outbox::default(),
        to_stderr: Outbox::default(),
        sharing,
        election: None,
        suspect: None,
        link: None,
        server: None,
        given_up: false,
        next_start: Some(Instant::now()),
        answered_once: false,
        started_once: false,
        budget: Budget::default(),
        leave_at: None,
        last_exit: None,
        listed: None,
        spec,
        starter,
        signals,
    };
    match shim.serve() {
        Ok(end) => end.code(),
        Err(error) => crate::fail(&format!("the session ended: {error}")),
    }
}

struct Shim {
    spec: Spec,
    records: Option<Records>,
    session: Session,

    stdin: Input,
    stdin_open: bool,
    stdout: Output,
    stderr: Output,
    from_app: Inbox,
    to_app: Outbox,
    to_stderr: Outbox,

    /// How to be a daemon's client; `None` for a server of our own.
    sharing: Option<Sharing>,
    election: Option<Pending>,
    /// The daemon that did not answer.
    suspect: Option<ProcessRef>,
    link: Option<Link>,
    server: Option<Upstream>,
    /// The daemon has given our server up until somebody asks again.
    given_up: bool,
    /// When the upstream is to be had, if it is not there.
    next_start: Option<Instant>,
    /// Whether any server ever said anything: one that dies before that is broken, not unlucky.
    answered_once: bool,
    started_once: bool,
    budget: Budget,
    last_exit: Option<Exit>,
    leave_at: Option<Instant>,

    /// This session in the listing.
    listed: Option<SoloRecord>,

    starter: Starter,
    signals: Signals,
}

/// The server, or what is left of one that the session has given up.
struct Upstream {
    server: Server,
    /// The session has lost it; its tree must be empty before the next one starts.
    lost: bool,
}

/// How the shim ends.
enum End {
    /// The app has closed its side, and everything was answered.
    AppIsDone(Option<Exit>),
    /// The app is gone.
    AppIsGone,
    Signal(Signal),
    /// The server cannot be started at all.
    Refused(u8),
}

impl End {
    fn code(self) -> ExitCode {
        ExitCode::from(match self {
            End::AppIsDone(None | Some(Exit::Code(0))) | End::AppIsGone => 0,
            End::AppIsDone(Some(Exit::Code(code))) => u8::try_from(code).unwrap_or(1),
            End::AppIsDone(Some(Exit::Signal(signal))) => 128u8.wrapping_add(signal as u8),
            End::Signal(signal) => 128u8.wrapping_add(signal.as_raw() as u8),
            End::Refused(code) => code,
        })
    }
}

impl Shim {
    fn serve(&mut self) -> io::Result<End> {
        if let Starter::Gone(_) = self.starter {
            return Ok(End::AppIsGone);
        }
        loop {
            self.start_if_due();
            self.pass_on();
            if let Some(end) = self.over() {
                return Ok(end);
            }
            let ready = self.sleep()?;
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
                server.to.push(&line);
            }
            server.flush();
            let no_more = self.session.app_is_done() && self.session.all_is_sent();
            if no_more && server.to.is_empty() {
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
        let _ = self.to_stderr.flush(|bytes| self.stderr.write(bytes));
    }

    /// Whether there is nothing left to do.
    fn over(&mut self) -> Option<End> {
        if self.to_app.flush(|bytes| self.stdout.write(bytes)).is_err() {
            return Some(End::AppIsGone);
        }
        if !self.session.app_is_done() || !self.session.is_idle() || !self.to_app.is_empty() {
            return None;
        }
        // Everything is answered. Its server's exit code is ours if it comes soon.
        let leave_at = *self
            .leave_at
            .get_or_insert_with(|| Instant::now() + FAREWELL);
        let exited = self.last_exit.is_some() || self.server.is_none();
        (exited || Instant::now() >= leave_at).then_some(End::AppIsDone(self.last_exit))
    }

    fn start_if_due(&mut self) {
        let due = self.next_start.is_some_and(|at| Instant::now() >= at);
        if !due || self.server.is_some() {
            return;
        }
        self.next_start = None;
        if let Some(sharing) = &self.sharing {
            let wanted = Wanted {
                key: sharing.key.clone(),
                hello: sharing.hello.clone(),
                policy: sharing.policy,
                start_timeout: sharing.start_timeout,
                suspect: self.suspect.take(),
            };
            match election::elect(wanted) {
                Ok(pending) => self.election = Some(pending),
                Err(error) => self.go_solo(&format!("no thread for an election: {error}")),
            }
            return;
        }
        self.start_own();
    }

    /// A subreaper only now: a daemon that an election starts must not become our child.
    fn prepare_for_a_tree(&self) -> io::Result<()> {
        if let Some(records) = &self.records {
            // Only where an earlier session was killed together with its warden.
            let _ = tree::end_leftovers(records.trees.as_fd(), LEFTOVER_TERM);
        }
        tree::become_subreaper()
    }

    /// Never worse than no Kennel: where no daemon can be had, the session has a server of its own.
    fn go_solo(&mut self, why: &str) {
        crate::warn(&format!(
            "no daemon, so this session has a server of its own: {why}"
        ));
        self.sharing = None;
        self.start_own();
    }

    fn start_own(&mut self) {
        if !self.started_once
            && let Err(error) = self.prepare_for_a_tree()
        {
            return self
                .session
                .give_up(&format!("the server cannot be started: {error}"), "");
        }
        let records = self.records.as_ref().map(|records| records.trees.as_fd());
        match Server::start(&self.spec, records) {
            Ok(server) => {
                self.last_exit = None;
                self.server = Some(Upstream {
                    server,
                    lost: false,
                });
                self.session.upstream_attached();
            }
            Err(error) => {
                let why = format!("the server cannot be started: {error}");
                self.session.give_up(&why, "");
            }
        }
    }

    /// The session has lost its server: it hears so at once; the next one starts when nothing is left of it.
    fn lose(&mut self) {
        let Some(upstream) = &mut self.server else {
            return;
        };
        if upstream.lost {
            return;
        }
        upstream.lost = true;
        upstream.server.stdin = None;
        // Its tree may live on behind a closed stdout; whoever holds its store must be gone first.
        let _ = upstream.server.tree.stop();
        let detail = upstream.server.said.text();
        self.session.upstream_lost(SERVER_RESTARTED);
        if self.session.app_is_done() {
            return self.session.give_up("the server ended", &detail);
        }
        self.next_start = match self.budget.spend(Instant::now()) {
            Some(at) if self.answered_once => Some(at),
            _ => {
                let why = match self.answered_once {
                    true => "the server ended too often",
                    false => "the server ended before it answered",
                };
                self.session.give_up(why, &detail);
                None
            }
        };
    }
}

/// Whether a connection to a daemon goes on; of two answers the lesser counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stays {
    /// A person stopped the server: it starts again only when somebody asks for something.
    NotUntilNeeded,
    No,
    Yes,
}

/// What `poll` found, by who asked for it.
#[derive(Default)]
struct Ready {
    signalled: bool,
    /// Somebody who is watched may be gone.
    starter_stirs: bool,
    app_speaks: bool,
    app_is_deaf: bool,
    server_speaks: bool,
    server_complains: bool,
    warden_reports: bool,
    daemon_speaks: bool,
    elected: bool,
}

impl Shim {
    fn sleep(&self) -> io::Result<Ready> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(8);
        let mut place = |fd, events| {
            fds.push(PollFd::from_borrowed_fd(fd, events));
            fds.len() - 1
        };
        let signals = place(self.signals.as_fd(), PollFlags::IN);
        // Even with nothing to write: an error says that nobody reads any more.
        let write = |waiting: &Outbox| {
            if waiting.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            }
        };
        let stdout = place(self.stdout.as_fd(), write(&self.to_app) | PollFlags::RDHUP);
        let mut stdin = None;
        let (mut from_server, mut errors, mut reports) = (None, None, None);
        let mut upstream_is_slow = false;
        if let Some(Upstream { server, .. }) = &self.server {
            if self.to_app.len() < ENOUGH {
                from_server = server
                    .stdout
                    .as_ref()
                    .map(|fd| place(fd.as_fd(), PollFlags::IN));
            }
            errors = server
                .stderr
                .as_ref()
                .map(|fd| place(fd.as_fd(), PollFlags::IN));
            reports = Some(place(server.as_fd(), PollFlags::IN));
            upstream_is_slow = server.to.len() >= ENOUGH;
            if let (Some(fd), false) = (&server.stdin, server.to.is_empty()) {
                place(fd.as_fd(), PollFlags::OUT);
            }
        }
        let mut from_daemon = None;
        if let Some(link) = &self.link {
            let mut wanted = write(&link.to);
            if self.to_app.len() < ENOUGH {
                wanted |= PollFlags::IN;
            }
            from_daemon = Some(place(link.as_fd(), wanted));
            upstream_is_slow |= link.to.len() >= ENOUGH;
        }
        let elected = self
            .election
            .as_ref()
            .map(|pending| place(pending.as_fd(), PollFlags::IN));
        if self.stdin_open && !upstream_is_slow && !self.session.queue_is_full() {
            stdin = Some(place(self.stdin.as_fd(), PollFlags::IN));
        }
        if !self.to_stderr.is_empty() {
            place(self.stderr.as_fd(), PollFlags::OUT);
        }
        let exits: Vec<Option<usize>> = self
            .watched()
            .map(|process| Some(place(process.exit_fd()?, PollFlags::IN)))
            .collect();
        let timeout = self
            .timeout()
            .and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let happened =
            |index: Option<usize>| index.is_some_and(|index| !fds[index].revents().is_empty());
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::RDHUP | PollFlags::NVAL;
        Ok(Ready {
            signalled: happened(Some(signals)),
            // Without an event for its end, it is looked at whenever we wake.
            starter_stirs: exits.iter().any(|&exit| exit.is_none() || happened(exit)),
            app_speaks: happened(stdin),
            app_is_deaf: fds[stdout].revents().intersects(gone),
            server_speaks: happened(from_server),
            server_complains: happened(errors),
            warden_reports: happened(reports),
            daemon_speaks: happened(from_daemon),
            elected: happened(elected),
        })
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let no_events = self.watched().any(|process| process.exit_fd().is_none());
        let next_start = self.next_start.filter(|_| self.server.is_none());
        let moments = [next_start, self.leave_at].into_iter().flatten();
        let moments = moments.map(|at| at.saturating_duration_since(now));
        let look = self
            .link
            .as_ref()
            .and_then(|link| link.next_look(self.session.in_flight() > 0));
        let soonest = moments.chain(look).min();
        match (soonest, no_events) {
            (Some(soonest), true) => Some(soonest.min(SWEEP)),
            (None, true) => Some(SWEEP),
            (soonest, false) => soonest,
        }
    }

    fn watched(&self) -> impl Iterator<Item = &ProcessRef> {
        let watched = match &self.starter {
            Starter::Watch(watched) => watched.as_slice(),
            Starter::Gone(_) | Starter::Nobody => &[],
        };
        watched.iter().map(|watched| &watched.process)
    }

    fn look(&mut self, ready: &Ready) -> io::Result<Option<End>> {
        if ready.signalled
            && let Some(signal) = self.signals.next()
        {
            return Ok(Some(End::Signal(signal)));
        }
        let starter_gone = ready.starter_stirs && !self.watched().all(ProcessRef::is_alive);
        if starter_gone || ready.app_is_deaf {
            return Ok(Some(End::AppIsGone));
        }
        if ready.server_complains {
            self.hear_complaints();
        }
        if ready.server_speaks {
            self.hear_server();
        }
        if ready.warden_reports
            && let Some(end) = self.hear_warden()
        {
            return Ok(Some(end));
        }
        if ready.elected {
            self.hear_election();
        }
        if ready.daemon_speaks {
            self.hear_daemon();
        }
        if let Some(link) = &mut self.link
            && let Err(suspect) = link.look_after(self.session.in_flight() > 0)
        {
            self.suspect = suspect;
            self.lose_daemon();
        }
        if ready.app_speaks {
            self.hear_app()?;
        }
        Ok(None)
    }

    fn hear_election(&mut self) {
        let Some(outcome) = self.election.as_ref().and_then(Pending::take) else {
            return;
        };
        self.election = None;
        match outcome {
            Outcome::Connected { socket, daemon, .. } => {
                self.link = Some(Link::new(socket, daemon));
                self.session.upstream_attached();
            }
            Outcome::Solo { why } => self.go_solo(&why),
        }
    }

    fn hear_daemon(&mut self) {
        let Some(mut link) = self.link.take() else {
            return;
        };
        let mut stays = match link.read() {
            true => Stays::Yes,
            false => Stays::No,
        };
        while let Some(line) = link.from.next_line() {
            let verdict = match Control::parse(line) {
                None => self.session.from_upstream(line),
                Some(word) => {
                    stays = stays.min(self.obey(word));
                    continue;
                }
            };
            match verdict {
                Verdict::Forward => self.to_app.push(line),
                Verdict::Replace(line) => self.to_app.push(&line),
                Verdict::Drop => {}
                Verdict::Abandon => stays = Stays::No,
            }
        }
        self.link = Some(link);
        if stays != Stays::Yes {
            self.lose_daemon();
        }
        if stays == Stays::NotUntilNeeded && !self.session.app_is_done() {
            self.next_start = None;
        }
    }

    /// Does what a word of Kennel's says; tells whether the connection goes on.
    fn obey(&mut self, word: Control) -> Stays {
        match word {
            Control::Stderr(line) => {
                if self.to_stderr.len() + line.len() < STDERR_WAITING {
                    self.to_stderr.push(line.as_bytes());
                }
            }
            Control::Lost(lost) => {
                self.session.upstream_lost(&lost.reason);
                if lost.final_word || self.session.app_is_done() {
                    self.given_up = true;
                    self.session
                        .give_up("the server ended, and does not start again", &lost.detail);
                } else {
                    self.session.upstream_attached();
                }
            }
            Control::Going | Control::Moved => return Stays::No,
            Control::Stopped => return Stays::NotUntilNeeded,
            Control::Ping | Control::Pong | Control::Unknown => {}
        }
        Stays::Yes
    }

    /// The daemon is gone, or does not answer: elect anew, as the budget allows. Without anything to ask,
    /// that has time until there is.
    fn lose_daemon(&mut self) {
        self.link = None;
        self.given_up = false;
        self.session.upstream_lost(SERVER_RESTARTED);
        if self.session.app_is_done() {
            return self.session.give_up("the daemon ended", "");
        }
        match self.budget.spend(Instant::now()) {
            Some(at) => self.next_start = Some(at),
            None => self.session.give_up("daemons ended too often", ""),
        }
    }

    fn hear_app(&mut self) -> io::Result<()> {
        let stdin = &self.stdin;
        match self.from_app.fill(CHUNK, |room| stdin.read(room)) {
            Ok(0) => {
                self.stdin_open = false;
                if let Some(line) = self.from_app.rest() {
                    self.take_from_app(&line);
                }
                self.session.app_eof();
            }
            Ok(_) => {
                let mut inbox = std::mem::take(&mut self.from_app);
                while let Some(line) = inbox.next_line() {
                    self.take_from_app(line);
                }
                self.from_app = inbox;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Lesson 20: an error that is not handled comes again, and again.
            Err(error) => return Err(io::Error::new(error.kind(), format!("stdin: {error}"))),
        }
        Ok(())
    }

    fn take_from_app(&mut self, line: &[u8]) {
        if self.given_up && self.link.is_some() {
            // The daemon tries again with the next line it hears.
            self.given_up = false;
            self.session.upstream_attached();
        }
        let upstream = self.server.is_some() || self.link.is_some() || self.election.is_some();
        let nobody_comes = !upstream && self.next_start.is_none();
        if nobody_comes && !self.session.app_is_done() {
            // A later request tries again, as the budget allows.
            if let Some(at) = self.budget.spend(Instant::now()) {
                self.session.upstream_expected();
                self.next_start = Some(at);
            }
        }
        let verdict = self.session.from_app(line);
        let to = match (&mut self.link, &mut self.server) {
            (Some(link), _) => &mut link.to,
            (
                None,
                Some(Upstream {
                    server,
                    lost: false,
                }),
            ) => &mut server.to,
            (None, _) => return,
        };
        match verdict {
            Verdict::Forward => to.push(line),
            Verdict::Replace(line) => to.push(&line),
            Verdict::Drop | Verdict::Abandon => {}
        }
    }

    fn hear_server(&mut self) {
        let Some(Upstream { server, lost }) = &mut self.server else {
            return;
        };
        let open = server.read();
        let mut abandoned = false;
        while let Some(line) = server.from.next_line() {
            if *lost {
                continue;
            }
            self.answered_once = true;
            match self.session.from_upstream(line) {
                Verdict::Forward => self.to_app.push(line),
                Verdict::Replace(line) => self.to_app.push(&line),
                Verdict::Drop => {}
                Verdict::Abandon => abandoned = true,
            }
        }
        if !open || abandoned {
            self.lose();
        }
    }

    fn hear_complaints(&mut self) {
        let Some(Upstream { server, .. }) = &mut self.server else {
            return;
        };
        let to_stderr = &mut self.to_stderr;
        server.read_errors(|line| {
            if to_stderr.len() + line.len() < STDERR_WAITING {
                to_stderr.push(line);
            }
        });
    }

    fn hear_warden(&mut self) -> Option<End> {
        let Upstream { server, .. } = self.server.as_mut()?;
        match server.report() {
            Some(Report::Started { pid, .. }) => {
                self.started_once = true;
                self.write_down(pid);
            }
            Some(Report::Exited(exit)) => self.last_exit = Some(exit),
            Some(Report::Refused(errno)) if !self.started_once => {
                return Some(End::Refused(self.say_refused(errno)));
            }
            Some(Report::Refused(_) | Report::Empty) => self.server_is_gone(),
            // The warden was killed: its child died with it, and the rest is ours to end.
            None => {
                let _ = server.tree.wait();
                let _ = tree::end_strays(&[]);
                self.server_is_gone();
            }
        }
        None
    }

    /// Nothing is left of its tree. What it said last may still be in its pipes.
    fn server_is_gone(&mut self) {
        while let Some(Upstream { server, .. }) = &self.server
            && server.stdout.is_some()
        {
            self.hear_server();
        }
        self.hear_complaints();
        self.lose();
        if let Some(mut upstream) = self.server.take() {
            let _ = upstream.server.tree.wait();
        }
    }

    /// For `kennel ps`. Nothing else depends on it.
    fn write_down(&mut self, server: u32) {
        let Some(records) = &self.records else {
            return;
        };
        let entry = self.spec.entry(server);
        self.listed = entry.and_then(|entry| SoloRecord::keep(&records.user, &entry).ok());
    }

    fn say_refused(&self, errno: i32) -> u8 {
        let program = self.spec.command[0].display();
        let (code, words) = match io::Error::from_raw_os_error(errno).kind() {
            io::ErrorKind::NotFound => (127, "command not found".to_owned()),
            io::ErrorKind::PermissionDenied => (126, "permission denied".to_owned()),
            _ => (126, io::Error::from_raw_os_error(errno).to_string()),
        };
        crate::fail(&format!("{program}: {words}"));
        code
    }
}

/// The place where trees are on record.
struct Records {
    user: RuntimeDir,
    trees: RuntimeDir,
    _hold: kennel_sys::runtime_dir::Hold,
}

impl Records {
    /// `None`, with one line of warning, where no runtime directory can be had.
    fn open() -> Option<Records> {
        let opened = RuntimeDir::of_user().and_then(|dir| {
            let trees = dir.subdir("trees")?;
            let _hold = dir.hold()?;
            Ok(Records {
                user: dir,
                trees,
                _hold,
            })
        });
        opened
            .map_err(|error| crate::warn(&format!("without a runtime directory: {error}")))
            .ok()
    }
}
