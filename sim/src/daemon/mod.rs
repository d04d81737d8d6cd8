//! The driver of the engine of `kennel daemon` on the simulated kernel.
//!
//! Servers are started and stopped in a separate turn, as by the run queue of `kennel daemon`.

mod check_end;
mod clients;
mod handover;
mod slots;

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::engine::daemon::{
    self as engine, Action, ExitAttempt, Replies, Report, Settings, SlotId,
};
use kennel_core::lifetime::{self, Owner};
use kennel_core::mux::ClientId;
use kennel_core::time::Moment;

use crate::coverage::Situation;
use crate::kernel::{End, Kernel, Pid, PipeId, Record};
use clients::Client;
use handover::Handover;
use slots::Slot;

/// Maximum bytes of a line.
const MAX_LINE: usize = 1 << 20;

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
    /// A newer build is available; the daemon waits for a good moment.
    handover: Option<Handover>,
    /// Whether the engine knows that the owner is gone.
    owner_reported: bool,
    /// Since when there are no clients, counted independently of the engine.
    pub(crate) no_clients_since: Option<Moment>,
    owner_gone: Option<Moment>,
}

/// The phase of the daemon.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Started,
    /// It has `daemon.lock`, and waits for trees of an earlier daemon.
    Locked,
    /// It listens, and has written its record.
    Listening,
    Serving,
    /// It does not listen any more, but still has its locks.
    Closed,
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
            phase: Phase::Started,
            generation: 0,
            first: Some(first),
            report,
            alarm: kernel.now + alarm,
            engine: engine(kernel),
            clients: BTreeMap::new(),
            slots: BTreeMap::new(),
            handover: None,
            owner_reported: false,
            no_clients_since: Some(kernel.now),
            owner_gone: None,
        }
    }

    pub(crate) fn serves(&self) -> bool {
        self.phase == Phase::Serving
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        match self.phase {
            Phase::Started | Phase::Listening | Phase::Closed => true,
            Phase::Locked => !kernel.orphaned_trees() || self.alarm <= kernel.now,
            Phase::Serving => {
                kernel.has_waiting_connections(self.generation)
                    || self.clients.values().any(|it| it.is_ready(kernel))
                    || self
                        .slots
                        .iter()
                        .any(|(id, it)| self.slot_is_ready(*id, it, kernel))
                    || self.owner_exit_is_unreported(kernel)
                    || self.may_hand_over(kernel)
                    || self.wake(kernel).is_some_and(|at| at <= kernel.now)
            }
        }
    }

    pub(crate) fn wake(&self, kernel: &Kernel) -> Option<Moment> {
        match self.phase {
            Phase::Started | Phase::Locked | Phase::Listening => Some(self.alarm),
            Phase::Closed => None,
            Phase::Serving => {
                let handover = self.handover.as_ref();
                let handover = handover.and_then(|it| it.next_timeout(kernel.now));
                handover
                    .into_iter()
                    .chain(self.engine.next_timeout(kernel.now))
                    .min()
            }
        }
    }

    /// Does one thing that is ready; `false` once the process ends.
    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        match self.phase {
            Phase::Started | Phase::Locked | Phase::Listening => return self.start(kernel),
            // Its exit releases the locks.
            Phase::Closed => return false,
            Phase::Serving => {}
        }
        let sources: [fn(&mut Daemon, u64, &mut Kernel) -> bool; 5] = [
            Daemon::accept,
            Daemon::read_client,
            Daemon::advance_one_slot,
            Daemon::watch_owner,
            Daemon::hand_over,
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
            kernel.trace(self.pid, || "is not ready in time".to_owned());
            return false;
        }
        let (phase, what) = match self.phase {
            Phase::Started => {
                let free = kernel.try_daemon_lock(self.pid);
                let holder = kernel.daemon_lock().map(|pid| kernel.name(pid));
                kernel.check(free, || {
                    format!("rule 1: a daemon is started beside {holder:?}")
                });
                if !free {
                    kernel.write_line(self.report, b"failed it is locked");
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
            Phase::Listening | Phase::Serving | Phase::Closed => {
                self.engine = engine(kernel);
                self.no_clients_since = Some(kernel.now);
                if let Some(first) = self.first.take() {
                    self.admit(first, kernel);
                }
                kernel.unlock_spawn(self.pid);
                kernel.write_line(self.report, b"ready");
                kernel.close_write(self.report);
                (Phase::Serving, "is ready")
            }
        };
        self.phase = phase;
        kernel.trace(self.pid, || what.to_owned());
        true
    }

    /// A person stops the daemon.
    pub(crate) fn stop(&mut self, kernel: &mut Kernel) {
        if self.phase == Phase::Serving {
            self.engine.handle_stop(kernel.now);
            self.engine.advance_life(kernel.now);
            self.carry_out(kernel);
        }
    }

    fn owner_exit_is_unreported(&self, kernel: &Kernel) -> bool {
        let owner = kernel.settings.owner;
        !self.owner_reported && owner.is_some_and(|owner| !kernel.alive(owner))
    }

    fn watch_owner(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let is_new = self.owner_exit_is_unreported(kernel);
        if is_new {
            self.owner_reported = true;
            self.owner_gone.get_or_insert(kernel.now);
            self.engine.handle_owner_gone(kernel.now);
        }
        is_new
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
                Action::DeclareServerLost { slot } => self.lose_server(slot, kernel),
                Action::CheckStopped { slot } => {
                    self.engine.handle_stopped_check(slot, None, kernel.now);
                }
                Action::Report(report) => self.handle_report(&report, kernel),
                Action::TryToExit => {
                    let tried = self.try_to_exit(kernel);
                    self.engine.handle_exit_attempt(tried, kernel.now);
                }
                Action::Exit => self.close_socket(kernel),
                Action::UsePipes { client } => self.use_pipes(client),
                Action::ClientsChanged { .. }
                | Action::UpdateTimer { .. }
                | Action::Note { .. }
                | Action::ArmWatchdog
                | Action::DisarmWatchdog => {}
            }
        }
    }

    fn handle_report(&self, report: &Report, kernel: &mut Kernel) {
        kernel.trace(self.pid, || format!("{report:?}"));
        match report {
            Report::Ending(reason) => self.check_end(*reason, kernel),
            Report::Hibernates { slot, .. } => {
                kernel.occurred(Situation::HibernatesShared);
                let slot = self.engine.slot(*slot);
                kernel.check(slot.is_some_and(|it| it.is_quiet()), || {
                    "a server hibernates while a request is pending".to_owned()
                });
            }
            _ => {}
        }
    }

    fn try_to_exit(&mut self, kernel: &mut Kernel) -> ExitAttempt {
        if !kernel.try_spawn_lock(self.pid) {
            return ExitAttempt::LockHeld;
        }
        if kernel.has_waiting_connections(self.generation) {
            while let Some(end) = kernel.accept(self.generation) {
                self.admit(end, kernel);
            }
            kernel.unlock_spawn(self.pid);
            return ExitAttempt::ClientsArrived;
        }
        self.close_socket(kernel);
        ExitAttempt::Exited
    }

    /// Removes socket and record.
    fn close_socket(&mut self, kernel: &mut Kernel) {
        let left = self.clients.len() + self.slots.len();
        kernel.check(left == 0, || {
            format!("a daemon exits with {left} clients and servers")
        });
        for late in kernel.close_listener(self.generation) {
            kernel.write_line(late.write, Replies::leaving_reply().trim_ascii_end());
            kernel.close(late);
        }
        if kernel.record.is_some_and(|record| record.pid == self.pid) {
            kernel.record = None;
        }
        self.phase = Phase::Closed;
        kernel.trace(self.pid, || "closes its listener".to_owned());
    }

    /// The files of its servers change.
    pub(crate) fn change_files(&mut self, kernel: &mut Kernel) {
        let running = self.slots.iter().filter(|(_, slot)| slot.is_running());
        let running: Vec<SlotId> = running.map(|(id, _)| *id).collect();
        for slot in running {
            self.engine.handle_files_changed(slot);
        }
        self.carry_out(kernel);
    }
}

fn engine(kernel: &Kernel) -> engine::Daemon {
    let settings = Settings {
        lifetime: lifetime::Policy {
            linger: Some(kernel.settings.linger),
            grace: kernel.settings.grace,
            max_idle: Some(lifetime::MAX_IDLE),
        },
        owner: match kernel.settings.owner {
            Some(_) => Owner::Watched,
            None => Owner::None,
        },
        max_line: MAX_LINE,
    };
    engine::Daemon::new(&settings, kernel.now)
}
