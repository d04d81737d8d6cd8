//! The process of a server slot, under its warden: from its start until its tree is empty.
//!
//! | stage | waits for | then |
//! |---|---|---|
//! | waiting | the engine's action | the start, or the end |
//! | running | stdin, stdout, stderr, reports of the warden, the engine's timer | |
//! | awaiting exit | the first process's exit status, for 200 ms after the end of stdout | the loss of the server; running, to its end |
//! | reaping | the warden's exit, after its last report | the rest of stdout, then the end |
//! | over | | |

use std::ffi::OsString;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::StartFailure;
use kennel_core::hello::{ClientHello, Text};
use kennel_sys::events::is_readable;
use kennel_sys::io::reader_is_gone_within;
use kennel_sys::text::os_string;
use kennel_sys::tree::{self, Detached, Ladder, Report};

use super::daemon_state::DaemonState;
use super::origin::Origin;
use super::process::ServerProcess;
use super::run_queue::Runnable;
use super::server_io::{ServerIo, end_of};
use super::start;
use super::timers::Timer;
use crate::sources::Sources;
use crate::start_error::{self, Attempt, is_shortage};

/// How long to wait for the exit status of a first process after its stdout has ended.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);
/// How often a warden is checked whose exit is not reported.
const WARDEN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Error numbers for an invalid command and for missing descriptors.
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;

/// How far the process of a server slot has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ServerStage {
    /// It is not started yet.
    #[default]
    Waiting,
    Running,
    /// Stdout has ended: waits for the first process's exit status.
    AwaitingExit,
    /// The warden reports no more.
    Reaping,
    Finished,
}

impl ServerIo {
    /// Does the slot's queued work: starts the server, takes lines that were read, acts on changes.
    pub(super) fn run(&self, daemon: &DaemonState) {
        match self.stage.get() {
            ServerStage::Waiting => self.start_if_told(daemon),
            ServerStage::Running | ServerStage::AwaitingExit => self.continue_reading(daemon),
            // The last lines of an ended server.
            ServerStage::Reaping => self.forward_lines(daemon),
            ServerStage::Finished => {}
        }
    }

    /// Handles the engine's timer.
    pub(super) fn on_timer(&self, daemon: &DaemonState) {
        if self.uses_engine_timer() {
            let now = daemon.now();
            daemon.tell_engine(|engine| engine.advance_slot(self.slot, now));
            self.set_engine_timer(daemon);
        }
    }

    /// Sets the timer to the engine's next timeout for this slot.
    fn set_engine_timer(&self, daemon: &DaemonState) {
        let now = daemon.now();
        let timeout = daemon.engine.borrow().slot_timeout(self.slot, now);
        self.timeout.set(timeout);
        let at = timeout.map(|at| daemon.instant(at));
        daemon.set_timer(Timer::Slot(self.slot), at);
    }

    /// Starts the server if the engine said so. The server of a snapshot runs already.
    fn start_if_told(&self, daemon: &DaemonState) {
        let restored = self.running.borrow().clone();
        if let Some(running) = restored {
            return self.serve_with(daemon, &running);
        }
        if !self.is_to_start.get() && !self.is_closing.get() {
            return self.set_engine_timer(daemon);
        }
        self.refuse_confined(daemon);
        if self.is_closing.get() {
            return self.ended(daemon);
        }
        match self.start_process(daemon) {
            Ok(running) => self.serve_with(daemon, &running),
            // An error without a number is about what is to be started.
            Err(error) => {
                self.start_failed(daemon, error.raw_os_error().unwrap_or(EINVAL));
                self.ended(daemon);
            }
        }
    }

    fn start_process(&self, daemon: &DaemonState) -> io::Result<Rc<ServerProcess>> {
        let records = daemon.key_dir.trees().ok();
        let hello = &self.hello;
        let command: Vec<OsString> = hello.spec.command.iter().map(to_os_string).collect();
        let variable = |name: &str| {
            let mut all = hello.env.iter();
            let found = all.rfind(|(its, _)| its.as_bytes() == name.as_bytes());
            found.map(|(_, value)| to_os_string(value))
        };
        let cwd = std::path::PathBuf::from(to_os_string(&hello.spec.cwd));
        // Before the start, so that a change meanwhile is found later.
        *self.sources.borrow_mut() = Sources::of(&command, &cwd, variable);
        let running = ServerProcess::start(&daemon.reactor, self.slot, hello, records.as_ref())?;
        let running = Rc::new(running);
        *self.running.borrow_mut() = Some(Rc::clone(&running));
        self.warden.set(Some(running.tree.warden().pid()));
        self.since.set(start::now());
        daemon.engine.borrow_mut().handle_server_started(self.slot);
        daemon.state_changed();
        Ok(running)
    }

    fn serve_with(&self, daemon: &DaemonState, running: &ServerProcess) {
        if running.set_interest().is_err() {
            // Dropping the tree stops it, without a report of the end.
            self.running.take();
            self.start_failed(daemon, EMFILE);
            return self.ended(daemon);
        }
        self.stage.set(ServerStage::Running);
        self.set_engine_timer(daemon);
        // Lines of a snapshot, and lines that waited for the start.
        self.read_stderr(daemon);
        self.on_writable(daemon);
        self.forward_lines(daemon);
    }

    /// Goes on with lines that were read, then acts on changes.
    fn continue_reading(&self, daemon: &DaemonState) {
        if self.has_lines.get() || self.is_throttled.get() {
            self.forward_lines(daemon);
        }
        if self.has_stderr_lines.get() {
            self.read_stderr(daemon);
        }
        self.advance(daemon);
    }

    /// Acts on the state of the server: declares it lost, or stops it.
    pub(super) fn advance(&self, daemon: &DaemonState) {
        let running = self.running.borrow().clone();
        let Some(running) = running.filter(|_| self.stage.get() == ServerStage::Running) else {
            return;
        };
        let status = running.status.get();
        if self.is_lost.get() && !status.stdout_closed && !running.is_drained() {
            return self.drain(daemon);
        }
        // A server that could not be started has no stdout either: not before it is known to have run.
        if status.stdout_closed && status.started && !self.is_closing.get() {
            // What it wrote last is in the pipe by now.
            self.read_last_stderr(daemon);
            if self.exit.get().is_none() && !status.announced {
                self.stage.set(ServerStage::AwaitingExit);
                let until = Instant::now() + EXIT_TIMEOUT;
                return daemon.set_timer(Timer::ServerExit(self.slot), Some(until));
            }
            self.server_lost(daemon, running.stderr_tail());
        }
        if self.is_closing.get() && !running.status.get().stopped {
            running.close_stdin();
            daemon.set_timer(Timer::Slot(self.slot), None);
            running.stop();
        }
    }

    /// Handles the deadline for an exit status, or the next check of a warden.
    pub(super) fn on_exit_timer(&self, daemon: &DaemonState) {
        match self.stage.get() {
            ServerStage::AwaitingExit => self.exit_is_known(daemon),
            ServerStage::Reaping => self.check_warden(daemon),
            ServerStage::Waiting | ServerStage::Running | ServerStage::Finished => {}
        }
    }

    /// Reports the loss. The exit status is known, or will never be.
    fn exit_is_known(&self, daemon: &DaemonState) {
        daemon.set_timer(Timer::ServerExit(self.slot), None);
        self.stage.set(ServerStage::Running);
        let running = self.running.borrow().clone();
        if let Some(running) = running {
            self.server_lost(daemon, running.stderr_tail());
            self.advance(daemon);
        }
    }

    /// Reads the warden's reports.
    pub(super) fn on_reports(&self, daemon: &DaemonState) {
        let running = self.running.borrow().clone();
        let Some(running) = running else {
            return;
        };
        // Reading blocks where there is nothing to read.
        while matches!(
            self.stage.get(),
            ServerStage::Running | ServerStage::AwaitingExit
        ) && is_readable(&running.tree)
        {
            let report = running.tree.next_report().ok().flatten();
            if let Some(report) = &report {
                self.note(daemon, &running, report);
            }
            let is_known = self.exit.get().is_some() || running.status.get().announced;
            if self.stage.get() == ServerStage::AwaitingExit && (is_known || report.is_none()) {
                self.exit_is_known(daemon);
            }
            match report {
                Some(_) => self.advance(daemon),
                None => self.handle_reports_end(daemon, &running),
            }
        }
    }

    fn note(&self, daemon: &DaemonState, running: &ServerProcess, report: &Report) {
        let mut status = running.status.get();
        match report {
            Report::Started { pid, .. } => {
                status.started = true;
                self.pid.set(Some(*pid));
                self.last_pid.set(*pid);
                daemon
                    .log
                    .line(format_args!("server {pid} runs for {}", self.class));
                daemon.state_changed();
            }
            Report::Refused(errno) => {
                status.refused = Some(*errno);
                status.announced = true;
            }
            Report::Exited(exit) => {
                let log = &daemon.log;
                log.line(format_args!("the server's first process ended: {exit:?}"));
                if let Some(pid) = self.pid.get() {
                    daemon.set_restart_reason(pid, &end_of(*exit));
                }
                let stdin_closed = running
                    .stdin()
                    .is_some_and(|stdin| reader_is_gone_within(&*stdin, Duration::ZERO));
                self.first_process_ended(daemon, *exit, stdin_closed);
            }
            // A session's server needs no record, so this is never reported.
            Report::NotRecorded(_) => {}
            Report::Empty => status.announced = true,
        }
        running.status.set(status);
    }

    /// Handles the end of the reports: the tree is empty; or the warden was killed, and the daemon must end what it left.
    fn handle_reports_end(&self, daemon: &DaemonState, running: &Rc<ServerProcess>) {
        running.close_stdin();
        running.ignore();
        self.stage.set(ServerStage::Reaping);
        self.is_throttled.set(false);
        daemon.throttled_servers.borrow_mut().remove(&self.slot);
        for timer in [Timer::Slot(self.slot), Timer::ServerThrottle(self.slot)] {
            daemon.set_timer(timer, None);
        }
        match daemon.watch_exit(running, Origin::WardenExit(self.slot)) {
            Some(exit) => drop(self.warden_exit.replace(Some(exit))),
            None => self.check_warden(daemon),
        }
    }

    fn check_warden(&self, daemon: &DaemonState) {
        let running = self.running.borrow().clone();
        match running.is_some_and(|it| it.tree.warden().is_alive()) {
            true => {
                let at = Instant::now() + WARDEN_POLL_INTERVAL;
                daemon.set_timer(Timer::ServerExit(self.slot), Some(at));
            }
            false => self.on_warden_exit(daemon),
        }
    }

    /// Handles the warden's exit.
    pub(super) fn on_warden_exit(&self, daemon: &DaemonState) {
        self.warden_exit.take();
        let running = self.running.borrow().clone();
        let Some(running) = running.filter(|_| self.stage.get() == ServerStage::Reaping) else {
            return;
        };
        // Another process may have reaped it.
        let _ = running.tree.reap();
        let warden = self.warden.take();
        let mut status = running.status.get();
        if !status.announced {
            let records = daemon.key_dir.trees().ok();
            let known = daemon.upgrade.checking.get();
            let records = records.as_ref().map(|dir| dir.handle());
            let strays = tree::end_strays(known.as_slice(), records);
            daemon.log.line(format_args!(
                "warden {} was killed; killed strays: {}",
                warden.unwrap_or_default(),
                strays.map_or_else(|error| error.to_string(), |count| count.to_string())
            ));
        }
        self.pid.take();
        // From here on there is no snapshot of it.
        status.announced = true;
        running.status.set(status);
        match status.stdout_closed || self.is_given_up.get() {
            true => self.process_is_gone(daemon),
            false => self.drain(daemon),
        }
    }

    /// Handles the end of the process tree, after all output.
    pub(super) fn process_is_gone(&self, daemon: &DaemonState) {
        if self.is_given_up.get() {
            self.running.take();
            return self.ended(daemon);
        }
        self.read_last_stderr(daemon);
        if let Some(running) = self.running.take() {
            match running.status.get().refused {
                Some(errno) => self.start_failed(daemon, errno),
                None => self.server_lost(daemon, running.stderr_tail()),
            }
        }
        self.ended(daemon);
    }

    /// Removes the slot.
    fn ended(&self, daemon: &DaemonState) {
        if self.stage.replace(ServerStage::Finished) == ServerStage::Finished {
            return;
        }
        self.server_lost(daemon, String::new());
        self.close(daemon);
        daemon.throttled_servers.borrow_mut().remove(&self.slot);
        for timer in [Timer::Slot, Timer::ServerThrottle, Timer::ServerExit] {
            daemon.set_timer(timer(self.slot), None);
        }
        daemon.servers.borrow_mut().remove(&self.slot);
        daemon.tell_engine(|engine| engine.handle_slot_ended(self.slot, daemon.now()));
        daemon.descriptor_freed();
        daemon.state_changed();
    }

    /// Gives the server up after a panic: its clients begin again with another one.
    pub(super) fn give_up(&self, daemon: &DaemonState) {
        daemon.log.line("gave up a server after a panic: see above");
        self.close(daemon);
        self.server_lost(daemon, String::new());
        let running = self.running.borrow().clone();
        match running.filter(|_| !self.is_given_up.replace(true)) {
            Some(running) => {
                running.stop();
                self.handle_reports_end(daemon, &running);
            }
            None => self.ended(daemon),
        }
    }

    /// Reports that the server could not be started.
    fn start_failed(&self, daemon: &DaemonState, errno: i32) {
        let (code, detail) = refusal(&self.hello, errno);
        daemon.log.line(format_args!("no server: {detail}"));
        let shortage = is_shortage(errno);
        let failure = StartFailure {
            detail,
            exit: (!shortage).then_some(code),
            shortage,
        };
        let (slot, now) = (self.slot, daemon.now());
        daemon.tell_engine(|engine| engine.handle_start_failure(slot, failure, now));
        self.wake_throttled(daemon);
    }

    /// Starts the server in the next run.
    pub(super) fn start(&self, daemon: &DaemonState) {
        self.is_to_start.set(true);
        daemon.run_queue.push(Runnable::Server(self.slot));
    }

    /// Stops the server in the next run.
    pub(super) fn stop(&self, daemon: &DaemonState) {
        self.is_closing.set(true);
        daemon.run_queue.push(Runnable::Server(self.slot));
        self.wake_throttled(daemon);
    }

    /// Treats the server as lost in the next run: its processes do not answer, though stdout is open.
    pub(super) fn declare_lost(&self, daemon: &DaemonState) {
        self.is_lost.set(true);
        daemon.run_queue.push(Runnable::Server(self.slot));
    }

    /// Queues the server or its clients if they are throttled: something was written, or the clients changed.
    pub(super) fn wake_throttled(&self, daemon: &DaemonState) {
        if self.is_throttled.get() {
            daemon.run_queue.push(Runnable::Server(self.slot));
        }
        daemon.wake_throttled_clients(self.slot);
    }

    /// Whether the engine's timer is used.
    fn uses_engine_timer(&self) -> bool {
        let running = self.running.borrow();
        let is_stopped = running.as_ref().is_some_and(|it| it.status.get().stopped);
        !is_stopped
            && !matches!(
                self.stage.get(),
                ServerStage::Reaping | ServerStage::Finished
            )
    }

    /// Sets the timer again if the engine's timeout is earlier than that of the timer.
    pub(super) fn set_timer(&self, daemon: &DaemonState, at: Instant) {
        let engine = daemon.engine.borrow();
        let Some(slot) = engine.slot(self.slot) else {
            return;
        };
        let timeout = engine.timeout_of(slot, daemon.moment(at));
        let waits_for = self.timeout.get();
        let is_earlier = timeout.is_some_and(|at| waits_for.is_none_or(|before| at < before));
        let is_cancelled = slot.timer_is_cancelled();
        drop(engine);
        if (is_earlier || is_cancelled) && self.uses_engine_timer() {
            self.timeout.set(timeout);
            let at = timeout.map(|at| daemon.instant(at));
            // A cancelled timer fires at once, because another timeout may be due.
            let at = at.unwrap_or_else(Instant::now);
            daemon.set_timer(Timer::Slot(self.slot), Some(at));
        }
    }
}

pub(super) fn stop_ladder(hello: &ClientHello) -> Ladder {
    let (after_eof, after_term) = hello.spec.ladder;
    Ladder {
        after_eof: Duration::from_millis(after_eof),
        after_term: Duration::from_millis(after_term),
    }
}

/// The detached services that outlive the server. A value that only another build knows means none.
pub(super) fn detached(hello: &ClientHello) -> Detached {
    let word = hello.spec.detached.as_deref();
    word.and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Why the server could not be started, and a shell's exit code for that.
fn refusal(hello: &ClientHello, errno: i32) -> (u8, String) {
    let program = hello
        .spec
        .command
        .first()
        .map(to_os_string)
        .unwrap_or_default();
    let cwd = std::path::PathBuf::from(to_os_string(&hello.spec.cwd));
    let mut env = hello.env.iter();
    let path = env.rfind(|(name, _)| name.as_bytes() == b"PATH");
    let path = path.map(|(_, value)| to_os_string(value));
    let attempt = Attempt {
        program: &program,
        cwd: Some(&cwd),
        path: path.as_deref(),
    };
    start_error::explain(attempt, errno)
}

pub(super) fn to_os_string(text: &Text) -> OsString {
    os_string(text.as_bytes())
}
