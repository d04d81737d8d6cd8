//! The end of a schedule, after all faults.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_testkit::Rng;

use super::World;
use crate::kernel::{Kernel, Pid, Status};
use crate::request_log::Tool;

impl World {
    /// Ends all faults. Checks that every remaining app is served, and that no process is left after all apps exited.
    pub(super) fn settle(&mut self) {
        let mut rng = Rng::of(7, "turns");
        self.kernel.trace(0, || "-- the faults are over".to_owned());
        self.kernel.shortage = None;
        let others: Vec<Pid> = self
            .shims
            .keys()
            .chain(self.apps.keys())
            .chain(self.servers.keys())
            .copied()
            .collect();
        for pid in others {
            if self.kernel.status(pid) == Status::Stopped {
                self.kernel.set(pid, Status::Runs);
            }
        }
        self.pass(Duration::from_secs(70), &mut rng);
        self.check_rules();
        self.check_service(&mut rng);
        if self.kernel.broken.is_none() {
            self.check_cleanup(&mut rng);
        }
    }

    /// The first time, a daemon that was stopped may cost a response; the second time, every request must succeed.
    pub(super) fn check_service(&mut self, rng: &mut Rng) {
        self.request_from_all(rng);
        let before = self.request_from_all(rng);
        for (pid, app) in &self.apps {
            let name = self.kernel.name(*pid);
            if let Some(before) = before.get(pid) {
                let served = app.results > *before;
                self.kernel
                    .check(served, || format!("{name} gets no responses any more"));
            }
            let open = self.kernel.request_log.open(*pid);
            let without_shim = self.without_shim.contains(pid);
            self.kernel.check(open.is_empty() || without_shim, || {
                format!("rule 4: {name} waits for the answers to {open:?}")
            });
        }
    }

    /// Sends a request from each app that can be served. Returns the number of results of each before.
    pub(super) fn request_from_all(&mut self, rng: &mut Rng) -> BTreeMap<Pid, u64> {
        self.kernel
            .trace(0, || "-- all apps send a request".to_owned());
        let mut before = BTreeMap::new();
        for (pid, app) in &mut self.apps {
            if !app.closed && !self.without_shim.contains(pid) {
                before.insert(*pid, app.results);
                app.call(Tool::Read, 10, &mut self.kernel);
            }
        }
        self.pass(Duration::from_secs(45), rng);
        before
    }

    pub(super) fn check_cleanup(&mut self, rng: &mut Rng) {
        self.kernel.trace(0, || "-- all apps exit".to_owned());
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
        // Longer than a session waits for the responses of its dedicated server.
        self.pass(self.kernel.settings.linger + Duration::from_secs(90), rng);
        self.check_rules();
        let left = |what: &str, count: usize, kernel: &mut Kernel| {
            kernel.check(count == 0, || {
                format!("rule 2: all apps are gone, and {count} {what} are left")
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
