//! The shim: the process that the app starts. It serves MCP on stdin and stdout, and it *is* the session: it ends when its
//! app is gone, and never because its server or daemon died.
//!
//! A single thread waits for the app, the server, the process that started it, and signals. [`engine::shim::Shim`] decides;
//! this is its driver: `sleep` waits for events, `input` and `daemon` read input and pass it to the engine, and
//! `carry_out` carries out its actions.
//!
//! ```text
//! app ── stdin ──> Inbox ──> Shim::handle_app_line ────────> Outbox ── pipe ──> server
//!     <─ stdout ── Outbox <── Shim::handle_upstream_line <── Inbox <── pipe ──┘
//! ```

mod carry_out;
mod daemon;
mod daemon_conn;
mod end;
mod event_source;
mod few_descriptors;
mod input;
mod listed;
mod pipes;
mod records;
mod server;
mod sleep;
mod stderr;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_core::engine;
use kennel_core::engine::shim::{Settings, SharingSettings};
use kennel_core::hello::ClientHello;
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::io::{
    BufferSize, Event, Exit, Interest, Reactor, Source, is_readable_within, make_room,
};
use kennel_sys::limits::descriptors_are_short;
use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::starter::Starter;
use kennel_sys::stdio::{self, Output, Stdin};
use kennel_sys::tree;

use daemon::ElectionPending;
use daemon_conn::DaemonConn;
use end::{End, NoticedBy};
use event_source::EventSource;
use listed::{ListingRecord, SessionStats};
use server::Server;
pub(crate) use server::SessionSpec;
use stderr::StderrQueue;

use crate::election::{ElectionRequest, FormerKey, Policy};
use crate::lines::{self, Inbox, Outbox, buffer_pool};
use crate::listing::STOP_SERVER;
use crate::printed::Printed;
use crate::start_error;
use crate::values;

/// Maximum bytes queued for one side before no more is read for it: further input stays in the kernel's pipe.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;
/// The event sources for the exits of the watched processes.
type StarterExits = Vec<Source<Exit<Arc<ProcessRef>>>>;
/// The process that started this one, as found at the start of `main`.
pub(crate) type FoundStarter = io::Result<Starter>;

/// The settings for a daemon's client.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) key: String,
    pub(crate) former: Arc<FormerKey>,
    pub(crate) hello: Arc<ClientHello>,
    pub(crate) policy: Policy,
    pub(crate) start_timeout: Duration,
    /// Why the session shares, or does not.
    pub(crate) why: String,
}

impl Sharing {
    fn settings(&self) -> SharingSettings {
        SharingSettings {
            modern_only: !self.hello.shares.legacy,
            start_timeout: self.start_timeout,
            why: self.why.clone(),
        }
    }

    fn wanted(&self, suspect: Option<ProcessRef>) -> ElectionRequest {
        ElectionRequest {
            key: self.key.clone(),
            former: Arc::clone(&self.former),
            hello: Arc::clone(&self.hello),
            policy: self.policy,
            start_timeout: self.start_timeout,
            suspect,
            handshake: None,
        }
    }
}

/// Whether the exit of the app ends the session even if another process keeps stdin open (`KENNEL_PARENT_WATCH`).
fn parent_is_watched() -> bool {
    let means = "the end of the app ends the session";
    values::variable_switch("KENNEL_PARENT_WATCH", true, means)
}

/// Runs a session until its app is gone: with a dedicated server, or as a daemon's client.
pub(crate) fn run(spec: SessionSpec, sharing: Option<Sharing>, starter: FoundStarter) -> ExitCode {
    if let Err(why) = stdio::check_stdout() {
        let fix = "connect it to the app, which reads the responses there";
        return crate::fail(&format!("cannot write to stdout: {why}; {fix}"));
    }
    lines::set_max_line(spec.max_line);
    let starter = match starter {
        Ok(starter) if parent_is_watched() => starter,
        _ => Starter::NoProcess,
    };
    let (reactor, signals, starter_exits) =
        match few_descriptors::retry_with_higher_limit(|| set_up_events(&starter)) {
            Ok(watched) => watched,
            Err(error) if descriptors_are_short(&error) => {
                let advice = few_descriptors::advice(&error);
                crate::warn(&format!("the session runs without Kennel: {error}{advice}"));
                return start_error::become_server(&spec.command, spec.cwd.as_deref());
            }
            Err(error) => return crate::fail(&format!("cannot wait for events: {error}")),
        };
    kennel_sys::signals::ignore_file_size_signal();
    let settings = Settings {
        replay: spec.replay,
        sharing: sharing.as_ref().map(Sharing::settings),
        why_dedicated: spec.why_solo.clone(),
        hibernate: spec.hibernate,
        after_eof: spec.ladder.after_eof,
        app_is_watched: matches!(starter, Starter::Watch(_)),
    };
    let mut shim = Shim {
        engine: engine::shim::Shim::new(settings, Moment::START),
        start: Instant::now(),
        now: Moment::START,
        records: records::LazyRecords::default(),
        stdin: Source::new(
            &reactor,
            Stdin::of_this_process(),
            EventSource::Stdin.token(),
        ),
        stdin_open: true,
        stdin_buffer: BufferSize::default(),
        stdio_is_separate: !stdio::stdout_is_stdin(),
        stdout: Source::new(&reactor, Output::stdout(), EventSource::Stdout.token()),
        stderr: Source::new(&reactor, Output::stderr(), EventSource::Stderr.token()),
        from_app: Inbox::default(),
        to_app: Outbox::default(),
        read_ahead: 0,
        to_stderr: StderrQueue::default(),
        sharing,
        election: None,
        new_conn: None,
        conn: None,
        conn_count: 0,
        server: None,
        era_remembered: false,
        printed: Printed::default(),
        started_once: false,
        listed: None,
        stats: SessionStats::new(),
        spec,
        starter,
        starter_exits,
        signals,
        reactor,
        events: Vec::new(),
    };
    let result = shim.serve();
    shim.end_strays();
    match result {
        Ok(end) => {
            end.report();
            end.code()
        }
        Err(error) => crate::fail(&format!("the session ended: {error}")),
    }
}

/// Catches signals, and creates the reactor that waits for them and for the exit of the watched processes.
fn set_up_events(starter: &Starter) -> io::Result<(Reactor, Source<Signals>, StarterExits)> {
    let caught = [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::CHILD,
        STOP_SERVER,
    ];
    let signals = Signals::catch(&caught)?;
    let reactor = Reactor::new()?;
    let (token, interest) = (EventSource::Signals.token(), Interest::READ);
    let signals = Source::with(&reactor, signals, token, interest)?;
    let exits = watch_exits(starter, &reactor)?;
    Ok((reactor, signals, exits))
}

/// Adds the exits of the watched processes to the reactor, where the kernel offers an event.
fn watch_exits(starter: &Starter, reactor: &Reactor) -> io::Result<StarterExits> {
    let watched = match starter {
        Starter::Watch(watched) => &watched[..],
        Starter::Gone(_) | Starter::NoProcess => &[],
    };
    let exits = watched.iter().filter_map(|it| Exit::of(&it.process));
    exits
        .map(|exit| Source::with(reactor, exit, EventSource::Starter.token(), Interest::READ))
        .collect()
}

struct Shim {
    engine: engine::shim::Shim,
    /// The instant of [`Moment::START`].
    start: Instant,
    /// The time of the current turn of the event loop.
    now: Moment,
    spec: SessionSpec,
    records: records::LazyRecords,

    stdin: Source<Stdin>,
    stdin_open: bool,
    stdin_buffer: BufferSize,
    stdout: Source<Output>,
    /// Whether stdin and stdout are separate: then one can be closed while the other is open.
    stdio_is_separate: bool,
    stderr: Source<Output>,
    from_app: Inbox,
    to_app: Outbox,
    /// Bytes read from the daemon while the output queue for the app was full, minus the bytes that the app read since.
    /// The daemon's output is read as slowly as the app reads it: after rare large reads, the daemon would disconnect this
    /// client because it does not read.
    read_ahead: usize,
    to_stderr: StderrQueue,

    /// How to be a daemon's client.
    sharing: Option<Sharing>,
    election: Option<ElectionPending>,
    /// The connection that an election made, until the engine uses it.
    new_conn: Option<Box<DaemonConn>>,
    conn: Option<Box<DaemonConn>>,
    /// Number of connections used or closed so far: shows whether `conn` was replaced.
    conn_count: u64,
    server: Option<Server>,
    era_remembered: bool,
    /// Lines on the stdout of dedicated servers that are not messages.
    printed: Printed,
    started_once: bool,

    /// The session's record for `kennel ps`.
    listed: Option<ListingRecord>,
    stats: SessionStats,

    starter: Starter,
    /// The exits of the watched processes.
    starter_exits: StarterExits,
    signals: Source<Signals>,
    reactor: Reactor,
    /// The events of the last wait.
    events: Vec<Event>,
}

impl Shim {
    fn serve(&mut self) -> io::Result<End> {
        if let Starter::Gone(role) = self.starter {
            return Ok(End::after_app_gone(&self.stdin, NoticedBy::Starter(role)));
        }
        if self.sharing.is_some() && is_readable_within(&self.stdin, Duration::ZERO) {
            // Before the election: the app's first line can be sent together with the hello.
            self.read_app()?;
        }
        let (mut slept, mut memory_released) = (false, false);
        loop {
            self.update_record_if_due();
            self.engine.advance(self.now);
            self.carry_out();
            if let Err(error) = self.write_queued() {
                return Ok(End::from_stdout_error(&self.stdin, &self.stdout, error));
            }
            self.carry_out();
            if let Some(end) = self.poll_end() {
                match end {
                    End::Decided(engine::shim::End::Unread) => self.finish_line(),
                    End::Decided(engine::shim::End::AppDone(_)) => self.stop_server_for_good(),
                    _ => {}
                }
                return Ok(end);
            }
            if slept || self.engine.session().is_idle() {
                record_ancestors(&mut self.starter);
            }
            if !memory_released && self.engine.answered_once() && self.to_app.is_empty() {
                // The app has its first response: the memory that the start needed is unused now.
                memory_released = true;
                kennel_sys::memory::release_free_memory();
            }
            let ready = self.sleep()?;
            let now = Instant::now();
            self.now = self.moment(now);
            slept = true;
            buffer_pool::free_if_due(now);
            if let Some(end) = self.handle_events(&ready)? {
                return Ok(end);
            }
        }
    }

    /// Converts to the engine's clock.
    fn moment(&self, instant: Instant) -> Moment {
        Moment::START + instant.saturating_duration_since(self.start)
    }

    /// Converts from the engine's clock.
    fn instant(&self, moment: Moment) -> Instant {
        self.start + (moment - Moment::START)
    }

    /// Moves the engine's lines to the queues of their receivers, and writes as much as they take. `Err` if a write to the app
    /// fails.
    fn write_queued(&mut self) -> io::Result<()> {
        while let Some(line) = self.engine.poll_to_app() {
            self.to_app.push(&line);
        }
        let input_ended = self.engine.all_input_is_sent();
        if let Some(server) = self.server.as_mut().filter(|_| self.engine.has_server()) {
            while server.to.len() < MAX_QUEUED_BYTES
                && let Some(line) = self.engine.poll_to_upstream()
            {
                server.to.push_after_partial_line(&line);
            }
            server.flush();
            if input_ended && server.to.is_between_lines() {
                server.end_input(self.now);
            }
        }
        if let Some(conn) = &mut self.conn {
            while conn.to.len() < MAX_QUEUED_BYTES
                && let Some(line) = self.engine.poll_to_upstream()
            {
                conn.to.push(&line);
            }
            conn.flush();
            if input_ended && conn.to.is_empty() {
                conn.end_input();
            }
        }
        while self.engine.poll_note().is_some() {}
        let stderr = &self.stderr;
        self.to_stderr.flush(|bytes| stderr.write(bytes));

        let before = self.to_app.len();
        self.to_app.flush(|bytes| self.stdout.write(bytes))?;
        let left = self.to_app.len();
        self.read_ahead = match left < MAX_QUEUED_BYTES {
            true => 0,
            false => self.read_ahead.saturating_sub(before - left),
        };
        self.engine
            .handle_output_written(left, left >= MAX_QUEUED_BYTES, left < before, self.now);
        Ok(())
    }

    /// Ends processes left by a killed warden before this process exits: otherwise they remain until the next start.
    fn end_strays(&self) {
        let warden_is_gone = |server: &Server| !server.tree.warden().is_alive();
        if self.server.as_ref().is_some_and(warden_is_gone) {
            let records = self.records.get().map(|records| records.trees.handle());
            let _ = tree::end_strays(&[], records);
        }
    }

    /// Stops the server without the first step of the stop ladder, if the session has already waited that long after the end
    /// of its input.
    fn stop_server_for_good(&self) {
        let waited = |server: &&Server| {
            let ended = server.input_ended;
            ended.is_some_and(|at| self.now - at >= self.spec.ladder.after_eof)
        };
        if let Some(server) = self.server.as_ref().filter(waited) {
            let _ = server.tree.stop_after_eof();
        }
    }

    /// Completes the line that was partly written to the app, if the kernel can buffer the rest of it.
    fn finish_line(&mut self) {
        let rest = self.to_app.rest_of_line();
        if !rest.is_empty() && make_room(&self.stdout, rest.len()) {
            self.stdout.write_all_or_drop(rest);
        }
    }

    /// How the session ends, if it does now.
    fn poll_end(&mut self) -> Option<End> {
        let server = &self.server;
        let has_output = || server.as_ref().is_some_and(Server::has_output);
        self.engine.end(has_output, self.now).map(End::Decided)
    }
}

/// Records the ancestors of the watched processes, once, while they live. Not while the app waits for a response.
fn record_ancestors(starter: &mut Starter) {
    if let Starter::Watch(origin) = starter {
        origin.record_ancestors();
    }
}
