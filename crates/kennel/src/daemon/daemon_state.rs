//! The daemon's state: the engine, its clients and servers, its locks and files.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{Daemon, MemoryWatch, Replies, SlotId};
use kennel_core::hello::{ClientHello, DaemonHello, PROTOCOL};
use kennel_core::lifetime::{ClientId, Liveness};
use kennel_core::time::Moment;
use kennel_sys::io::{Exit, Interest, Listener, Reactor, Source};
use kennel_sys::lock::Lock;
use kennel_sys::peer::Peer;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::Hold;
use kennel_sys::signals::Signals;

use super::accept::Accepting;
use super::client::ClientConn;
use super::clock::Clock;
use super::life::OwnerWatch;
use super::log::Log;
use super::origin::Origin;
use super::run_queue::{RunQueue, Runnable};
use super::server_io::ServerIo;
use super::snapshot::Snapshot;
use super::start::{self, sweep};
use super::state::{Restart, WRITE_CHANGES_AFTER, WRITE_REQUESTS_AFTER, WriteState};
use super::timers::{Timer, Timers};
use super::upgrade::Upgrade;
use super::watchdog::Watchdog;
use crate::key;
use crate::key_dir::KeyDir;
use crate::lines::{CHUNK, buffer_pool, max_line};
use crate::this_build;

/// How often the runtime directory is checked while clients send lines.
const CHECK_DIR_EVERY: Duration = Duration::from_secs(1);

pub(super) struct DaemonState {
    pub(super) key_dir: KeyDir,
    /// `daemon.lock`, until the daemon releases it.
    pub(super) lock: RefCell<Option<Lock>>,
    /// Held for the daemon's life: it identifies the daemon.
    pub(super) hold: Option<Hold>,
    pub(super) log: Log,
    pub(super) generation: String,
    /// The lines for connections that are not served.
    pub(super) replies: Replies,
    /// The engine.
    pub(super) engine: RefCell<Daemon>,
    /// The process outside whose end bounds the daemon's life.
    pub(super) owner: Option<Identity>,
    pub(super) owner_watch: RefCell<Option<OwnerWatch>>,
    pub(super) reactor: Reactor,
    pub(super) run_queue: Rc<RunQueue>,
    pub(super) timers: RefCell<Timers>,
    pub(super) listener: Source<Listener>,
    pub(super) accepting: Accepting,
    pub(super) sweep: Duration,
    /// SIGTERM, SIGINT and SIGHUP.
    pub(super) signals: Source<Signals>,
    /// SIGCHLD.
    pub(super) children: Option<Source<Signals>>,
    pub(super) upgrade: Upgrade,
    pub(super) clock: Clock,
    /// Each from a slot's first client until its server's process tree is empty.
    pub(super) servers: RefCell<BTreeMap<SlotId, Rc<ServerIo>>>,
    /// Ends the process if the daemon's end takes too long.
    pub(super) watchdog: RefCell<Option<Watchdog>>,
    /// The daemon has left: its files are removed, its locks released.
    pub(super) has_left: Cell<bool>,
    pub(super) clients: RefCell<BTreeMap<ClientId, Rc<ClientConn>>>,
    /// The hello of the first client with one. Clients without a hello get the same server.
    pub(super) first_hello: RefCell<Option<Rc<ClientHello>>>,
    /// Whether that hello, with this process's confinement, has the daemon's key. Computed once.
    pub(super) first_has_key: OnceCell<bool>,
    /// The full hash of the key that all clients have now, also those of a daemon with a former key.
    pub(super) key_hash: RefCell<Option<String>>,
    /// Clients that are not read until there is room for their input, or for the output queued for them.
    pub(super) throttled_clients: RefCell<BTreeSet<ClientId>>,
    /// Servers that are not read until their clients have read.
    pub(super) throttled_servers: RefCell<BTreeSet<SlotId>>,
    /// When to write `state.json`.
    pub(super) listing: WriteState,
    pub(super) restarts: Cell<u64>,
    pub(super) last_restart: RefCell<Option<Restart>>,
    /// Since when no client is attached, in seconds since 1970.
    pub(super) idle_since: Cell<Option<u64>>,
    pub(super) dir_checked_at: Cell<Instant>,
    /// Whether memory is short.
    pub(super) memory: RefCell<MemoryWatch>,
    /// Bytes of long lines that were judged in this turn of the event loop.
    pub(super) parsed_bytes: Cell<usize>,
    /// Number of queues that lines for several clients were put into.
    pub(super) deliveries: Cell<usize>,
}

/// The sources of events that the daemon has from its start.
pub(super) struct Inputs {
    pub(super) reactor: Reactor,
    pub(super) listener: Source<Listener>,
    pub(super) signals: Source<Signals>,
}

impl DaemonState {
    pub(super) fn new(
        key_dir: KeyDir,
        lock: Lock,
        log: Log,
        generation: String,
        engine: Daemon,
        inputs: Inputs,
    ) -> DaemonState {
        let Inputs {
            reactor,
            listener,
            signals,
        } = inputs;
        DaemonState {
            clock: Clock::start(Moment::START),
            sweep: sweep(&log),
            signals,
            children: None,
            upgrade: Upgrade::default(),
            key_dir,
            lock: RefCell::new(Some(lock)),
            hold: None,
            log,
            replies: Replies::new(DaemonHello {
                version: this_build::version(),
                protocol: PROTOCOL,
                generation: generation.clone(),
                build: this_build::text(),
                checks_keys: true,
                key_version: key::VERSION,
            }),
            generation,
            engine: RefCell::new(engine),
            owner: None,
            owner_watch: RefCell::default(),
            reactor,
            run_queue: Rc::default(),
            timers: RefCell::default(),
            listener,
            accepting: Accepting::default(),
            servers: RefCell::default(),
            watchdog: RefCell::default(),
            has_left: Cell::new(false),
            clients: RefCell::default(),
            first_hello: RefCell::default(),
            first_has_key: OnceCell::new(),
            key_hash: RefCell::default(),
            throttled_clients: RefCell::default(),
            throttled_servers: RefCell::default(),
            listing: WriteState::default(),
            restarts: Cell::new(0),
            last_restart: RefCell::default(),
            idle_since: Cell::new(None),
            dir_checked_at: Cell::new(Instant::now()),
            memory: RefCell::new(MemoryWatch::new(max_line())),
            parsed_bytes: Cell::new(0),
            deliveries: Cell::default(),
        }
    }

    /// Continues with the values of a snapshot.
    pub(super) fn restore(&mut self, snapshot: &Snapshot) {
        self.clock = Clock::start(snapshot.now);
        self.restarts.set(snapshot.restarts);
        self.last_restart.replace(snapshot.last_restart.clone());
        self.idle_since.set(snapshot.idle_since);
        let engine = self.engine.get_mut();
        engine.restore(snapshot.next_id, snapshot.modern);
        self.key_hash.replace(snapshot.current_key_hash());
    }

    /// Watches the exit of a process, if the kernel reports it.
    pub(super) fn watch_exit<T: AsRef<ProcessRef>>(
        &self,
        process: &Rc<T>,
        origin: Origin,
    ) -> Option<Source<Exit<Rc<T>>>> {
        let exit = Exit::of(process)?;
        Source::with(&self.reactor, exit, origin.token(), Interest::READ).ok()
    }

    /// Sets a timer for this time; `None` cancels it.
    pub(super) fn set_timer(&self, timer: Timer, at: Option<Instant>) {
        self.timers.borrow_mut().set(timer, at);
    }

    pub(super) fn client(&self, id: ClientId) -> Option<Rc<ClientConn>> {
        self.clients.borrow().get(&id).cloned()
    }

    /// The same hello; shares the first hello's environment if its own is equal, which saves memory for each client.
    pub(super) fn with_one_environment(&self, mut hello: ClientHello) -> ClientHello {
        let first = self.first_hello.borrow();
        if let Some(first) = first.as_ref().filter(|first| first.env == hello.env) {
            hello.env = Arc::clone(&first.env);
        }
        hello
    }

    pub(super) fn server_io(&self, slot: SlotId) -> Option<Rc<ServerIo>> {
        self.servers.borrow().get(&slot).cloned()
    }

    /// Calls a function for each server slot, in order.
    pub(super) fn for_each_server(&self, look: impl FnMut(&Rc<ServerIo>)) {
        let all: Vec<Rc<ServerIo>> = self.servers.borrow().values().cloned().collect();
        all.iter().for_each(look);
    }

    /// Whether a newer build could take over now.
    pub(super) fn may_hand_over(&self) -> bool {
        self.engine.borrow().may_hand_over() && self.has_runtime_dir()
    }

    /// Counts the parsed bytes of a client's input, which had `before` bytes and now has `now`. Small amounts do not
    /// count.
    pub(super) fn count_judged(&self, before: usize, after: usize) {
        if before > CHUNK {
            let parsed_bytes = before.saturating_sub(after);
            self.parsed_bytes
                .set(self.parsed_bytes.get() + parsed_bytes);
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.moment(Instant::now())
    }

    /// A time of this process's clock as a moment of the daemon's.
    pub(super) fn moment(&self, at: Instant) -> Moment {
        self.clock.at(at)
    }

    /// A moment of the daemon's clock as a time of this process's.
    pub(super) fn instant(&self, moment: Moment) -> Instant {
        self.clock.instant(moment)
    }

    /// Counts a client from its connection on (lesson 30). Returns its number.
    pub(super) fn client_arrived(&self, peer: &Peer) -> ClientId {
        let sight = match peer.process {
            Some(_) => Liveness::Watchable,
            None => Liveness::Unwatchable,
        };
        let now = self.now();
        self.engine.borrow_mut().handle_client_arrived(sight, now)
    }

    /// Adds a client under its number.
    pub(super) fn client_added(&self, conn: &Rc<ClientConn>) {
        self.clients.borrow_mut().insert(conn.id, Rc::clone(conn));
        self.return_memory_of_many();
        self.idle_since.set(None);
        self.state_changed();
    }

    pub(super) fn client_left(&self, id: ClientId) {
        self.clients.borrow_mut().remove(&id);
        let left = self.clients.borrow().len();
        if left == 0 || left.is_power_of_two() {
            // Its hello and its unread lines may have taken much memory.
            kennel_sys::memory::release_free_memory();
        }
        if self.clients.borrow().is_empty() {
            self.idle_since.set(Some(start::now()));
        }
        let now = self.now();
        self.tell_engine(|engine| engine.handle_client_gone(id, now));
        self.descriptor_freed();
        self.wake_throttled_servers();
        self.state_changed();
    }

    /// Reports that a client's process can be watched from now on.
    pub(super) fn client_is_watched(&self, id: ClientId, conn: &ClientConn) {
        if conn.liveness() == Liveness::Watchable {
            let now = self.now();
            self.engine.borrow_mut().handle_client_watchable(id, now);
        }
    }

    /// Reports that bytes came from a client.
    pub(super) fn client_spoke(&self, id: ClientId, at: Instant) {
        let mut engine = self.engine.borrow_mut();
        engine.handle_client_bytes(id, self.moment(at));
        drop(engine);
        self.requests_changed(at);
        if at.saturating_duration_since(self.dir_checked_at.get()) >= CHECK_DIR_EVERY {
            self.check_runtime_dir();
        }
    }

    /// Records that another server replaces this one.
    pub(super) fn server_restarts(&self, server: u32, reason: String) {
        self.restarts.set(self.restarts.get() + 1);
        let at = start::now();
        let restart = Restart { at, reason, server };
        self.last_restart.replace(Some(restart));
        self.write_state_soon();
    }

    /// Replaces the reason of the last restart, if it became known after the restart.
    pub(super) fn set_restart_reason(&self, server: u32, reason: &str) {
        if let Some(last) = &mut *self.last_restart.borrow_mut()
            && last.server == server
        {
            last.reason = reason.to_owned();
            self.write_state_soon();
        }
    }

    /// Checks what follows from a change of clients or servers: the daemon's end, `state.json`, an upgrade.
    pub(super) fn state_changed(&self) {
        self.run_queue.push(Runnable::Life);
        self.write_state_soon();
        self.upgrade.recheck(&self.run_queue);
    }

    /// Sets the timer that writes `state.json`. Not at once: many changes in a row are written once.
    fn write_state_soon(&self) {
        if !self.listing.is_changed.replace(true) {
            let soon = Instant::now() + WRITE_CHANGES_AFTER;
            let at = self.timers.borrow().get(Timer::WriteState);
            self.set_timer(Timer::WriteState, Some(at.map_or(soon, |at| at.min(soon))));
        }
    }

    /// Reports that only the number of requests has changed in `state.json`.
    pub(super) fn requests_changed(&self, at: Instant) {
        if !self.listing.is_changed.get() && !self.listing.has_new_requests.replace(true) {
            self.set_timer(Timer::WriteState, Some(at + WRITE_REQUESTS_AFTER));
        }
    }

    /// Reports that a descriptor was closed: accepting may go on.
    pub(super) fn descriptor_freed(&self) {
        if self.accepting.is_paused.get() {
            self.run_queue.push(Runnable::Accept);
        }
    }

    /// Queues the servers that are not read until clients have read: some bytes were written to a client, or a client left.
    pub(super) fn wake_throttled_servers(&self) {
        for slot in self.throttled_servers.borrow().iter() {
            self.run_queue.push(Runnable::Server(*slot));
        }
    }

    /// Queues the clients that are not read until this server has read: something was written to it, or its clients
    /// changed.
    pub(super) fn wake_throttled_clients(&self, slot: SlotId) {
        let throttled_clients = self.throttled_clients.borrow();
        if throttled_clients.is_empty() {
            return;
        }
        let engine = self.engine.borrow();
        for id in throttled_clients.iter() {
            // A client whose server was lost has no slot any more.
            if engine.slot_of(*id).is_none_or(|its| its == slot) {
                self.run_queue.push(Runnable::Client(*id));
            }
        }
    }

    /// Sets the timer that returns memory of long lines to the system.
    pub(super) fn schedule_memory_return(&self) {
        if let Some(due) = buffer_pool::due()
            && self.timers.borrow().get(Timer::ReturnMemory).is_none()
        {
            self.set_timer(Timer::ReturnMemory, Some(due));
        }
    }

    /// Checks whether the path of `daemon.lock` still leads to this daemon's lock. If not, another daemon may be elected,
    /// and the files in that directory are not this daemon's.
    pub(super) fn check_runtime_dir(&self) {
        self.dir_checked_at.set(Instant::now());
        if self.engine.borrow().has_moved() || self.has_runtime_dir() {
            return;
        }
        self.log
            .line("daemon.lock was moved or removed: no new clients");
        self.tell_engine(Daemon::handle_runtime_dir_lost);
        self.state_changed();
    }

    pub(super) fn has_runtime_dir(&self) -> bool {
        let lock = self.lock.borrow();
        lock.as_ref().is_some_and(Lock::is_at_its_path)
    }
}
