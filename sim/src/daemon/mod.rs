//! A driver for the engine of `kennel daemon`, on a kernel that is a value.
//!
//! What the engine wants to be started or stopped is done in a turn of its own, as by the tasks of `kennel daemon`.

mod clients;
mod judge;
mod slots;

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::engine::daemon::{self as engine, Action, LeaveTried, Report, Settings, SlotId};
use kennel_core::hello::Control;
use kennel_core::lifetime::{self, Owner};
use kennel_core::mux::ClientId;
use kennel_core::time::Moment;

use crate::kernel::{End, Kernel, Pid, PipeId, Record};
use clients::Client;
use slots::Slot;

pub(crate) struct Daemon {
    pid: Pid,
    phase: Phase,
    generation: u32,
    first: Option<End>,
    report: PipeId,
    alarm: Moment,
    engine: engine::Daemon,
    clients: BTreeMap<ClientId, Client>,
    slots: BTreeMap<SlotId, Slot>,
    /// The engine knows that the owner is gone.
    owner_reported: bool,
    /// Since when nobody is here, counted apart from the engine.
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
    Left,
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
            engine: engine(kernel),
            clients: BTreeMap::new(),
            slots: BTreeMap::new(),
            owner_reported: false,
            nobody_since: Some(kernel.now),
            owner_gone: None,
        }
    }

    pub(crate) fn serves(&self) -> bool {
        self.phase == Phase::Serving
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        match self.phase {
            Phase::Begun | Phase::Listening | Phase::Left => true,
            Phase::Locked => !kernel.orphaned_trees() || self.alarm <= kernel.now,
            Phase::Serving => {
                kernel.somebody_waits_at(self.generation)
                    || self.clients.values().any(|it| it.is_ready(kernel))
                    || self
                        .slots
                        .iter()
                        .any(|(id, it)| self.is_slot_ready(*id, it, kernel))
                    || self.owner_is_news(kernel)
                    || self.wake(kernel).is_some_and(|at| at <= kernel.now)
            }
        }
    }

    pub(crate) fn wake(&self, kernel: &Kernel) -> Option<Moment> {
        match self.phase {
            Phase::Begun | Phase::Locked | Phase::Listening => Some(self.alarm),
            Phase::Left => None,
            Phase::Serving => self.engine.next_timeout(kernel.now),
        }
    }

    /// One of the things there are to do; `false` once it is over.
    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        match self.phase {
            Phase::Begun | Phase::Locked | Phase::Listening => return self.start(kernel),
            // With its end, its locks are free.
            Phase::Left => return false,
            Phase::Serving => {}
        }
        let sources: [fn(&mut Daemon, u64, &mut Kernel) -> bool; 4] = [
            Daemon::accept,
            Daemon::read_client,
            Daemon::attend_slot,
            Daemon::watch_owner,
        ];
        for nth in 0..sources.len() {
            if sources[(nth + salt as usize) % sources.len()](self, salt, kernel) {
                break;
            }
        }
        self.carry_out(kernel);
        self.engine.advance(kernel.now);
        self.carry_out(kernel);
        true
    }

    fn start(&mut self, kernel: &mut Kernel) -> bool {
        if self.alarm <= kernel.now {
            kernel.say(self.pid, || "is not ready in time".to_owned());
            return false;
        }
        let (phase, what) = match self.phase {
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
                (Phase::Locked, "has daemon.lock")
            }
            Phase::Locked => {
                self.generation = kernel.listen(self.pid);
                kernel.record = Some(Record {
                    pid: self.pid,
                    generation: self.generation,
                });
                (Phase::Listening, "listens")
            }
            Phase::Listening | Phase::Serving | Phase::Left => {
                self.engine = engine(kernel);
                self.nobody_since = Some(kernel.now);
                if let Some(first) = self.first.take() {
                    self.admit(first, kernel);
                }
                kernel.unlock_spawn(self.pid);
                kernel.write(self.report, b"ready");
                kernel.close_write(self.report);
                (Phase::Serving, "is ready")
            }
        };
        self.phase = phase;
        kernel.say(self.pid, || what.to_owned());
        true
    }

    /// Somebody asks for the end.
    pub(crate) fn stop(&mut self, kernel: &mut Kernel) {
        if self.phase == Phase::Serving {
            self.engine.stop_asked(kernel.now);
            self.engine.advance_life(kernel.now);
            self.carry_out(kernel);
        }
    }

    fn owner_is_news(&self, kernel: &Kernel) -> bool {
        let owner = kernel.house.owner;
        !self.owner_reported && owner.is_some_and(|owner| !kernel.alive(owner))
    }

    fn watch_owner(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let is_news = self.owner_is_news(kernel);
        if is_news {
            self.owner_reported = true;
            self.owner_gone.get_or_insert(kernel.now);
            self.engine.owner_gone(kernel.now);
        }
        is_news
    }

    fn carry_out(&mut self, kernel: &mut Kernel) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::ToClient { client, line } => self.write(client, &line, kernel),
                Action::ToClients { clients, line } => {
                    for client in clients {
                        self.write(client, &line, kernel);
                    }
                }
                Action::Tell { client, control } => self.write(client, &control.line(), kernel),
                Action::Finish { client } => self.finish(client, kernel),
                Action::Disconnect { client } => self.disconnect(client, kernel),
                Action::OpenSlot { slot, client } => {
                    let hello = self.clients.get(&client).and_then(|it| it.hello.as_ref());
                    let session = hello.map_or("", |hello| &hello.session);
                    self.slots.insert(slot, Slot::of(session));
                }
                Action::ToServer {
                    slot,
                    lane,
                    line,
                    by,
                } => self.write_to_server(slot, lane, line, by, kernel),
                Action::StartServer { slot } => self.slots.entry(slot).or_default().start = true,
                Action::StopServer { slot } => self.slots.entry(slot).or_default().stop = true,
                Action::LoseServer { slot } => self.lose_server(slot, kernel),
                Action::CheckStopped { slot } => {
                    self.engine.stopped_checked(slot, None, kernel.now);
                }
                Action::Report(report) => self.hear_report(&report, kernel),
                Action::TryToLeave => {
                    let tried = self.try_to_leave(kernel);
                    self.engine.leave_tried(tried, kernel.now);
                }
                Action::Leave => self.leave(kernel),
                Action::UsePipes { .. }
                | Action::Settled { .. }
                | Action::Note { .. }
                | Action::ArmWatchdog
                | Action::DisarmWatchdog => {}
            }
        }
    }

    fn hear_report(&self, report: &Report, kernel: &mut Kernel) {
        kernel.say(self.pid, || format!("{report:?}"));
        match report {
            Report::Ending(reason) => self.judge_end(*reason, kernel),
            Report::Hibernates { slot, .. } => {
                let slot = self.engine.slot(*slot);
                kernel.must(slot.is_some_and(|it| it.is_quiet()), || {
                    "a server hibernates under a request".to_owned()
                });
            }
            _ => {}
        }
    }

    fn try_to_leave(&mut self, kernel: &mut Kernel) -> LeaveTried {
        if !kernel.try_spawn_lock(self.pid) {
            return LeaveTried::Contended;
        }
        if kernel.somebody_waits_at(self.generation) {
            while let Some(end) = kernel.accept(self.generation) {
                self.admit(end, kernel);
            }
            kernel.unlock_spawn(self.pid);
            return LeaveTried::Arrivals;
        }
        self.leave(kernel);
        LeaveTried::Left
    }

    /// Nobody finds it any more.
    fn leave(&mut self, kernel: &mut Kernel) {
        let left = self.clients.len() + self.slots.len();
        kernel.must(left == 0, || {
            format!("a daemon leaves with {left} clients and servers")
        });
        for late in kernel.shut(self.generation) {
            kernel.write(late.write, &Control::Going.line());
            kernel.hang_up(late);
        }
        if kernel.record.is_some_and(|record| record.pid == self.pid) {
            kernel.record = None;
        }
        self.phase = Phase::Left;
        kernel.say(self.pid, || "shuts its door".to_owned());
    }

    /// The files of its servers change.
    pub(crate) fn change_files(&mut self, kernel: &mut Kernel) {
        let running = self.slots.iter().filter(|(_, slot)| slot.is_running());
        let running: Vec<SlotId> = running.map(|(id, _)| *id).collect();
        for slot in running {
            self.engine.files_changed(slot);
        }
        self.carry_out(kernel);
    }

    /// Another program takes its place, with all that it has, unless something of it is ending.
    pub(crate) fn upgrade(&mut self, kernel: &mut Kernel) {
        let is_ending = self.slots.values().any(|slot| !slot.may_be_handed_over());
        if self.phase != Phase::Serving || !self.engine.may_hand_over() || is_ending {
            return;
        }
        match self.restored(kernel) {
            Ok((engine, slots)) => {
                kernel.say(self.pid, || "becomes another build".to_owned());
                (self.engine, self.slots) = (engine, slots);
                self.owner_reported = false;
                if self.clients.is_empty() {
                    self.nobody_since = Some(kernel.now);
                }
                self.carry_out(kernel);
            }
            Err(why) => kernel.must(false, || format!("a state cannot be restored: {why}")),
        }
    }

    /// What a newer build makes of the state.
    fn restored(
        &mut self,
        kernel: &Kernel,
    ) -> Result<(engine::Daemon, BTreeMap<SlotId, Slot>), String> {
        let mut new = engine(kernel);
        new.restore(self.engine.next_client(), self.engine.knows_modern());
        let ids: Vec<SlotId> = self.engine.slots().map(|slot| slot.id()).collect();
        let mut slots = BTreeMap::new();
        for id in ids {
            let slot = self.slots.remove(&id).unwrap_or_default();
            let snapshot = self.engine.slot(id).ok_or("a slot is gone")?;
            let snapshot = slot.snapshot(snapshot)?;
            let id = new.restore_slot(snapshot, &slot.session, kernel.now);
            slots.insert(id, slot);
        }
        for (id, client) in &self.clients {
            let snapshot = self.engine.client_snapshot(*id).ok_or("a client is gone")?;
            let snapshot = serde_json::to_string(&snapshot).map_err(|it| it.to_string())?;
            let snapshot = serde_json::from_str(&snapshot).map_err(|it| it.to_string())?;
            let introduction = client.introduction();
            let sight = kernel.house.sight;
            new.restore_client(*id, snapshot, introduction, sight, kernel.now)
                .ok_or("a client's slot is gone")?;
        }
        Ok((new, slots))
    }
}

fn engine(kernel: &Kernel) -> engine::Daemon {
    let settings = Settings {
        lifetime: lifetime::Policy {
            linger: Some(kernel.house.linger),
            grace: kernel.house.grace,
            max_idle: Some(lifetime::MAX_IDLE),
        },
        owner: match kernel.house.owner {
            Some(_) => Owner::Watched,
            None => Owner::None,
        },
        max_line: 1 << 20,
    };
    engine::Daemon::new(&settings, kernel.now)
}
