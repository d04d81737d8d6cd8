//! The simulated world: runs its processes in turn, and checks the rules that must hold.

mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kennel_core::lifetime::Liveness;
use kennel_core::time::Moment;
use kennel_testkit::Rng;

use crate::app::{App, Era};
use crate::daemon::Daemon;
use crate::kernel::{Kernel, NewProcess, Pid, Status, WorldSettings};
use crate::plan::{Act, Role, Schedule};
use crate::server::Server;
use crate::shim::Shim;

/// Maximum number of apps.
const MAX_APPS: usize = 4;
/// Maximum time a daemon takes to end: the stop ladders of its servers, with a margin.
const STOP_TIME: Duration = Duration::from_secs(8);
/// Maximum turns at one moment; more are an endless loop.
const MAX_TURNS: u32 = 20_000;

pub(crate) struct World {
    pub(crate) kernel: Kernel,
    apps: BTreeMap<Pid, App>,
    /// The shim of each app.
    shim_of: BTreeMap<Pid, Pid>,
    /// Apps whose shim was killed: they get no more responses.
    without_shim: BTreeSet<Pid>,
    shims: BTreeMap<Pid, Shim>,
    daemons: BTreeMap<Pid, Daemon>,
    servers: BTreeMap<Pid, Server>,
    /// The daemon that gets no turns.
    starved: Option<Pid>,
}

impl World {
    pub(crate) fn new(schedule: &Schedule, traced: bool) -> World {
        let settings = WorldSettings {
            linger: schedule.linger,
            grace: Duration::from_secs(5),
            owner: None,
            liveness: match schedule.watchable {
                true => Liveness::Watchable,
                false => Liveness::Unwatchable,
            },
            in_turn: schedule.in_turn,
            shared: schedule.shared,
            hibernate: schedule.hibernate,
            room: schedule.room,
            pipes: schedule.pipes,
        };
        let mut kernel = Kernel::new(settings, traced);
        kernel.settings.owner = schedule.owned.then(|| kernel.begin("owner"));
        World {
            kernel,
            apps: BTreeMap::new(),
            shim_of: BTreeMap::new(),
            without_shim: BTreeSet::new(),
            shims: BTreeMap::new(),
            daemons: BTreeMap::new(),
            servers: BTreeMap::new(),
            starved: None,
        }
    }

    /// Plays the schedule until a rule is broken.
    pub(crate) fn play(&mut self, schedule: &Schedule) {
        for act in &schedule.acts {
            self.act(act);
            self.check_rules();
            if self.kernel.broken.is_some() {
                return;
            }
        }
        self.settle();
    }

    fn act(&mut self, act: &Act) {
        self.kernel.trace(0, || format!("-- {act}"));
        match act {
            Act::StartApp(era) => self.start_app(*era),
            Act::Request(nth, tool, millis) => {
                self.with_app(*nth, |app, kernel| app.call(*tool, *millis, kernel));
            }
            Act::WriteMalformed(nth) => {
                self.with_app(*nth, |app, kernel| app.write_malformed(kernel))
            }
            Act::Cancel(nth, which) => {
                self.with_app(*nth, |app, kernel| app.cancel(*which, kernel))
            }
            Act::CloseApp(nth) => self.with_app(*nth, |app, kernel| app.close(kernel)),
            Act::Kill(role, nth) => {
                if let Some(pid) = self.nth(*role, *nth) {
                    self.kill(pid);
                }
            }
            Act::Stop(role, nth) => self.set(*role, *nth, Status::Stopped),
            Act::Continue(role, nth) => self.set(*role, *nth, Status::Runs),
            Act::HangDaemon(nth) => self.set(Role::Daemon, *nth, Status::Hung),
            Act::StopDaemon(nth) => {
                if let Some(pid) = self.nth(Role::Daemon, *nth)
                    && self.kernel.runs(pid)
                    && let Some(daemon) = self.daemons.get_mut(&pid)
                {
                    daemon.stop(&mut self.kernel);
                }
            }
            Act::Upgrade(nth, starts) => {
                if let Some(pid) = self.nth(Role::Daemon, *nth)
                    && let Some(daemon) = self.daemons.get_mut(&pid)
                {
                    daemon.upgrade(*starts, &self.kernel);
                }
            }
            Act::ChangeFiles => {
                let kernel = &mut self.kernel;
                let runs = |(pid, _): &(&Pid, &mut Daemon)| kernel.runs(**pid);
                let daemons: Vec<&mut Daemon> = self
                    .daemons
                    .iter_mut()
                    .filter(runs)
                    .map(|(_, it)| it)
                    .collect();
                for daemon in daemons {
                    daemon.change_files(kernel);
                }
            }
            Act::Shortage(shortage) => self.kernel.shortage = *shortage,
            Act::Turns(turns, salt) => {
                let mut rng = Rng::of(*salt, "turns");
                for _ in 0..*turns {
                    if !self.step(&mut rng) {
                        break;
                    }
                }
            }
            Act::Starve(nth, length, salt) => {
                self.starved = self
                    .nth(Role::Daemon, *nth)
                    .filter(|pid| self.kernel.runs(*pid));
                self.pass(*length, &mut Rng::of(*salt, "turns"));
                if let Some(pid) = self.starved.take() {
                    // The time that it does not answer counts from now.
                    self.kernel.set(pid, Status::Runs);
                }
            }
            Act::Pass(length, salt) => self.pass(*length, &mut Rng::of(*salt, "turns")),
        }
    }

    fn start_app(&mut self, era: Era) {
        if self.apps.len() >= MAX_APPS {
            return;
        }
        let app = self.kernel.begin("app");
        let shim = self.kernel.begin("shim");
        let stdin = self.kernel.pipe(app, shim);
        let stdout = self.kernel.pipe(shim, app);
        self.apps.insert(app, App::new(app, era, stdin, stdout));
        let driver = Shim::new(shim, app, stdin, stdout, &self.kernel);
        self.shims.insert(shim, driver);
        self.shim_of.insert(app, shim);
    }

    fn with_app(&mut self, nth: usize, act: impl FnOnce(&mut App, &mut Kernel)) {
        if let Some(pid) = self.nth(Role::App, nth)
            && let Some(app) = self.apps.get_mut(&pid)
        {
            act(app, &mut self.kernel);
        }
    }

    /// A living process of this kind.
    fn nth(&self, role: Role, nth: usize) -> Option<Pid> {
        let all: Vec<Pid> = match role {
            Role::App => self.apps.keys().copied().collect(),
            Role::Shim => self.shims.keys().copied().collect(),
            Role::Daemon => self.daemons.keys().copied().collect(),
            Role::Server => self.servers.keys().copied().collect(),
            Role::Owner => self.kernel.settings.owner.into_iter().collect(),
        };
        let pid = *all.get(nth % all.len().max(1))?;
        self.kernel.alive(pid).then_some(pid)
    }

    /// Sets the status of a process, unless it hangs.
    fn set(&mut self, role: Role, nth: usize, status: Status) {
        if let Some(pid) = self.nth(role, nth)
            && self.kernel.status(pid) != Status::Hung
        {
            self.kernel.set(pid, status);
        }
    }

    fn kill(&mut self, pid: Pid) {
        self.kernel.trace(pid, || "is killed".to_owned());
        let its = self.shim_of.iter().find(|(_, shim)| **shim == pid);
        self.without_shim.extend(its.map(|(app, _)| *app));
        self.remove(pid);
    }

    /// Removes a process that ended.
    fn remove(&mut self, pid: Pid) {
        self.kernel.end(pid);
        self.apps.remove(&pid);
        self.shims.remove(&pid);
        self.daemons.remove(&pid);
        self.servers.remove(&pid);
    }

    /// Runs one process that has something to do; `false` if there is none.
    fn step(&mut self, rng: &mut Rng) -> bool {
        self.kernel.end_due_trees();
        self.start_new_processes();
        let ready = self.ready();
        if ready.is_empty() {
            return false;
        }
        let pid = ready[rng.below(ready.len() as u64) as usize];
        self.turn(pid, rng.next_u64() >> 8);
        true
    }

    fn start_new_processes(&mut self) {
        for process in std::mem::take(&mut self.kernel.new_processes) {
            match process {
                NewProcess::Daemon {
                    pid,
                    first,
                    report,
                    alarm,
                } => {
                    let daemon = Daemon::new(pid, first, report, alarm, &self.kernel);
                    self.daemons.insert(pid, daemon);
                }
                NewProcess::Server { pid, stdin, stdout } => {
                    self.servers.insert(pid, Server::new(pid, stdin, stdout));
                }
            }
        }
        // Wardens and elections may have ended these.
        let kernel = &self.kernel;
        self.servers.retain(|pid, _| kernel.alive(*pid));
        self.daemons.retain(|pid, _| kernel.alive(*pid));
    }

    fn ready(&mut self) -> Vec<Pid> {
        let mut ready = Vec::new();
        for (pid, daemon) in &self.daemons {
            let is_ready = daemon.is_ready(&self.kernel);
            self.kernel.set_ready(*pid, is_ready);
            if is_ready && self.kernel.runs(*pid) && self.starved != Some(*pid) {
                ready.push(*pid);
            }
        }
        let kernel = &self.kernel;
        let runs = |pid: &Pid| kernel.runs(*pid);
        let apps = self
            .apps
            .iter()
            .filter(|(pid, it)| runs(pid) && it.is_ready(kernel));
        let shims = self
            .shims
            .iter()
            .filter(|(pid, it)| runs(pid) && it.is_ready(kernel));
        let servers = self
            .servers
            .iter()
            .filter(|(pid, it)| runs(pid) && it.is_ready(kernel));
        ready.extend(apps.map(|(pid, _)| *pid));
        ready.extend(shims.map(|(pid, _)| *pid));
        ready.extend(servers.map(|(pid, _)| *pid));
        ready
    }

    fn turn(&mut self, pid: Pid, salt: u64) {
        let kernel = &mut self.kernel;
        kernel.count_turn(pid);
        let goes_on = if let Some(app) = self.apps.get_mut(&pid) {
            app.turn(salt, kernel);
            true
        } else if let Some(shim) = self.shims.get_mut(&pid) {
            shim.turn(salt, kernel)
        } else if let Some(daemon) = self.daemons.get_mut(&pid) {
            daemon.turn(salt, kernel)
        } else if let Some(server) = self.servers.get_mut(&pid) {
            server.turn(salt, kernel);
            true
        } else {
            true
        };
        if !goes_on {
            self.kernel.trace(pid, || "exits".to_owned());
            self.remove(pid);
        }
    }

    /// Runs all processes for this length of virtual time.
    fn pass(&mut self, length: Duration, rng: &mut Rng) {
        let until = self.kernel.now + length;
        loop {
            let mut turns = 0;
            while self.step(rng) {
                turns += 1;
                if turns > MAX_TURNS {
                    self.kernel
                        .check(false, || "endless loop at one moment".to_owned());
                }
                if self.kernel.broken.is_some() {
                    return;
                }
            }
            match self.next_wake() {
                Some(at) if at <= until => self.kernel.now = at,
                _ => {
                    self.kernel.now = until;
                    return;
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Moment> {
        let kernel = &self.kernel;
        let runs = |pid: &Pid| kernel.runs(*pid);
        let shims = self.shims.iter().filter(|(pid, _)| runs(pid));
        let has_turns = |pid: &Pid| runs(pid) && self.starved != Some(*pid);
        let daemons = self.daemons.iter().filter(|(pid, _)| has_turns(pid));
        let servers = self.servers.iter().filter(|(pid, _)| runs(pid));
        let wakes = shims
            .filter_map(|(_, shim)| shim.wake())
            .chain(daemons.filter_map(|(_, daemon)| daemon.wake(kernel)))
            .chain(servers.filter_map(|(_, server)| server.wake()))
            .chain(kernel.next_tree_end());
        wakes.filter(|at| *at > kernel.now).min()
    }

    /// Checks the rules that hold at any moment.
    fn check_rules(&mut self) {
        let serving: Vec<Pid> = self
            .daemons
            .iter()
            .filter(|(pid, it)| it.serves() && self.kernel.alive(**pid))
            .map(|(pid, _)| *pid)
            .collect();
        self.kernel.check(serving.len() <= 1, || {
            format!("rule 1: daemons {serving:?} serve")
        });
        for pid in serving {
            let waits = self.daemons.get(&pid);
            let waits = waits.is_some_and(|it| it.hand_over_is_late(&self.kernel));
            self.kernel
                .check(!waits, || format!("a newer build waits for daemon {pid}"));
            let late = self.daemons.get(&pid).and_then(|it| it.due(&self.kernel));
            let late = late.is_some_and(|due| self.kernel.now > due + STOP_TIME);
            let late = late && self.kernel.runs(pid);
            self.kernel.check(!late, || {
                format!("rule 2: daemon {pid} serves no client and has not ended")
            });
        }
    }
}
