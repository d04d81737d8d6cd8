//! What all tasks of the daemon share: who is here, and the daemon's own things.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Control};
use kennel_core::lifetime::ClientId;
use kennel_core::time::Moment;
use kennel_sys::lock::Lock;
use kennel_sys::runtime_dir::Hold;
use kennel_sys::signals::Signals;

use super::carried::Carried;
use super::client::Link;
use super::clock::Clock;
use super::life::Life;
use super::log::Log;
use super::pool::Pool;
use super::start::{self, sweep};
use super::state::Restart;
use super::tasks::{Descriptor, Notify};
use super::upgrade::Upgrade;
use crate::meeting::Meeting;

/// Traffic is a reason to look after the daemon's own place, but not every line is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct House {
    pub(super) meeting: Meeting,
    /// `daemon.lock`, until it is given up.
    pub(super) lock: RefCell<Option<Lock>>,
    /// The runtime directory is held: that is what a daemon is known by.
    pub(super) hold: Option<Hold>,
    pub(super) log: Log,
    pub(super) generation: String,
    pub(super) life: RefCell<Life>,
    pub(super) listener: Descriptor<UnixListener>,
    pub(super) sweep: Duration,
    /// How long a server outlives its last client; `None`: for ever.
    pub(super) linger: Option<Duration>,
    /// What asks for the end.
    pub(super) signals: Signals,
    pub(super) upgrade: Upgrade,
    clock: Clock,
    pub(super) pool: Pool,
    pub(super) clients: RefCell<BTreeMap<ClientId, Rc<Link>>>,
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
    /// Nobody is let in any more.
    pub(super) closed: Flag,
    pub(super) moved: Cell<bool>,
    pub(super) restarts: Cell<u64>,
    pub(super) last_restart: RefCell<Option<Restart>>,
    /// Since when nobody is attached, for people.
    pub(super) idle_since: Cell<Option<u64>>,
    /// Whether any server of this daemon has shown to know the modern era.
    modern: Cell<Option<bool>>,
    looked: Cell<Instant>,
    next_id: Cell<u64>,
}

impl House {
    pub(super) fn new(
        meeting: Meeting,
        lock: Lock,
        log: Log,
        generation: String,
        life: Life,
        listener: Descriptor<UnixListener>,
        signals: Signals,
    ) -> House {
        House {
            linger: life.linger(),
            clock: Clock::start(Moment::START),
            sweep: sweep(&log),
            signals,
            upgrade: Upgrade::default(),
            meeting,
            lock: RefCell::new(Some(lock)),
            hold: None,
            log,
            generation,
            life: RefCell::new(life),
            listener,
            pool: Pool::default(),
            clients: RefCell::default(),
            first_hello: RefCell::default(),
            first_fits: OnceCell::new(),
            present_hash: RefCell::default(),
            stirred: Notify::default(),
            changed: Notify::default(),
            talked: Notify::default(),
            freed: Notify::default(),
            drained: Notify::default(),
            closed: Flag::default(),
            moved: Cell::new(false),
            restarts: Cell::new(0),
            last_restart: RefCell::default(),
            idle_since: Cell::new(None),
            modern: Cell::new(None),
            looked: Cell::new(Instant::now()),
            next_id: Cell::new(1),
        }
    }

    /// Goes on with what another program had.
    pub(super) fn go_on_with(&mut self, carried: &Carried) {
        self.clock = Clock::start(carried.now);
        self.restarts.set(carried.restarts);
        self.last_restart.replace(carried.last_restart.clone());
        self.idle_since.set(carried.idle_since);
        self.modern.set(carried.modern);
        self.next_id.set(carried.next_id);
        self.present_hash.replace(carried.hash_of_this_version());
    }

    /// Whether another program could go on with it as well: not one on its way out, or without its place.
    pub(super) fn may_be_taken_over(&self) -> bool {
        let closed = self.closed.is_up() || self.moved.get();
        !closed && self.has_place() && !self.life.borrow().is_over()
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id.get()
    }

    /// Whether any server has shown to know the modern era, if it is known.
    pub(super) fn knows_modern(&self) -> Option<bool> {
        self.modern.get()
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

    /// A server of this daemon has shown whether it knows the modern era. One that did so once is not
    /// forgotten for another that was killed before it could.
    pub(super) fn saw_era(&self, modern: bool) {
        self.modern
            .set(Some(modern || self.modern.get() == Some(true)));
    }

    /// Whether a server of this daemon has shown that it does not know the modern era.
    pub(super) fn is_known_to_be_legacy(&self) -> bool {
        self.modern.get() == Some(false)
    }

    /// A client counts from its connection on (lesson 30).
    pub(super) fn arrived(&self, link: &Rc<Link>) -> ClientId {
        let id = ClientId(self.next_id.replace(self.next_id.get() + 1));
        self.has(id, link);
        id
    }

    /// This client is here, under the number it has.
    pub(super) fn has(&self, id: ClientId, link: &Rc<Link>) {
        self.clients.borrow_mut().insert(id, Rc::clone(link));
        self.idle_since.set(None);
        self.life.borrow_mut().arrived(id, link.sight());
        self.stir();
    }

    pub(super) fn left(&self, id: ClientId) {
        self.clients.borrow_mut().remove(&id);
        if self.clients.borrow().is_empty() {
            self.idle_since.set(Some(start::now()));
        }
        self.life.borrow_mut().left(id);
        self.freed.notify_waiters();
        self.drained.notify_waiters();
        self.stir();
    }

    /// A client was heard.
    pub(super) fn heard(&self, id: ClientId, at: Instant) {
        self.life.borrow_mut().heard(id, at);
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

    pub(super) fn is_empty(&self) -> bool {
        self.clients.borrow().is_empty() && self.pool.is_empty()
    }

    /// Whether the lock's path still leads to our lock: if not, another daemon may be elected, and
    /// nothing at that path is ours.
    pub(super) fn look_after_place(&self) {
        self.looked.set(Instant::now());
        if self.moved.get() || self.has_place() {
            return;
        }
        self.moved.set(true);
        self.closed.raise();
        self.log
            .line("daemon.lock is not at its path any more: no new clients");
        self.pool.close_deserted();
        self.tell_all(&Control::Moved);
        self.stir();
    }

    pub(super) fn has_place(&self) -> bool {
        let lock = self.lock.borrow();
        lock.as_ref().is_some_and(Lock::is_at_its_path)
    }

    /// Tells all who understand it.
    pub(super) fn tell_all(&self, word: &Control) {
        for link in self.clients.borrow().values() {
            link.tell(word);
        }
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
