//! Its end: when, and how.

use kennel_core::hello::Control;
use kennel_core::lifetime::{Reason, Sight};
use kennel_core::mux::ClientId;
use kennel_core::time::Moment;

use super::{Client, Daemon, LOOK_AGAIN, Phase};
use crate::kernel::Kernel;

impl Daemon {
    /// Its end is decided, and there is something to do about it.
    pub(super) fn may_part(&self, kernel: &Kernel) -> bool {
        let empty = self.clients.is_empty() && self.slots.is_empty();
        let may_try = empty && self.look_again.is_none_or(|at| at <= kernel.now);
        self.lifetime.verdict().is_some() && (!self.ending || may_try)
    }

    pub(super) fn owner_stirs(&self, kernel: &Kernel) -> bool {
        let owner = kernel.house.owner;
        self.owner_gone.is_none() && owner.is_some_and(|owner| !kernel.alive(owner))
    }

    /// Somebody asks for the end.
    pub(crate) fn stop(&mut self, kernel: &mut Kernel) {
        if self.phase == Phase::Serving {
            self.stop_asked = true;
            self.lifetime.stop_asked(kernel.now);
            let told: Vec<ClientId> = self.clients.keys().copied().collect();
            for id in told {
                self.tell(id, &Control::Stopped, kernel);
            }
        }
    }

    pub(super) fn look_at_owner(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let stirs = self.owner_stirs(kernel);
        if stirs {
            self.owner_gone = Some(kernel.now);
            self.lifetime.owner_gone(kernel.now);
        }
        stirs
    }

    /// Whether it goes on.
    pub(super) fn live(&mut self, kernel: &mut Kernel) -> bool {
        let now = kernel.now;
        self.lifetime.tick(now);
        let Some(verdict) = self.lifetime.verdict() else {
            self.ending = false;
            self.look_again = None;
            return true;
        };
        if !self.ending {
            self.ending = true;
            kernel.say(self.pid, || format!("ends: {}", verdict.reason));
            self.judge(verdict.reason, kernel);
            let all: Vec<ClientId> = self.clients.keys().copied().collect();
            for id in all {
                self.left(id, kernel);
            }
            for slot in &mut self.slots {
                slot.engine.close();
            }
        }
        if !self.clients.is_empty() || !self.slots.is_empty() {
            self.look_again = None;
            return true;
        }
        if !self.stop_asked && self.look_again.is_some_and(|at| at > now) {
            return true;
        }
        if !self.stop_asked && !kernel.try_spawn_lock(self.pid) {
            self.look_again = Some(now + LOOK_AGAIN);
            return true;
        }
        if !self.stop_asked && kernel.somebody_waits_at(self.generation) {
            while let Some(end) = kernel.accept(self.generation) {
                self.admit(end, kernel);
            }
            kernel.unlock_spawn(self.pid);
            return true;
        }
        self.close(kernel);
        true
    }

    /// Nobody finds it any more.
    fn close(&mut self, kernel: &mut Kernel) {
        for late in kernel.shut(self.generation) {
            kernel.write(late.write, &Control::Going.line());
            kernel.hang_up(late);
        }
        if kernel.record.is_some_and(|record| record.pid == self.pid) {
            kernel.record = None;
        }
        self.phase = Phase::Parting;
        kernel.say(self.pid, || "shuts its door".to_owned());
    }

    /// Rules 2 and 3: it ends when it is to end, and not before.
    pub(super) fn judge(&self, reason: Reason, kernel: &mut Kernel) {
        if reason == Reason::StopAsked {
            return;
        }
        let now = kernel.now;
        let house = kernel.house;
        let lives = |it: &&Client| it.hello.is_some() && kernel.alive(it.end.peer);
        let cut = self.clients.values().filter(lives).count();
        kernel.must(cut == 0 || house.sight == Sight::Unseen, || {
            format!("rule 3: {cut} clients that live are cut: {reason}")
        });
        if let Some(since) = self.nobody_since {
            let unowned = self.owner_gone.map(|at| at.max(since) + house.grace);
            let due = unowned.map_or(since + house.linger, |at| at.min(since + house.linger));
            kernel.must(now >= due, || {
                format!("rule 3: it ends too early: {reason}")
            });
        }
    }

    /// When it must be gone, if nobody comes.
    pub(crate) fn due(&self, kernel: &Kernel) -> Option<Moment> {
        let since = self.nobody_since.filter(|_| self.phase == Phase::Serving)?;
        let since = since.max(kernel.changed(self.pid));
        let linger = since + kernel.house.linger;
        let unowned = self.owner_gone.map(|at| at.max(since) + kernel.house.grace);
        Some(unowned.map_or(linger, |at| at.min(linger)))
    }
}
