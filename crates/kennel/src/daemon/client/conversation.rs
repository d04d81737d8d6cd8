//! The lines of a client, the lines to it, and its end.
//!
//! | event | first line awaited | refused | served |
//! |---|---|---|---|
//! | input | reads its first line (`welcome`) | | reads its lines, if it is not throttled |
//! | room | | | writes what is queued |
//! | closed | as input | the end | as input; the end where it is not read |
//! | exit of its process | the end, after what it sent | | the rest of what it sent, then the end |
//! | timer | the end | the end | checks for memory again |
//! | run | is the daemon ending? | | writes, goes on with lines that were read |

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{HalfLine, InputLine, MIN_PER_CONNECTION, RECHECK_INTERVAL};
use kennel_core::lifetime::ClientId;
use kennel_sys::io::Event;

use super::{ClientConn, Phase, Reading, admission};
use crate::daemon::daemon_state::DaemonState;
use crate::daemon::origin::Origin;
use crate::daemon::queue::Flushed;
use crate::daemon::run_queue::{LINES_PER_RUN, Runnable};
use crate::daemon::socket::Socket;
use crate::daemon::timers::Timer;
use crate::lines::{CHUNK, Inbox, TooLong};

/// Maximum bytes read of a client whose process has ended: as many as a connection holds. Another process that has the
/// connection may send for ever.
const MAX_AFTER_EXIT: usize = 2 << 20;

/// Maximum bytes of lines longer than [`CHUNK`] that are parsed in one turn of the event loop, unless one line is longer.
const MAX_JUDGED: usize = 1 << 20;

/// A client and its daemon, for the handlers of the client's events.
#[derive(Clone, Copy)]
pub(in crate::daemon) struct ClientRef<'a> {
    pub(super) daemon: &'a DaemonState,
    pub(super) id: ClientId,
    pub(super) conn: &'a Rc<ClientConn>,
}

impl<'a> ClientRef<'a> {
    pub(in crate::daemon) fn new(daemon: &'a DaemonState, conn: &'a Rc<ClientConn>) -> Self {
        ClientRef {
            daemon,
            id: conn.id,
            conn,
        }
    }

    /// Handles an event of its socket.
    pub(in crate::daemon) fn on_event(self, event: Event) {
        if event.readable {
            self.on_readable();
        }
        if event.hangup {
            self.on_hangup();
        }
        if event.writable && self.conn.is_blocked.get() {
            self.on_writable();
        }
        self.update_interest();
    }

    /// Handles input in its pipe.
    pub(in crate::daemon) fn on_input(self) {
        self.on_readable();
        self.update_interest();
    }

    /// Handles room in its output pipe.
    pub(in crate::daemon) fn on_output(self) {
        self.on_writable();
        self.update_interest();
    }

    /// Does its queued work: writes queued output and continues to read.
    pub(in crate::daemon) fn run(self) {
        if self.conn.is_leaving.get() {
            return self.leave("the daemon closed it");
        }
        if self.is_new() {
            self.begin();
        }
        if self.is_unintroduced() {
            self.close_if_ending();
            // It may have waited for a turn.
            self.take_first_line(false);
        } else if self.is_served() {
            if !self.conn.is_blocked.get() {
                self.write_out();
            }
            self.continue_reading();
        }
        self.update_interest();
    }

    /// Handles its timer.
    pub(in crate::daemon) fn on_timer(self) {
        if let Some(why) = self.refusal() {
            return self.leave(&why);
        }
        if self.is_unintroduced() {
            return self.first_line_timed_out();
        }
        match self.conn.reading.get() {
            Reading::Memory(since) if self.is_served() => self.decide_on_half_line(since, false),
            _ => self.continue_reading(),
        }
        self.update_interest();
    }

    /// Checks whether its processes are alive, where the kernel reports no exit.
    pub(in crate::daemon) fn on_sweep(self) {
        match self.conn.processes().iter().all(|it| it.is_alive()) {
            true => self.sweep_later(),
            false => self.on_exit(),
        }
    }

    /// Handles the exit of one of its processes. The lines that it sent before still go to its server.
    pub(in crate::daemon) fn on_exit(self) {
        self.conn.exits.take();
        if self.is_unintroduced() {
            self.on_readable();
        }
        if !self.is_served() {
            if self.refusal().is_none() {
                self.leave("its process ended");
            }
            return;
        }
        self.unthrottle();
        self.daemon.set_timer(Timer::Client(self.id), None);
        self.conn.reading.set(Reading::AfterExit(0));
        self.conn.read_at.set(Instant::now());
        self.take_lines();
        self.update_interest();
    }

    /// Reads available input, or the end of input.
    fn on_readable(self) {
        if self.is_unintroduced() {
            return self.read_first_line();
        }
        let is_read = matches!(self.conn.reading.get(), Reading::Open);
        // Lines that were read before come first.
        if !self.is_served() || !is_read || self.conn.has_lines.get() {
            return;
        }
        let Some(socket) = self.socket() else {
            return;
        };
        match socket.read(&self.conn.inbox, self.daemon.is_short_of_memory()) {
            Ok(0) => self.end_of_input(&socket),
            Ok(_) => {
                let now = Instant::now();
                self.daemon.client_spoke(self.id, now);
                self.conn.last_read_at.set(now);
                self.conn.read_at.set(now);
                if self.conn.half_line_length() > CHUNK {
                    // The next one is read little if this one and those before it fill the memory.
                    self.daemon.count_memory_if_due(self.daemon.moment(now));
                }
                if self.conn.may_have_pipes() {
                    socket.offer_pipes_if_due();
                }
                self.take_lines();
            }
            Err(error) if is_temporary(&error) => {}
            Err(_) => self.leave("it closed its connection"),
        }
    }

    /// Handles a closed connection. Where it is read, reading finds the end after all that was sent.
    fn on_hangup(self) {
        if let Some(why) = self.refusal() {
            return self.leave(&why);
        }
        if !self.is_served() {
            return;
        }
        match self.conn.reading.get() {
            Reading::Open | Reading::AfterExit(_) => {}
            // It is not read meanwhile.
            Reading::Throttled | Reading::HalfClosed => self.leave("it closed its connection"),
            Reading::Memory(since) => self.decide_on_half_line(since, true),
        }
    }

    /// Handles room for its output.
    fn on_writable(self) {
        self.write_out();
        self.continue_reading();
    }

    /// Writes its queued output.
    fn write_out(self) {
        let (Some(socket), true) = (self.socket(), self.is_served()) else {
            return;
        };
        if matches!(self.conn.reading.get(), Reading::AfterExit(_)) {
            return;
        }
        let mut has_written = false;
        let flushed = self.conn.to_client.write_out(|bytes| {
            let written = socket.try_write(bytes);
            has_written |= written.is_ok();
            written
        });
        if has_written {
            self.daemon.wake_throttled_servers();
            self.daemon.upgrade.recheck(&self.daemon.run_queue);
        }
        match flushed {
            Ok(flushed) => {
                let is_blocked = flushed == Flushed::Blocked;
                self.conn.is_blocked.set(is_blocked);
                if is_blocked {
                    self.conn.record_unread();
                }
                if flushed == Flushed::Ended {
                    self.leave("all is written");
                }
            }
            Err(error) => self.leave(&format!("cannot write to it: {error}")),
        }
    }

    /// Goes on reading if it was throttled, or takes lines that were read.
    fn continue_reading(self) {
        if !self.is_served() {
            return;
        }
        match self.conn.reading.get() {
            Reading::Throttled => {
                if self.daemon.is_short_of_memory() {
                    self.daemon.count_memory_if_due(self.daemon.now());
                }
                match self.must_be_throttled() {
                    true => self.throttle(),
                    // Lines may be left that were read before.
                    false => {
                        self.unthrottle();
                        self.take_lines();
                    }
                }
            }
            _ if self.conn.has_lines.get() => self.take_lines(),
            Reading::Open | Reading::Memory(_) | Reading::HalfClosed | Reading::AfterExit(_) => {}
        }
    }

    /// Serves it from now on.
    pub(super) fn is_admitted(self) {
        self.daemon.set_timer(Timer::Client(self.id), None);
        self.conn.phase.replace(Phase::Served);
        self.conn.read_at.set(Instant::now());
        self.watch_processes();
        if let Some(socket) = self.socket() {
            self.conn
                .to_client
                .write_directly_to(Rc::downgrade(&socket));
        }
        if self.daemon.engine.borrow().is_half_closed(self.id) {
            self.conn.reading.set(Reading::HalfClosed);
        }
        self.take_lines();
        // Lines may have been queued for it before.
        self.conn.run_queue.push(Runnable::Client(self.id));
    }

    /// Watches the exits of its processes.
    pub(super) fn watch_processes(self) {
        let processes = self.conn.processes();
        let mut exits = self.conn.exits.borrow_mut();
        exits.clear();
        for process in processes.iter().copied() {
            let watched = self.daemon.watch_exit(process, Origin::ClientExit(self.id));
            exits.extend(watched);
        }
        if exits.len() < processes.len() {
            self.sweep_later();
        }
    }

    fn sweep_later(self) {
        let at = Instant::now() + self.daemon.sweep;
        self.daemon.set_timer(Timer::ClientSweep(self.id), Some(at));
    }

    /// Takes its complete lines, up to [`LINES_PER_RUN`].
    fn take_lines(self) {
        let length = self.conn.half_line_length();
        if self.must_wait_for_turn(length) {
            self.conn.has_lines.set(true);
            return;
        }
        if length > CHUNK {
            // It may have waited, and those before it may have filled the memory: a batch is shorter than its errors.
            self.daemon.count_memory_if_due(self.daemon.now());
        }
        self.take_some_lines();
        self.daemon
            .count_judged(length, self.conn.half_line_length());
    }

    /// Whether the limit of parsed bytes of this turn of the event loop is reached, so that a long line waits for the
    /// next turn and other clients are served before it.
    pub(super) fn must_wait_for_turn(self, length: usize) -> bool {
        let waits = length > CHUNK && self.daemon.parsed_bytes.get() >= MAX_JUDGED;
        if waits {
            self.conn.run_queue.push(Runnable::Client(self.id));
        }
        waits
    }

    fn take_some_lines(self) {
        let at = self.conn.read_at.get();
        for _ in 0..LINES_PER_RUN {
            if !self.take_line(&self.conn.inbox, at) {
                self.conn.has_lines.set(false);
                return self.lines_are_taken();
            }
        }
        self.conn.has_lines.set(true);
        self.conn.run_queue.push(Runnable::Client(self.id));
    }

    /// Decides how to continue after all complete lines were taken, or no further line may be taken now.
    fn lines_are_taken(self) {
        // A line that was taken while memory is short is still there if the next one waits.
        self.conn.inbox.borrow_mut().compact();
        match self.conn.reading.get() {
            Reading::HalfClosed => {}
            Reading::AfterExit(count) => self.read_after_exit(count),
            _ if self.must_be_throttled() => self.throttle(),
            _ if self.conn.inbox.borrow().len() <= MIN_PER_CONNECTION => {
                self.conn.half_line_started.set(None)
            }
            _ => self.decide_on_half_line(Instant::now(), false),
        }
    }

    /// Continues to read after the exit of its process, until its queue is full of responses: no process reads them.
    fn read_after_exit(self, count_before: usize) {
        let is_enough =
            count_before >= MAX_AFTER_EXIT || self.exceeds_share() || self.conn.to_client.is_full();
        let socket = self.socket().filter(|_| !is_enough);
        match socket.map(|socket| socket.read(&self.conn.inbox, false)) {
            Some(Ok(count @ 1..)) => {
                self.conn
                    .reading
                    .set(Reading::AfterExit(count_before + count));
                self.conn.has_lines.set(true);
                self.conn.run_queue.push(Runnable::Client(self.id));
            }
            _ => self.leave("its process ended"),
        }
    }

    /// Stops reading it until there is room.
    fn throttle(self) {
        self.conn.reading.set(Reading::Throttled);
        self.daemon.throttled_clients.borrow_mut().insert(self.id);
        // Memory may become free without an event of this client.
        let is_short = self.daemon.is_short_of_memory();
        let check_at = is_short.then(|| Instant::now() + RECHECK_INTERVAL);
        self.daemon.set_timer(Timer::Client(self.id), check_at);
    }

    fn unthrottle(self) {
        self.conn.reading.set(Reading::Open);
        self.daemon.throttled_clients.borrow_mut().remove(&self.id);
        self.daemon.set_timer(Timer::Client(self.id), None);
    }

    /// Asks the engine whether to read more of its half line, which has waited for memory since `since`. A closed
    /// connection is always read, so that its end is found.
    fn decide_on_half_line(self, since: Instant, is_hung_up: bool) {
        let (daemon, conn) = (self.daemon, self.conn);
        if conn.half_line_started.get().is_none() {
            conn.half_line_started.set(Some(since));
        }
        let is_small = is_hung_up || conn.half_line_length() <= MIN_PER_CONNECTION;
        let decision = match is_small || daemon.make_room_for_client(self.id) {
            true => HalfLine::Read,
            false => {
                let (since, now) = (daemon.moment(since), daemon.now());
                let held = daemon.memory_use();
                held.half_line(self.id, since, now)
            }
        };
        match decision {
            HalfLine::WaitUntil(at) => {
                conn.reading.set(Reading::Memory(since));
                let at = daemon.instant(at);
                return daemon.set_timer(Timer::Client(self.id), Some(at));
            }
            HalfLine::Drop => conn.inbox.borrow_mut().skip_line_in_shortage(),
            HalfLine::Read => {}
        }
        if conn.waits_since().is_some() {
            conn.resume_half_line(since, Instant::now());
        }
        daemon.set_timer(Timer::Client(self.id), None);
        conn.reading.set(Reading::Open);
    }

    /// Handles the end of its input.
    fn end_of_input(self, socket: &Socket) {
        let rest = self.conn.inbox.borrow_mut().rest();
        // A shim ends its lines. An unfinished line of a shim is the beginning of a line that was sent ahead.
        if let Some(rest) = rest.filter(|_| self.conn.is_bare()) {
            self.take(InputLine::from(&rest[..]), self.conn.read_at.get());
        }
        match socket.is_hung_up() {
            true => self.leave("it closed its connection"),
            false => self.half_close(),
        }
    }

    /// Reports the end of its input: it is closed when all its requests are answered.
    pub(super) fn half_close(self) {
        self.conn.reading.set(Reading::HalfClosed);
        let now = self.daemon.now();
        self.daemon
            .tell_engine(|engine| engine.handle_client_eof(self.id, now));
    }

    /// Closes its connection.
    pub(in crate::daemon) fn leave(self, why: &str) {
        if matches!(self.conn.phase.replace(Phase::Closed), Phase::Closed) {
            return;
        }
        let (daemon, id) = (self.daemon, self.id);
        let pid = self.conn.pid;
        daemon
            .log
            .line(format_args!("client {} (process {pid}) left: {why}", id.0));
        self.conn.is_leaving.set(true);
        self.conn.exits.take();
        drop(self.conn.socket.take());
        daemon.throttled_clients.borrow_mut().remove(&id);
        daemon.set_timer(Timer::Client(id), None);
        daemon.set_timer(Timer::ClientSweep(id), None);
        daemon.client_left(id);
    }

    /// Sets the interest of its descriptors.
    fn update_interest(self) {
        let Some(socket) = self.socket() else {
            return;
        };
        let (reads, writes) = match &*self.conn.phase.borrow() {
            Phase::Unintroduced(_) => (true, false),
            Phase::Served => match self.conn.reading.get() {
                Reading::Open => (true, self.conn.is_blocked.get()),
                Reading::AfterExit(_) => (false, false),
                _ => (false, self.conn.is_blocked.get()),
            },
            _ => (false, false),
        };
        if let Err(error) = socket.set_interest(reads, writes) {
            self.leave(&format!("cannot read from it: {error}"));
        }
    }

    pub(super) fn socket(self) -> Option<Rc<Socket>> {
        self.conn.socket.borrow().clone()
    }

    fn is_new(self) -> bool {
        matches!(*self.conn.phase.borrow(), Phase::New(_))
    }

    pub(super) fn is_unintroduced(self) -> bool {
        matches!(*self.conn.phase.borrow(), Phase::Unintroduced(_))
    }

    /// Why it was refused, if it was.
    fn refusal(self) -> Option<String> {
        match &*self.conn.phase.borrow() {
            Phase::Refused(why) => Some(why.clone()),
            _ => None,
        }
    }

    fn is_served(self) -> bool {
        matches!(*self.conn.phase.borrow(), Phase::Served)
    }

    /// Closes its connection after this time, or when it does.
    pub(super) fn wait_for_close(self, why: String, time: Duration) {
        self.conn.phase.replace(Phase::Refused(why));
        self.daemon
            .set_timer(Timer::Client(self.id), Some(Instant::now() + time));
    }

    /// Takes the check that was made when it connected.
    pub(super) fn take_arrival_check(self) -> Option<admission::ArrivalCheck> {
        let mut phase = self.conn.phase.borrow_mut();
        match std::mem::take(&mut *phase) {
            Phase::Unintroduced(early) => Some(*early),
            other => {
                *phase = other;
                None
            }
        }
    }
}

/// Its lines.
impl ClientRef<'_> {
    /// Takes its next complete line. `false` if it has no complete line, or must read its output first: a short line may
    /// have a long response.
    fn take_line(self, inbox: &RefCell<Inbox>, at: Instant) -> bool {
        if self.conn.to_client.is_full() || self.exceeds_share() {
            return false;
        }
        if let Some(line) = inbox.borrow_mut().next_input() {
            self.take(line, at);
            return true;
        }
        let too_long = inbox.borrow_mut().next_too_long(false);
        let is_there = too_long.is_some();
        if let Some(line) = too_long {
            self.take_too_long(line, at);
        }
        is_there
    }

    /// Refuses a request that is too long. In place of a response that is too long, the server gets an error.
    fn take_too_long(self, line: TooLong, at: Instant) {
        let who = format!("client {}", self.id.0);
        self.daemon.log.line(line.note(&who));
        let mut engine = self.daemon.engine.borrow_mut();
        engine.handle_skipped_line(self.id);
        // An id in flight belongs to another request: a refusal would answer that one.
        let taken: BTreeSet<Vec<u8>> = engine.in_flight_of(self.id).into_iter().collect();
        drop(engine);
        for mut message in line.messages() {
            if let Some(answer) = message.replacement() {
                self.take(InputLine::from(&answer[..]), at);
                continue;
            }
            message.id = message.id.filter(|id| !taken.contains(id));
            self.conn.to_client.push(&message.refusal());
        }
    }

    pub(super) fn take(self, line: InputLine<'_>, at: Instant) {
        self.daemon.client_line(self.id, line, at);
    }

    /// Whether it is not read until its server, or it itself, has read.
    fn must_be_throttled(self) -> bool {
        let memory = self.daemon.memory.borrow();
        let engine = self.daemon.engine.borrow();
        memory.stops_client(self.conn.to_client.len())
            || engine.is_over_queue_limit(self.id, || memory.is_short())
    }

    /// Whether its next complete line waits because memory is short. Many short lines take more memory in a server's queue
    /// than here.
    fn exceeds_share(self) -> bool {
        let memory = self.daemon.memory.borrow();
        memory.is_short()
            && (memory.exceeds_small(self.conn.to_client.len())
                || self.daemon.engine.borrow().is_over_memory_share(self.id))
    }
}

/// Whether reading may succeed later.
pub(super) fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
