//! A daemon: a real [`Lifetime`], and the engine of a server slot for each of its servers, with the order of things that
//! `kennel daemon` has.

mod attend;
mod clients;
mod life;
mod slot;

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::engine::daemon::Restarts;
use kennel_core::hello::ClientHello;
use kennel_core::lifetime::{self, Lifetime, Owner};
use kennel_core::mux::ClientId;
use kennel_core::time::Moment;

use crate::kernel::{End, Kernel, Pid, PipeId, Record};
use slot::Slot;

const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) struct Daemon {
    pid: Pid,
    phase: Phase,
    generation: u32,
    first: Option<End>,
    report: PipeId,
    alarm: Moment,
    lifetime: Lifetime,
    stop_asked: bool,
    /// Its end is decided, and those who were here are shown out.
    ending: bool,
    look_again: Option<Moment>,
    clients: BTreeMap<ClientId, Client>,
    slots: Vec<Slot>,
    restarts: Restarts,
    next: u64,
    /// Since when nobody is here, counted apart from its own books.
    pub(crate) nobody_since: Option<Moment>,
    owner_gone: Option<Moment>,
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Begun,
    /// It has `daemon.lock`; what an earlier one left is to end first.
    Locked,
    /// It listens, and is on record.
    Listening,
    Serving,
    /// Its door is shut; it still has its locks.
    Parting,
}

struct Client {
    end: End,
    hello: Option<ClientHello>,
    place: Place,
    heard: u64,
    half_closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Opening,
    At(u64),
    Lost,
}

impl Daemon {
    pub(crate) fn new(
        pid: Pid,
        first: End,
        report: PipeId,
        alarm: Duration,
        kernel: &Kernel,
    ) -> Daemon {
        Daemon {
            pid,
            phase: Phase::Begun,
            generation: 0,
            first: Some(first),
            report,
            alarm: kernel.now + alarm,
            lifetime: life(kernel),
            stop_asked: false,
            ending: false,
            look_again: None,
            clients: BTreeMap::new(),
            slots: Vec::new(),
            restarts: Restarts::default(),
            next: 0,
            nobody_since: Some(kernel.now),
            owner_gone: None,
        }
    }

    pub(crate) fn serves(&self) -> bool {
        self.phase == Phase::Serving
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        match self.phase {
            Phase::Begun | Phase::Listening | Phase::Parting => true,
            Phase::Locked => !kernel.orphaned_trees() || self.alarm <= kernel.now,
            Phase::Serving => {
                kernel.somebody_waits_at(self.generation)
                    || self.clients.values().any(|it| it.stirs(kernel))
                    || self.slots.iter().any(|it| self.stirs(it, kernel))
                    || self.owner_stirs(kernel)
                    || self.may_part(kernel)
                    || self.wake(kernel).is_some_and(|at| at <= kernel.now)
            }
        }
    }

    pub(crate) fn wake(&self, kernel: &Kernel) -> Option<Moment> {
        match self.phase {
            Phase::Begun | Phase::Locked | Phase::Listening => return Some(self.alarm),
            Phase::Parting => return None,
            Phase::Serving => {}
        }
        let slots = self
            .slots
            .iter()
            .filter_map(|it| self.slot_wake(it, kernel));
        let life = match self.lifetime.verdict() {
            Some(_) => self.look_again,
            None => self.lifetime.deadline(),
        };
        slots.chain(life).min()
    }

    /// One of the things there are to do; `false` once it is over.
    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        match self.phase {
            Phase::Begun | Phase::Locked | Phase::Listening => return self.start(kernel),
            // With its end, its locks are free.
            Phase::Parting => return false,
            Phase::Serving => {}
        }
        let ways: [fn(&mut Daemon, u64, &mut Kernel) -> bool; 4] = [
            Daemon::let_in,
            Daemon::hear_clients,
            Daemon::attend,
            Daemon::look_at_owner,
        ];
        for nth in 0..ways.len() {
            if ways[(nth + salt as usize) % ways.len()](self, salt, kernel) {
                break;
            }
        }
        self.live(kernel)
    }

    fn start(&mut self, kernel: &mut Kernel) -> bool {
        if self.alarm <= kernel.now {
            kernel.say(self.pid, || "is not ready in time".to_owned());
            return false;
        }
        self.phase = match self.phase {
            Phase::Begun => {
                let free = kernel.try_daemon_lock(self.pid);
                let holder = kernel.daemon_lock().map(|pid| kernel.name(pid));
                kernel.must(free, || {
                    format!("rule 1: a daemon is started beside {holder:?}")
                });
                if !free {
                    kernel.write(self.report, b"failed it is locked");
                    return false;
                }
                Phase::Locked
            }
            Phase::Locked => {
                self.generation = kernel.listen(self.pid);
                kernel.record = Some(Record {
                    pid: self.pid,
                    generation: self.generation,
                });
                Phase::Listening
            }
            Phase::Listening | Phase::Serving | Phase::Parting => {
                self.lifetime = life(kernel);
                self.nobody_since = Some(kernel.now);
                if let Some(first) = self.first.take() {
                    self.admit(first, kernel);
                }
                kernel.unlock_spawn(self.pid);
                kernel.write(self.report, b"ready");
                kernel.close_write(self.report);
                Phase::Serving
            }
        };
        let phase = match self.phase {
            Phase::Begun => "begins",
            Phase::Locked => "has daemon.lock",
            Phase::Listening => "listens",
            Phase::Serving | Phase::Parting => "is ready",
        };
        kernel.say(self.pid, || phase.to_owned());
        true
    }

    /// Another program takes its place, with all that it has.
    pub(crate) fn upgrade(&mut self, kernel: &mut Kernel) {
        for slot in &mut self.slots {
            if let Err(why) = slot.is_carried_over() {
                kernel.must(false, || format!("a mux cannot be carried over: {why}"));
            }
        }
    }
}

impl Client {
    fn stirs(&self, kernel: &Kernel) -> bool {
        let hung_up = self.half_closed && kernel.is_deaf(self.end.write);
        let speaks = !self.half_closed && kernel.readable(self.end.read);
        !kernel.alive(self.end.peer) || hung_up || speaks
    }
}

fn life(kernel: &Kernel) -> Lifetime {
    let policy = lifetime::Policy {
        linger: Some(kernel.house.linger),
        grace: kernel.house.grace,
        max_idle: Some(lifetime::MAX_IDLE),
    };
    let owner = match kernel.house.owner {
        Some(_) => Owner::Watched,
        None => Owner::None,
    };
    Lifetime::new(policy, owner, kernel.now)
}
