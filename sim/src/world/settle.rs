//! The end of a schedule: the faults are over.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_testkit::Rng;

use super::World;
use crate::books::Tool;
use crate::kernel::{Kernel, Pid, Status};

impl World {
    /// The faults are over: whoever is left is served, and when nobody is left, nothing is.
    pub(super) fn settle(&mut self) {
        let mut dice = Rng::of(7, "turns");
        self.kernel.say(0, || "-- the faults are over".to_owned());
        self.kernel.shortage = None;
        let others: Vec<Pid> = self
            .shims
            .keys()
            .chain(self.servers.keys())
            .copied()
            .collect();
        for pid in others {
            if self.kernel.status(pid) == Status::Stopped {
                self.kernel.set(pid, Status::Runs);
            }
        }
        self.pass(Duration::from_secs(70), &mut dice);
        self.look();
        self.serve_all(&mut dice);
        if self.kernel.broken.is_none() {
            self.leave_nothing(&mut dice);
        }
    }

    /// The first time, a daemon that was stopped may cost an answer; the second time, nothing is in the way.
    pub(super) fn serve_all(&mut self, dice: &mut Rng) {
        self.ask_all(dice);
        let before = self.ask_all(dice);
        for (pid, app) in &self.apps {
            let name = self.kernel.name(*pid);
            if let Some(before) = before.get(pid) {
                let served = app.results > *before;
                self.kernel
                    .must(served, || format!("{name} is not served any more"));
            }
            let open = self.kernel.books.open(*pid);
            let bereft = self.bereft.contains(pid);
            self.kernel.must(open.is_empty() || bereft, || {
                format!("rule 4: {name} waits for the answers to {open:?}")
            });
        }
    }

    /// What each of those who can be served had got before.
    pub(super) fn ask_all(&mut self, dice: &mut Rng) -> BTreeMap<Pid, u64> {
        self.kernel
            .say(0, || "-- everybody asks once more".to_owned());
        let mut before = BTreeMap::new();
        for (pid, app) in &mut self.apps {
            if !app.closed && !self.bereft.contains(pid) {
                before.insert(*pid, app.results);
                app.ask(Tool::Read, 10, &mut self.kernel);
            }
        }
        self.pass(Duration::from_secs(45), dice);
        before
    }

    pub(super) fn leave_nothing(&mut self, dice: &mut Rng) {
        self.kernel.say(0, || "-- everybody leaves".to_owned());
        let apps: Vec<Pid> = self.apps.keys().copied().collect();
        for (nth, pid) in apps.into_iter().enumerate() {
            match nth % 2 {
                0 => self.kill(pid),
                _ => self
                    .apps
                    .get_mut(&pid)
                    .into_iter()
                    .for_each(|app| app.close(&mut self.kernel)),
            }
        }
        let daemons: Vec<Pid> = self.daemons.keys().copied().collect();
        for pid in daemons {
            match self.kernel.status(pid) {
                Status::Hung => self.kill(pid),
                _ => self.kernel.set(pid, Status::Runs),
            }
        }
        // Longer than a session waits for the answers of its own server.
        self.pass(self.kernel.house.linger + Duration::from_secs(90), dice);
        self.look();
        let left = |what: &str, count: usize, kernel: &mut Kernel| {
            kernel.must(count == 0, || {
                format!("rule 2: nobody is left, and {count} {what} are")
            });
        };
        left("shims", self.shims.len(), &mut self.kernel);
        left("daemons", self.daemons.len(), &mut self.kernel);
        let trees = self.kernel.trees().count();
        left("servers", trees, &mut self.kernel);
        let locks = self.kernel.spawn_lock_holders().count();
        left("holders of spawn.lock", locks, &mut self.kernel);
    }
}
