//! The driver's half of a server slot. It is there before its process and as long as anything of that is left.

mod carried;
mod delivery;
mod feed;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{InputLine, ServerSlot, SlotId};
use kennel_core::hello::ClientHello;
use kennel_core::mux::{Class, Note, Side};
use kennel_core::time::Moment;
use kennel_sys::tree::Exit;

use super::client::admission;
use super::daemon_state::{DaemonState, Flag};
use super::log::Quota;
use super::running::Running;
use super::state::{ServerState, TALK};
use super::tasks::{Descriptor, Notify, first_of, moments, others_first};
use crate::printed::Printed;
use crate::shim::ending;
use crate::shim::width::Width;
use crate::sources::{Look, Sources};
use crate::stopped::StoppedProcess;

pub(super) use carried::Carried;
use feed::Unwritten;

/// How often the files of a server are looked at, while somebody uses it.
const LOOK: Duration = Duration::from_secs(1);
/// Lines a minute that are logged of odd lines that were dropped, and of what the server says on stderr.
const NOTES: usize = 100;
const COMPLAINTS: usize = 1000;

/// The driver's half of a server slot: the process, the pipes and the files of its server.
pub(super) struct ServerIo {
    pub(super) slot: SlotId,
    pub(super) class: Class,
    /// What to run, and whose wish it was.
    pub(super) hello: Rc<ClientHello>,
    /// The server's stdin: a line may go there at once when none waits.
    stdin: RefCell<Weak<Descriptor<OwnedFd>>>,
    /// What is being written there, before all that waits in the lanes.
    cut: RefCell<Option<Unwritten>>,
    /// That pipe is narrow, for what is in it cannot be overtaken; but not for what is long, for nothing can overtake that
    /// any more, and some servers take the longer for a line the more parts it comes in.
    width: Width,
    /// Its process and all that comes of it, while it is there.
    pub(super) running: RefCell<Option<Rc<Running>>>,
    /// What its mux notes for the log, and what it says on stderr: so many lines.
    notes: RefCell<Quota>,
    complaints: RefCell<Quota>,
    /// What it printed on stdout that is no message.
    printed: RefCell<Printed>,
    /// The last line of its process was none.
    printed_text: Cell<bool>,
    /// The files its process was started from.
    pub(super) sources: RefCell<Sources>,
    /// When they were last looked at.
    looked: Cell<Option<Instant>>,
    /// What stands at the other end, once it runs.
    pub(super) warden: Cell<Option<u32>>,
    pub(super) pid: Cell<Option<u32>>,
    pub(super) since: Cell<u64>,
    /// The last pid that it had.
    pub(super) last_pid: Cell<u32>,
    /// How its first process ended, if it is known by now.
    pub(super) exit: Cell<Option<Exit>>,
    /// Its server is to be started.
    pub(super) start: Flag,
    /// Its server is to be stopped.
    pub(super) closing: Flag,
    /// What is left of its process does not answer, though its stdout is open.
    pub(super) lost: Flag,
    /// The moment that `timer` waits for.
    timeout: Cell<Option<Moment>>,
    /// An earlier moment is to be waited for.
    timer: Notify,
    /// There is something to write.
    news: Notify,
    /// Something was written, somebody came or left, or is waited for.
    pub(super) stirred: Notify,
}

impl ServerIo {
    pub(super) fn new(slot: SlotId, class: Class, hello: Rc<ClientHello>) -> ServerIo {
        ServerIo {
            slot,
            class,
            hello,
            stdin: RefCell::default(),
            cut: RefCell::default(),
            width: Width::default(),
            running: RefCell::default(),
            notes: RefCell::new(Quota::new(NOTES)),
            complaints: RefCell::new(Quota::new(COMPLAINTS)),
            printed: RefCell::default(),
            printed_text: Cell::default(),
            sources: RefCell::default(),
            looked: Cell::new(None),
            warden: Cell::new(None),
            pid: Cell::new(None),
            since: Cell::new(super::start::now()),
            last_pid: Cell::new(0),
            exit: Cell::new(None),
            start: Flag::default(),
            closing: Flag::default(),
            lost: Flag::default(),
            timeout: Cell::new(None),
            timer: Notify::default(),
            news: Notify::default(),
            stirred: Notify::default(),
        }
    }

    /// What `kennel ps` shows of it, while it runs.
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

    /// Its server is to stop.
    pub(super) fn stop(&self) {
        self.closing.raise();
        self.stirred.notify_waiters();
    }

    /// Its first process ended. `stdin_closed`: nobody is left who could read its stdin.
    pub(super) fn first_process_ended(&self, daemon: &DaemonState, exit: Exit, stdin_closed: bool) {
        self.exit.set(Some(exit));
        let (slot, ending, now) = (self.slot, ending(exit), daemon.now());
        daemon.tell_engine(|engine| engine.first_process_ended(slot, ending, stdin_closed, now));
    }

    /// Why it was lost, for people.
    pub(super) fn why_lost(&self) -> String {
        self.exit.get().map_or(CLOSED.to_owned(), end_of)
    }

    /// Does what is due for this server, for ever: `tree` once it runs.
    pub(super) async fn keep_time(&self, daemon: &DaemonState) -> std::convert::Infallible {
        loop {
            let now = daemon.now();
            let timeout = daemon.engine.borrow().slot_timeout(self.slot, now);
            self.timeout.set(timeout);
            first_of! {
                () = self.timer.notified() => {},
                () = moments::until(timeout.map(|at| daemon.instant(at))) => {},
            }
            let now = daemon.now();
            daemon.tell_engine(|engine| engine.advance_slot(self.slot, now));
            // Whatever the slot wants next: the daemon serves others before it is asked again.
            others_first().await;
        }
    }

    pub(super) fn check_stopped(&self, daemon: &DaemonState) {
        let running = self.running.borrow().clone();
        // What cannot be looked at is not reported.
        let stopped = running.and_then(|it| it.tree.stopped().unwrap_or_default());
        let (pid, now) = (stopped.map(|stopped| stopped.pid), daemon.now());
        let mut engine = daemon.engine.borrow_mut();
        let is_news = engine.stopped_checked(self.slot, pid, now);
        drop(engine);
        if let Some(stopped) = stopped.filter(|_| is_news) {
            daemon.log.line(StoppedProcess::from(stopped).report());
        }
    }

    /// Wakes the timer, if it waits for the wrong moment.
    pub(super) fn set_timer(&self, daemon: &DaemonState, at: Instant) {
        let engine = daemon.engine.borrow();
        let Some(slot) = engine.slot(self.slot) else {
            return;
        };
        let timeout = engine.timeout_of(slot, daemon.moment(at));
        let waits_for = self.timeout.get().unwrap_or(Moment::END);
        if timeout.is_some_and(|at| at < waits_for) || slot.timer_is_cancelled() {
            self.timeout.set(timeout);
            self.timer.notify_one();
        }
    }

    pub(super) fn hear_server(&self, daemon: &DaemonState, line: InputLine<'_>, at: Instant) {
        let now = daemon.moment(at);
        let seen = match &line {
            InputLine::Lent(line) => Some(*line),
            InputLine::Moved(..) => None,
        };
        let mut engine = daemon.engine.borrow_mut();
        let is_late = |slot: &ServerSlot| now - slot.last_used() > TALK && !slot.is_quiet();
        if engine.slot(self.slot).is_some_and(is_late) {
            // The question was written down before its answer: that one is worth a line, too.
            daemon.talked.notify_one();
        }
        engine.server_line(self.slot, line, now);
        drop(engine);
        daemon.carry_out(at);
        if self.printed_text.take()
            && let Some(line) = seen
        {
            self.log_printed(daemon, line.bytes(), at);
        }
        daemon.upgrade.stir();
    }

    /// Writes down something odd that was dealt with.
    pub(super) fn log_note(&self, daemon: &DaemonState, note: &Note, at: Instant) {
        let by_server = matches!(note, Note::Malformed(Side::Server, _));
        self.printed_text.set(self.printed_text.get() | by_server);
        let log = &daemon.log;
        log.line_within(&self.notes, at, "notes on odd lines", note);
    }

    /// Writes down what the server printed on stdout and is no message.
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

    /// Writes down what the server says on stderr.
    pub(super) fn log_complaint(&self, daemon: &DaemonState, line: &str) {
        let (quota, now) = (&self.complaints, Instant::now());
        let line = format_args!("server says: {line}");
        daemon.log.line_within(quota, now, "lines of stderr", line);
    }

    /// Somebody has a use for it: a reason to see whether it is what it would be if it were started now. Its
    /// files offer no event that covers what a launcher may do, and a look costs less than a line.
    pub(super) fn check_files(&self, daemon: &DaemonState, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < LOOK;
        let replaces = self.hello.spec.replace && self.class.is_shared();
        if !replaces || self.looked.get().is_some_and(is_recent) {
            return;
        }
        self.looked.set(Some(now));
        let changed = self.sources.borrow_mut().look() == Look::Changed;
        if changed {
            daemon.engine.borrow_mut().files_changed(self.slot);
        }
    }

    /// Sends away the clients for which no server may be started any more.
    pub(super) fn refuse_confined(&self, daemon: &DaemonState) {
        let clients = daemon.engine.borrow().clients_of(self.slot);
        for client in clients {
            let link = daemon.clients.borrow().get(&client).cloned();
            let refused = link.and_then(|link| admission::may_have_a_server(&link).err());
            if let Some(why) = refused {
                let now = daemon.now();
                daemon.tell_engine(|engine| engine.client_refused(client, &why, now));
            }
        }
    }

    /// Its server is gone, with these last lines on stderr.
    pub(super) fn server_lost(&self, daemon: &DaemonState, stderr: String) {
        let ended = self.exit.get().map(ending);
        let (slot, now) = (self.slot, daemon.now());
        let cut = self.cut.borrow().clone();
        let cut_off = cut.iter().flat_map(Unwritten::cut_off);
        daemon.tell_engine(|engine| engine.server_lost(slot, ended, stderr, cut_off, now));
        // Its clients need not wait any more until it takes what they sent.
        self.stirred.notify_waiters();
    }

    /// Nobody reads its server's stdin any more: who asks it something would wait for ever.
    pub(super) fn close(&self, daemon: &DaemonState) {
        daemon.tell_engine(|engine| engine.close_slot(self.slot));
    }

    /// How many bytes are held of lines that are being written to the server, or read from it.
    pub(super) fn holds(&self) -> usize {
        let cut = self.cut.try_borrow();
        let cut = cut.map_or(0, |cut| cut.as_ref().map_or(0, |chunk| chunk.line.len()));
        let running = self.running.borrow();
        cut + running.as_ref().map_or(0, |running| running.holds())
    }
}

/// Why there must be another, where the process that ended has not been reaped yet.
const CLOSED: &str = "it closed its output";

/// How a process ended, for people.
pub(super) fn end_of(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("it exited with code {code}"),
        Exit::Signal(signal) => format!("it was ended by signal {signal}"),
    }
}
