//! When the daemon ends, and how: nobody came back, its owner is gone, somebody asked, its place is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::hello::Control;
use kennel_core::lifetime::{ClientId, Lifetime, Owner, Policy, Reason, Sight};
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::lock::{Lock, LockError, Mode};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::signals::Signals;
use kennel_sys::tree;

use super::house::House;
use super::state::STATE;
use super::tasks::{Descriptor, first_of, moments};
use super::watchdog::Watchdog;
use super::{accept, watch};
use crate::meeting::SPAWN_LOCK;

/// When to look again at a lock that somebody else holds: a flock is no event.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long a client has to take its last line.
const LAST_LINE: Duration = Duration::from_secs(1);
/// How long an end may take beyond the ladder before the watchdog makes it one.
const STUCK: Duration = Duration::from_secs(5);

/// The daemon's lifetime, on the clock.
pub(super) struct Life {
    lifetime: Lifetime,
    policy: Policy,
    owner: Option<Identity>,
    owner_gone: bool,
    /// Somebody asked for the end: no arrival makes up for that.
    stop_asked: bool,
    start: Instant,
}

impl Life {
    pub(super) fn begin(policy: Policy, owner: Option<Identity>) -> Life {
        Life {
            lifetime: Lifetime::new(policy, watching(owner.as_ref()), Moment::START),
            policy,
            owner,
            owner_gone: false,
            stop_asked: false,
            start: Instant::now(),
        }
    }

    /// A client is there. An end that is not over yet is none: life begins anew.
    pub(super) fn arrived(&mut self, id: ClientId, sight: Sight) {
        let now = self.now();
        if self.lifetime.verdict().is_some() && !self.stop_asked {
            let owner = watching(self.owner.as_ref());
            self.lifetime = Lifetime::new(self.policy, owner, now);
            if self.owner_gone {
                self.lifetime.owner_gone(now);
            }
        }
        self.lifetime.client_attached(id, sight, now);
    }

    /// Its process became known.
    pub(super) fn seen(&mut self, id: ClientId) {
        self.lifetime.client_attached(id, Sight::Seen, self.now());
    }

    pub(super) fn left(&mut self, id: ClientId) {
        self.lifetime.client_gone(id, self.now());
    }

    pub(super) fn heard(&mut self, id: ClientId, at: Instant) {
        self.lifetime.traffic(id, self.moment(at));
    }

    /// How long a server outlives its last client; `None`: for ever.
    pub(super) fn linger(&self) -> Option<Duration> {
        self.policy.linger
    }

    /// Where it stands, in words.
    pub(super) fn state(&self) -> String {
        self.lifetime.state().to_string()
    }

    /// The owner's pid, for people.
    pub(super) fn owner(&self) -> Option<u32> {
        self.owner.map(|owner| owner.pid())
    }

    pub(super) fn owner_identity(&self) -> Option<Identity> {
        self.owner
    }

    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether its end is decided.
    pub(super) fn is_over(&self) -> bool {
        self.stop_asked || self.lifetime.verdict().is_some()
    }

    fn owner_is_gone(&mut self) {
        self.owner_gone = true;
        self.lifetime.owner_gone(self.now());
    }

    fn stop(&mut self) {
        self.stop_asked = true;
        self.lifetime.stop_asked(self.now());
    }

    /// Why it is over, if it is; else until when nothing but time can end it.
    fn look(&mut self) -> Result<Option<Instant>, Reason> {
        self.lifetime.tick(self.now());
        match self.lifetime.verdict() {
            _ if self.stop_asked => Err(Reason::StopAsked),
            Some(verdict) => Err(verdict.reason),
            None => Ok(self
                .lifetime
                .deadline()
                .map(|deadline| self.start + (deadline - Moment::START))),
        }
    }

    fn now(&self) -> Moment {
        self.moment(Instant::now())
    }

    fn moment(&self, at: Instant) -> Moment {
        Moment::START + at.saturating_duration_since(self.start)
    }
}

fn watching(owner: Option<&Identity>) -> Owner {
    owner.map_or(Owner::None, |_| Owner::Watched)
}

/// Catches what asks for the end, before anybody knows whom to ask.
pub(super) fn catch_signals() -> io::Result<Signals> {
    // Nobody's terminal is ours: a hangup is caught, and means nothing.
    Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
}

/// Reaps what outlived a server and became our child, and what that leaves to us.
pub(super) async fn reap_children(house: Rc<House>) {
    // Not among the signals that ask for the end: an upgrade waits for none of these.
    let signals = Signals::catch(&[Signal::CHILD]);
    let Ok(signals) = signals else {
        return house.log.line("cannot hear of the end of children");
    };
    let Ok(news) = Descriptor::of_input(signals.as_fd()) else {
        return house.log.line("cannot hear of the end of children");
    };
    loop {
        // Also at first: the program that we were before an upgrade may not have heard of the last.
        tree::reap_kept(house.upgrade.asked.get().as_slice());
        news.readable().await;
        while signals.next().is_some() {}
        news.was_read();
    }
}

/// Returns when the daemon is gone in all but its process.
pub(super) async fn live(house: &Rc<House>) {
    let signals = &house.signals;
    let mut owner = watched(house);
    let Ok(news) = Descriptor::of_input(signals.as_fd()) else {
        house.log.line("cannot hear signals");
        return leave(house, None);
    };
    let mut ending = None;
    loop {
        house.look_after_place();
        let look = house.life.borrow_mut().look();
        let wake = match look {
            _ if house.moved.get() && house.is_empty() => return leave(house, None),
            Ok(deadline) => {
                ending = None;
                deadline
            }
            Err(Reason::StopAsked) => return stop(house).await,
            Err(reason) => {
                if ending.is_none() {
                    house.log.line(format_args!("ending: {reason}"));
                    dismiss(house);
                    house.pool.close_all();
                    ending = Some(armed(house));
                }
                match house.is_empty().then(|| Parting::try_it(house)) {
                    None => None,
                    Some(Parting::Gone) => return,
                    Some(Parting::Arrivals) => continue,
                    Some(Parting::Contended) => {
                        // Held up by others: not stuck.
                        ending = Some(armed(house));
                        Some(Instant::now() + LOOK_AGAIN)
                    }
                }
            }
        };
        first_of! {
            () = asked(signals, &news) => {
                house.log.line("asked to stop");
                house.life.borrow_mut().stop();
            },
            () = end_of_owner(owner.as_ref(), house.sweep) => {
                owner = None;
                house.log.line("the owner is gone");
                house.life.borrow_mut().owner_is_gone();
            },
            () = house.stirred.notified() => {},
            () = moments::until(wake) => {},
        }
    }
}

fn watched(house: &House) -> Option<ProcessRef> {
    let mut life = house.life.borrow_mut();
    let owner = life.owner?;
    match ProcessRef::find(&owner) {
        Ok(Some(process)) => {
            let pid = owner.pid();
            house.log.line(format_args!("bound to its owner {pid}"));
            Some(process)
        }
        Ok(None) => {
            house.log.line("the owner is gone already");
            life.owner_is_gone();
            None
        }
        // Ambiguous means alive.
        Err(error) => {
            house
                .log
                .line(format_args!("cannot watch the owner: {error}"));
            None
        }
    }
}

async fn end_of_owner(owner: Option<&ProcessRef>, sweep: Duration) {
    match owner {
        Some(owner) => watch::end_of(owner, sweep).await,
        None => std::future::pending().await,
    }
}

/// How a parting went.
enum Parting {
    Gone,
    /// Somebody was in the queue, and is let in.
    Arrivals,
    /// Somebody holds `spawn.lock`: they are on their way to us.
    Contended,
}

impl Parting {
    /// Nobody is here: goes, unless somebody is at the door.
    fn try_it(house: &Rc<House>) -> Parting {
        let spawn = match Lock::acquire(house.meeting.dir(), SPAWN_LOCK, Mode::Exclusive) {
            Ok(lock) => Some(lock),
            Err(LockError::Held { .. }) => return Parting::Contended,
            Err(error) => {
                house.log.line(format_args!("going without: {error}"));
                None
            }
        };
        if accept::those_waiting(house) > 0 {
            return Parting::Arrivals;
        }
        leave(house, spawn);
        Parting::Gone
    }
}

/// Somebody asked: all are told, their servers stopped, whoever they are.
async fn stop(house: &Rc<House>) {
    let _armed = armed(house);
    house.closed.raise();
    house.tell_all(&Control::Stopped);
    for link in house.clients.borrow().values() {
        link.finish();
    }
    let all_gone = async {
        while !house.clients.borrow().is_empty() {
            house.stirred.notified().await;
        }
    };
    moments::within(LAST_LINE, all_gone).await;
    dismiss(house);
    house.pool.close_all();
    while !house.is_empty() {
        house.stirred.notified().await;
    }
    leave(house, None);
}

fn armed(house: &House) -> Watchdog {
    let aside = house.log.aside();
    Watchdog::arm(house.pool.ladder() + STUCK, move || {
        if let Some(log) = aside {
            log.line("stuck while ending: ended at once");
        }
    })
}

/// Shows out whoever is still here: phantoms, and those who do not take their last line.
fn dismiss(house: &House) {
    for link in house.clients.borrow().values() {
        link.left.raise();
    }
}

/// Removes what is ours, and gives the locks up. Where our place is gone, nothing there is ours.
fn leave(house: &House, spawn: Option<Lock>) {
    house.closed.raise();
    if house.has_place() {
        let socket = format!("{}.sock", house.generation);
        let removed = house.meeting.dir().unlink(socket);
        accept::turn_away(house);
        let removed = removed.and_then(|_| house.meeting.remove_record());
        let removed = removed.and_then(|()| house.meeting.dir().unlink(STATE).map(drop));
        if let Err(error) = removed {
            house.log.line(error);
        }
    } else {
        accept::turn_away(house);
    }
    house.log.line("gone");
    drop(house.lock.take());
    drop(spawn);
}

/// Waits for a signal that asks for the end.
async fn asked(signals: &Signals, news: &Descriptor<BorrowedFd<'_>>) {
    loop {
        news.readable().await;
        match signals.next() {
            Some(Signal::HUP) => {}
            Some(_) => return,
            None => news.was_read(),
        }
    }
}
