//! The driver's half of a server slot: from before the server's start until its process tree is empty.

mod delivery;
mod feed;
mod snapshot;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{HoldUpTimer, InputLine, ServerSlot, SlotId};
use kennel_core::hello::ClientHello;
use kennel_core::mux::{Class, Note, Side};
use kennel_core::note::LineNote;
use kennel_core::time::Moment;
use kennel_sys::io::{self, Source};
use kennel_sys::tree::Exit;

use super::client::admission;
use super::daemon_state::DaemonState;
use super::log::Quota;
use super::process::ServerProcess;
use super::server::ServerStage;
use super::state::{ServerState, WRITE_REQUESTS_AFTER};
use crate::printed::Printed;
use crate::server_process::server_exit;
use crate::sources::{FileChange, Sources};
use crate::stopped::StoppedProcess;
use kennel_sys::io::BufferSize;

use feed::Unwritten;
pub(super) use snapshot::ServerIoSnapshot;

/// How often the files of a server are checked while it is used.
const CHECK_FILES_EVERY: Duration = Duration::from_secs(1);
/// Maximum lines a minute logged about odd lines, and of stderr.
const NOTES_PER_MINUTE: usize = 100;
const STDERR_LINES_PER_MINUTE: usize = 1000;

/// The I/O of one server slot: its server's process, pipes and files.
pub(super) struct ServerIo {
    pub(super) slot: SlotId,
    pub(super) class: Class,
    /// The hello that defines the server.
    pub(super) hello: Rc<ClientHello>,
    /// Lines that are being written, before all that waits in the lanes.
    unwritten: RefCell<Option<Unwritten>>,
    /// The size of stdin's pipe. It is small, because no line can overtake the lines in the pipe. It is enlarged for a
    /// long line: no line overtakes that anyway, and some servers read it slowly in many parts.
    width: BufferSize,
    /// Its process, while there is one.
    pub(super) running: RefCell<Option<Rc<ServerProcess>>>,
    /// Limits on lines logged of the mux's notes and of stderr.
    notes: RefCell<Quota>,
    stderr_quota: RefCell<Quota>,
    /// Text on stdout that is no message.
    printed: RefCell<Printed>,
    /// The last line on stdout was no message.
    printed_text: Cell<bool>,
    /// The files that its process was started from.
    pub(super) sources: RefCell<Sources>,
    /// When they were last checked.
    files_checked_at: Cell<Option<Instant>>,
    /// The pid of its warden, while it runs.
    pub(super) warden: Cell<Option<u32>>,
    pub(super) pid: Cell<Option<u32>>,
    pub(super) since: Cell<u64>,
    /// The last pid that its server had.
    pub(super) last_pid: Cell<u32>,
    /// How its first process ended, if that is known.
    pub(super) exit: Cell<Option<Exit>>,
    pub(super) stage: Cell<ServerStage>,
    /// The engine said to start its server.
    pub(super) is_to_start: Cell<bool>,
    /// The engine said to stop its server.
    pub(super) is_closing: Cell<bool>,
    /// The engine said to treat its server as lost, though stdout is open.
    pub(super) is_lost: Cell<bool>,
    /// A handler panicked.
    pub(super) is_given_up: Cell<bool>,
    /// It is not read until its clients have read.
    pub(super) is_throttled: Cell<bool>,
    /// Measures how long its clients have held it up.
    pub(super) hold_up: RefCell<HoldUpTimer>,
    /// Complete lines of stdout were read and not taken.
    pub(super) has_lines: Cell<bool>,
    /// The same of stderr.
    pub(super) has_stderr_lines: Cell<bool>,
    /// The warden's exit, after its last report.
    pub(super) warden_exit: RefCell<Option<Source<io::Exit<Rc<ServerProcess>>>>>,
    /// The moment that its timer is set for.
    pub(super) timeout: Cell<Option<Moment>>,
}

impl ServerIo {
    pub(super) fn new(slot: SlotId, class: Class, hello: Rc<ClientHello>) -> ServerIo {
        ServerIo {
            slot,
            class,
            hello,
            unwritten: RefCell::default(),
            width: BufferSize::default(),
            running: RefCell::default(),
            notes: RefCell::new(Quota::new(NOTES_PER_MINUTE)),
            stderr_quota: RefCell::new(Quota::new(STDERR_LINES_PER_MINUTE)),
            printed: RefCell::default(),
            printed_text: Cell::default(),
            sources: RefCell::default(),
            files_checked_at: Cell::new(None),
            warden: Cell::new(None),
            pid: Cell::new(None),
            since: Cell::new(super::start::now()),
            last_pid: Cell::new(0),
            exit: Cell::new(None),
            stage: Cell::default(),
            is_to_start: Cell::new(false),
            is_closing: Cell::new(false),
            is_lost: Cell::new(false),
            is_given_up: Cell::new(false),
            is_throttled: Cell::new(false),
            hold_up: RefCell::default(),
            has_lines: Cell::new(false),
            has_stderr_lines: Cell::new(false),
            warden_exit: RefCell::default(),
            timeout: Cell::new(None),
        }
    }

    /// The entry of `kennel ps`, while it runs.
    pub(super) fn state(&self, slot: &ServerSlot) -> Option<ServerState> {
        let latency = slot.mux().latency();
        let latency = latency.and_then(|it| u64::try_from(it.as_micros()).ok());
        Some(ServerState {
            pid: self.pid.get()?,
            class: Some(self.class.to_string()),
            since: self.since.get(),
            requests: slot.mux().requests(),
            latency_us: latency,
            clients: slot.clients(),
            sources: self.sources.borrow().clone(),
        })
    }

    /// Reports the end of its first process. `stdin_closed`: no process is left that could read its stdin.
    pub(super) fn first_process_ended(&self, daemon: &DaemonState, exit: Exit, stdin_closed: bool) {
        self.exit.set(Some(exit));
        let (slot, ending, now) = (self.slot, server_exit(exit), daemon.now());
        daemon.tell_engine(|engine| {
            engine.handle_first_process_exit(slot, ending, stdin_closed, now)
        });
    }

    /// Why it was lost, for people.
    pub(super) fn why_lost(&self) -> String {
        self.exit.get().map_or(CLOSED.to_owned(), end_of)
    }

    pub(super) fn check_stopped(&self, daemon: &DaemonState) {
        let running = self.running.borrow().clone();
        // A process that cannot be checked is not reported.
        let stopped = running.and_then(|it| it.tree.stopped().unwrap_or_default());
        let (pid, now) = (stopped.map(|stopped| stopped.pid), daemon.now());
        let mut engine = daemon.engine.borrow_mut();
        let is_news = engine.handle_stopped_check(self.slot, pid, now);
        drop(engine);
        if let Some(stopped) = stopped.filter(|_| is_news) {
            daemon.log.line(StoppedProcess::from(stopped).report());
        }
    }

    pub(super) fn take_server_line(&self, daemon: &DaemonState, line: InputLine<'_>, at: Instant) {
        let now = daemon.moment(at);
        let seen = match &line {
            InputLine::Lent(line) => Some(*line),
            InputLine::Moved(..) => None,
        };
        let mut engine = daemon.engine.borrow_mut();
        let is_late =
            |slot: &ServerSlot| now - slot.last_used() > WRITE_REQUESTS_AFTER && !slot.is_quiet();
        if engine.slot(self.slot).is_some_and(is_late) {
            // The request was written to `state.json` before its answer: the answer is worth a write, too.
            daemon.requests_changed(at);
        }
        engine.handle_server_line(self.slot, line, now);
        drop(engine);
        daemon.carry_out(at);
        if self.printed_text.take()
            && let Some(line) = seen
        {
            self.log_printed(daemon, line.bytes(), at);
        }
        daemon.upgrade.recheck(&daemon.run_queue);
    }

    /// Logs an odd line that was dealt with.
    pub(super) fn log_note(&self, daemon: &DaemonState, note: &Note, at: Instant) {
        let by_server = matches!(note, Note::Line(LineNote::Malformed(Side::Server, _)));
        self.printed_text.set(self.printed_text.get() | by_server);
        let log = &daemon.log;
        log.line_within_quota(&self.notes, at, "notes on odd lines", note);
    }

    /// Logs text on stdout that is no message.
    fn log_printed(&self, daemon: &DaemonState, line: &[u8], at: Instant) {
        if let Some(telling) = self.printed.borrow_mut().line(line, at) {
            if let Some(words) = telling.left_out() {
                daemon.log.line(words);
            }
            let text = &telling.text;
            daemon
                .log
                .line(format_args!("server says: (on stdout) {text}"));
        }
    }

    /// Logs a line of stderr.
    pub(super) fn log_stderr(&self, daemon: &DaemonState, line: &str) {
        let (quota, now) = (&self.stderr_quota, Instant::now());
        let line = format_args!("server says: {line}");
        daemon
            .log
            .line_within_quota(quota, now, "lines of stderr", line);
    }

    /// Checks whether its files changed, now that a client uses it. No file event covers all that a launcher may do, and a
    /// check costs less than a line.
    pub(super) fn check_files(&self, daemon: &DaemonState, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < CHECK_FILES_EVERY;
        let replaces = self.hello.spec.replace && self.class.is_shared();
        if !replaces || self.files_checked_at.get().is_some_and(is_recent) {
            return;
        }
        self.files_checked_at.set(Some(now));
        let changed = self.sources.borrow_mut().check() == FileChange::Changed;
        if changed {
            daemon.engine.borrow_mut().handle_files_changed(self.slot);
        }
    }

    /// Reports the clients that may not have a server started any more.
    pub(super) fn refuse_confined(&self, daemon: &DaemonState) {
        let clients = daemon.engine.borrow().clients_of(self.slot);
        for client in clients {
            let conn = daemon.client(client);
            let refused = conn.and_then(|conn| admission::may_have_a_server(&conn).err());
            if let Some(why) = refused {
                let now = daemon.now();
                daemon.tell_engine(|engine| engine.handle_client_refused(client, &why, now));
            }
        }
    }

    /// Reports the loss of its server, with its last lines on stderr.
    pub(super) fn server_lost(&self, daemon: &DaemonState, stderr: String) {
        let ended = self.exit.get().map(server_exit);
        let (slot, now) = (self.slot, daemon.now());
        let unwritten = self.unwritten.borrow().clone();
        let cut_off = unwritten.iter().flat_map(Unwritten::cut_off);
        daemon.tell_engine(|engine| engine.handle_server_lost(slot, ended, stderr, cut_off, now));
        // Its clients need not wait until it takes what they sent.
        self.wake_throttled(daemon);
    }

    /// Closes its slot: no process reads its stdin, so that requests would wait for ever.
    pub(super) fn close(&self, daemon: &DaemonState) {
        daemon.tell_engine(|engine| engine.close_slot(self.slot));
    }

    /// Bytes of lines that are being written to the server or read from it.
    pub(super) fn held_bytes(&self) -> usize {
        let unwritten = self.unwritten.try_borrow();
        let unwritten = unwritten.map_or(0, |unwritten| {
            unwritten.as_ref().map_or(0, |chunk| chunk.line.len())
        });
        let running = self.running.borrow();
        unwritten + running.as_ref().map_or(0, |running| running.held_bytes())
    }
}

/// Why it was lost, if its exit status is unknown.
const CLOSED: &str = "it closed its output";

/// How a process ended, for people.
pub(super) fn end_of(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("it exited with code {code}"),
        Exit::Signal(signal) => format!("it was ended by signal {signal}"),
    }
}
