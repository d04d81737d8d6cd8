//! What all tasks of the daemon share: who is here, and the daemon's own things.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{Daemon, SlotId};
use kennel_core::hello::ClientHello;
use kennel_core::lifetime::{ClientId, Sight};
use kennel_core::time::Moment;
use kennel_sys::lock::Lock;
use kennel_sys::process::Identity;
use kennel_sys::runtime_dir::Hold;
use kennel_sys::signals::Signals;

use super::carried::Carried;
use super::client::ClientConn;
use super::clock::Clock;
use super::log::Log;
use super::memory::Memory;
use super::server_io::ServerIo;
use super::start::{self, sweep};
use super::state::Restart;
use super::tasks::{Descriptor, Notify};
use super::upgrade::Upgrade;
use super::watchdog::Watchdog;
use crate::meeting::Meeting;

/// Traffic is a reason to look after the daemon's own place, but not every line is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct DaemonState {
    pub(super) meeting: Meeting,
    /// `daemon.lock`, until it is given up.
    pub(super) lock: RefCell<Option<Lock>>,
    /// The runtime directory is held: that is what a daemon is known by.
    pub(super) hold: Option<Hold>,
    pub(super) log: Log,
    pub(super) generation: String,
    /// What decides.
    pub(super) engine: RefCell<Daemon>,
    /// The process outside whose life bounds the daemon's.
    pub(super) owner: Option<Identity>,
    pub(super) listener: Descriptor<UnixListener>,
    pub(super) sweep: Duration,
    /// What asks for the end.
    pub(super) signals: Signals,
    pub(super) upgrade: Upgrade,
    clock: Clock,
    /// From a slot's first client until nothing is left of its server's process tree.
    pub(super) servers: RefCell<BTreeMap<SlotId, Rc<ServerIo>>>,
    /// Ends the process if its end takes too long.
    pub(super) watchdog: RefCell<Option<Watchdog>>,
    /// The daemon has left: nothing is at its place any more.
    pub(super) has_left: Cell<bool>,
    this: OnceCell<Weak<DaemonState>>,
    pub(super) clients: RefCell<BTreeMap<ClientId, Rc<ClientConn>>>,
    /// What the first client wanted: what bare clients get.
    pub(super) first_hello: RefCell<Option<Rc<ClientHello>>>,
    /// Whether that one, confined as this process is, has this daemon's key: computed once.
    pub(super) first_fits: OnceCell<bool>,
    /// The whole hash of the key that the clients have now, also those of a daemon with a former key.
    pub(super) present_hash: RefCell<Option<String>>,
    /// Somebody came or left: `life` looks again.
    pub(super) stirred: Notify,
    /// `state` is to be written anew.
    pub(super) changed: Notify,
    /// Only how often somebody asked something has changed in it.
    pub(super) talked: Notify,
    /// A descriptor was closed: `accept` tries again.
    pub(super) freed: Notify,
    /// Some of what was queued for a client was written, or its client left: servers that wait for that may be read.
    pub(super) drained: Notify,
    pub(super) restarts: Cell<u64>,
    pub(super) last_restart: RefCell<Option<Restart>>,
    /// Since when nobody is attached, for people.
    pub(super) idle_since: Cell<Option<u64>>,
    looked: Cell<Instant>,
    /// What is known of the memory that is held for clients and servers.
    pub(super) memory: Memory,
}

impl DaemonState {
    pub(super) fn new(
        meeting: Meeting,
        lock: Lock,
        log: Log,
        generation: String,
        engine: Daemon,
        listener: Descriptor<UnixListener>,
        signals: Signals,
    ) -> DaemonState {
        DaemonState {
            clock: Clock::start(Moment::START),
            sweep: sweep(&log),
            signals,
            upgrade: Upgrade::default(),
            meeting,
            lock: RefCell::new(Some(lock)),
            hold: None,
            log,
            generation,
            engine: RefCell::new(engine),
            owner: None,
            listener,
            servers: RefCell::default(),
            watchdog: RefCell::default(),
            has_left: Cell::new(false),
            this: OnceCell::new(),
            clients: RefCell::default(),
            first_hello: RefCell::default(),
            first_fits: OnceCell::new(),
            present_hash: RefCell::default(),
            stirred: Notify::default(),
            changed: Notify::default(),
            talked: Notify::default(),
            freed: Notify::default(),
            drained: Notify::default(),
            restarts: Cell::new(0),
            last_restart: RefCell::default(),
            idle_since: Cell::new(None),
            looked: Cell::new(Instant::now()),
            memory: Memory::default(),
        }
    }

    /// Goes on with what another program had.
    pub(super) fn go_on_with(&mut self, carried: &Carried) {
        self.clock = Clock::start(carried.now);
        self.restarts.set(carried.restarts);
        self.last_restart.replace(carried.last_restart.clone());
        self.idle_since.set(carried.idle_since);
        let engine = self.engine.get_mut();
        engine.restore(carried.next_id, carried.modern);
        self.present_hash.replace(carried.hash_of_this_version());
    }

    /// Makes the shared one of it.
    pub(super) fn shared(self) -> Rc<DaemonState> {
        let daemon = Rc::new(self);
        let _ = daemon.this.set(Rc::downgrade(&daemon));
        daemon
    }

    pub(super) fn this(&self) -> Option<Rc<DaemonState>> {
        self.this.get().and_then(Weak::upgrade)
    }

    pub(super) fn server_io(&self, slot: SlotId) -> Option<Rc<ServerIo>> {
        self.servers.borrow().get(&slot).cloned()
    }

    /// Looks at all servers, in order.
    pub(super) fn each_server(&self, look: impl FnMut(&Rc<ServerIo>)) {
        let all: Vec<Rc<ServerIo>> = self.servers.borrow().values().cloned().collect();
        all.iter().for_each(look);
    }

    /// Whether another program could take over now.
    pub(super) fn may_hand_over(&self) -> bool {
        self.engine.borrow().may_hand_over() && self.has_place()
    }

    pub(super) fn now(&self) -> Moment {
        self.moment(Instant::now())
    }

    /// A time that was looked up before, on the daemon's own clock.
    pub(super) fn moment(&self, at: Instant) -> Moment {
        self.clock.at(at)
    }

    /// When a moment of the daemon's own clock was.
    pub(super) fn instant(&self, moment: Moment) -> Instant {
        self.clock.instant(moment)
    }

    /// A client counts from its connection on (lesson 30).
    pub(super) fn arrived(&self, link: &Rc<ClientConn>) -> ClientId {
        let mut engine = self.engine.borrow_mut();
        let id = engine.client_arrived(link.sight(), self.now());
        drop(engine);
        self.has(id, link);
        id
    }

    /// This client is here, under the number it has.
    pub(super) fn has(&self, id: ClientId, link: &Rc<ClientConn>) {
        self.clients.borrow_mut().insert(id, Rc::clone(link));
        self.return_memory_of_many();
        self.idle_since.set(None);
        self.stir();
    }

    pub(super) fn left(&self, id: ClientId) {
        self.clients.borrow_mut().remove(&id);
        let left = self.clients.borrow().len();
        if left == 0 || left.is_power_of_two() {
            // What it wanted, and what it had not read, may have been much.
            kennel_sys::memory::give_back_free();
        }
        if self.clients.borrow().is_empty() {
            self.idle_since.set(Some(start::now()));
        }
        let now = self.now();
        let slot = self.engine.borrow().slot_of(id);
        self.tell_engine(|engine| engine.client_gone(id, now));
        if let Some(server_io) = slot.and_then(|slot| self.server_io(slot)) {
            server_io.stirred.notify_waiters();
        }
        self.freed.notify_waiters();
        self.drained.notify_waiters();
        self.stir();
    }

    /// The process of a client can be watched from now on.
    pub(super) fn is_watched(&self, id: ClientId, link: &ClientConn) {
        if link.sight() == Sight::Seen {
            let now = self.now();
            self.engine.borrow_mut().client_is_watched(id, now);
        }
    }

    /// A client was heard.
    pub(super) fn heard(&self, id: ClientId, at: Instant) {
        let mut engine = self.engine.borrow_mut();
        engine.client_spoke(id, self.moment(at));
        drop(engine);
        self.talked.notify_one();
        if at.saturating_duration_since(self.looked.get()) >= LOOK_EVERY {
            self.look_after_place();
        }
    }

    /// Another server takes the place of this one.
    pub(super) fn restarts(&self, server: u32, reason: String) {
        self.restarts.set(self.restarts.get() + 1);
        let at = start::now();
        let restart = Restart { at, reason, server };
        self.last_restart.replace(Some(restart));
        self.changed.notify_one();
    }

    /// What this server ended of is known only now.
    pub(super) fn restarted_because(&self, server: u32, reason: &str) {
        if let Some(last) = &mut *self.last_restart.borrow_mut()
            && last.server == server
        {
            last.reason = reason.to_owned();
            self.changed.notify_one();
        }
    }

    /// Somebody came, left or changed.
    pub(super) fn stir(&self) {
        self.stirred.notify_one();
        self.changed.notify_one();
        self.upgrade.stir();
    }

    /// Whether the lock's path still leads to our lock: if not, another daemon may be elected, and
    /// nothing at that path is ours.
    pub(super) fn look_after_place(&self) {
        self.looked.set(Instant::now());
        if self.engine.borrow().has_moved() || self.has_place() {
            return;
        }
        self.log
            .line("daemon.lock is not at its path any more: no new clients");
        self.tell_engine(Daemon::runtime_dir_lost);
        self.stir();
    }

    pub(super) fn has_place(&self) -> bool {
        let lock = self.lock.borrow();
        lock.as_ref().is_some_and(Lock::is_at_its_path)
    }
}

/// Something that happens once.
#[derive(Debug, Default)]
pub(super) struct Flag {
    up: Cell<bool>,
    raised: Notify,
}

impl Flag {
    pub(super) fn raise(&self) {
        self.up.set(true);
        self.raised.notify_waiters();
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.get()
    }

    /// Waits until it is up.
    pub(super) async fn up(&self) {
        while !self.is_up() {
            self.raised.notified().await;
        }
    }
}
