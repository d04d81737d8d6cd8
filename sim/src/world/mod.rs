//! A world: who is in it, whose turn it is, and what must be true in the end.

mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kennel_core::lifetime::Sight;
use kennel_core::time::Moment;
use kennel_testkit::Rng;

use crate::app::{App, Era};
use crate::daemon::Daemon;
use crate::kernel::{Birth, House, Kernel, Pid, Status};
use crate::plan::{Act, Schedule, Who};
use crate::server::Server;
use crate::shim::Shim;

/// How many apps there are at most.
const APPS: usize = 4;
/// What a daemon whose time is over may take: its servers' ladders, and some.
const LADDER: Duration = Duration::from_secs(8);
/// Whoever needs more turns than this in one moment goes round in circles.
const MOST_TURNS: u32 = 20_000;

pub(crate) struct World {
    pub(crate) kernel: Kernel,
    apps: BTreeMap<Pid, App>,
    /// The shim of each app.
    shim_of: BTreeMap<Pid, Pid>,
    /// Apps whose shim was killed: nobody can answer them any more.
    bereft: BTreeSet<Pid>,
    shims: BTreeMap<Pid, Shim>,
    daemons: BTreeMap<Pid, Daemon>,
    servers: BTreeMap<Pid, Server>,
    /// The daemon that gets no turn.
    starved: Option<Pid>,
}

impl World {
    pub(crate) fn new(schedule: &Schedule, traced: bool) -> World {
        let house = House {
            linger: schedule.linger,
            grace: Duration::from_secs(5),
            owner: None,
            sight: match schedule.seen {
                true => Sight::Seen,
                false => Sight::Unseen,
            },
            in_turn: schedule.in_turn,
            shared: schedule.shared,
            hibernate: schedule.hibernate,
        };
        let mut kernel = Kernel::new(house, traced);
        kernel.house.owner = schedule.owned.then(|| kernel.begin("owner"));
        World {
            kernel,
            apps: BTreeMap::new(),
            shim_of: BTreeMap::new(),
            bereft: BTreeSet::new(),
            shims: BTreeMap::new(),
            daemons: BTreeMap::new(),
            servers: BTreeMap::new(),
            starved: None,
        }
    }

    /// Plays all of it, to the first rule that is broken.
    pub(crate) fn play(&mut self, schedule: &Schedule) {
        for act in &schedule.acts {
            self.act(act);
            self.look();
            if self.kernel.broken.is_some() {
                return;
            }
        }
        self.settle();
    }

    fn act(&mut self, act: &Act) {
        self.kernel.say(0, || format!("-- {act}"));
        match act {
            Act::Come(era) => self.come(*era),
            Act::Ask(nth, tool, millis) => {
                self.with_app(*nth, |app, kernel| app.ask(*tool, *millis, kernel));
            }
            Act::Cancel(nth, which) => {
                self.with_app(*nth, |app, kernel| app.cancel(*which, kernel))
            }
            Act::Close(nth) => self.with_app(*nth, |app, kernel| app.close(kernel)),
            Act::Kill(who, nth) => {
                if let Some(pid) = self.nth(*who, *nth) {
                    self.kill(pid);
                }
            }
            Act::Stop(who, nth) => self.set(*who, *nth, Status::Stopped),
            Act::Thaw(who, nth) => self.set(*who, *nth, Status::Runs),
            Act::Hang(nth) => self.set(Who::Daemon, *nth, Status::Hung),
            Act::End(nth) => {
                if let Some(pid) = self.nth(Who::Daemon, *nth)
                    && self.kernel.runs(pid)
                    && let Some(daemon) = self.daemons.get_mut(&pid)
                {
                    daemon.stop(&mut self.kernel);
                }
            }
            Act::Upgrade(nth) => {
                if let Some(pid) = self.nth(Who::Daemon, *nth)
                    && let Some(daemon) = self.daemons.get_mut(&pid)
                {
                    daemon.upgrade(&mut self.kernel);
                }
            }
            Act::Change => {
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
            Act::Lack(shortage) => self.kernel.shortage = *shortage,
            Act::Turns(turns, salt) => {
                let mut dice = Rng::of(*salt, "turns");
                for _ in 0..*turns {
                    if !self.step(&mut dice) {
                        break;
                    }
                }
            }
            Act::Starve(nth, length, salt) => {
                self.starved = self
                    .nth(Who::Daemon, *nth)
                    .filter(|pid| self.kernel.runs(*pid));
                self.pass(*length, &mut Rng::of(*salt, "turns"));
                if let Some(pid) = self.starved.take() {
                    // What it owes is counted from here.
                    self.kernel.set(pid, Status::Runs);
                }
            }
            Act::Pass(length, salt) => self.pass(*length, &mut Rng::of(*salt, "turns")),
        }
    }

    fn come(&mut self, era: Era) {
        if self.apps.len() >= APPS {
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

    fn with_app(&mut self, nth: usize, what: impl FnOnce(&mut App, &mut Kernel)) {
        if let Some(pid) = self.nth(Who::App, nth)
            && let Some(app) = self.apps.get_mut(&pid)
        {
            what(app, &mut self.kernel);
        }
    }

    fn nth(&self, who: Who, nth: usize) -> Option<Pid> {
        let all: Vec<Pid> = match who {
            Who::App => self.apps.keys().copied().collect(),
            Who::Shim => self.shims.keys().copied().collect(),
            Who::Daemon => self.daemons.keys().copied().collect(),
            Who::Server => self.servers.keys().copied().collect(),
            Who::Owner => self.kernel.house.owner.into_iter().collect(),
        };
        let pid = *all.get(nth % all.len().max(1))?;
        self.kernel.alive(pid).then_some(pid)
    }

    fn set(&mut self, who: Who, nth: usize, status: Status) {
        // An app that is stopped is one that does not read: nothing to be seen here.
        if who != Who::App
            && let Some(pid) = self.nth(who, nth)
            && self.kernel.status(pid) != Status::Hung
        {
            self.kernel.set(pid, status);
        }
    }

    fn kill(&mut self, pid: Pid) {
        self.kernel.say(pid, || "is killed".to_owned());
        let its = self.shim_of.iter().find(|(_, shim)| **shim == pid);
        self.bereft.extend(its.map(|(app, _)| *app));
        self.gone(pid);
    }

    /// A process is gone, however it went.
    fn gone(&mut self, pid: Pid) {
        self.kernel.end(pid);
        self.apps.remove(&pid);
        self.shims.remove(&pid);
        self.daemons.remove(&pid);
        self.servers.remove(&pid);
    }

    /// One turn of one of those who have something to do; `false` if nobody has.
    fn step(&mut self, dice: &mut Rng) -> bool {
        self.kernel.end_trees_that_are_due();
        self.be_born();
        let ready = self.ready();
        if ready.is_empty() {
            return false;
        }
        let pid = ready[dice.below(ready.len() as u64) as usize];
        self.turn(pid, dice.next_u64() >> 8);
        true
    }

    fn be_born(&mut self) {
        for birth in std::mem::take(&mut self.kernel.births) {
            match birth {
                Birth::Daemon {
                    pid,
                    first,
                    report,
                    alarm,
                } => {
                    let daemon = Daemon::new(pid, first, report, alarm, &self.kernel);
                    self.daemons.insert(pid, daemon);
                }
                Birth::Server { pid, stdin, stdout } => {
                    self.servers.insert(pid, Server::new(pid, stdin, stdout));
                }
            }
        }
        // Others ended them: wardens, elections.
        let kernel = &self.kernel;
        self.servers.retain(|pid, _| kernel.alive(*pid));
        self.daemons.retain(|pid, _| kernel.alive(*pid));
    }

    fn ready(&mut self) -> Vec<Pid> {
        let mut ready = Vec::new();
        for (pid, daemon) in &self.daemons {
            let is_ready = daemon.is_ready(&self.kernel);
            self.kernel.is_ready(*pid, is_ready);
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
        kernel.had_a_turn(pid);
        let goes_on = if let Some(app) = self.apps.get_mut(&pid) {
            app.turn(kernel);
            true
        } else if let Some(shim) = self.shims.get_mut(&pid) {
            shim.turn(salt, kernel)
        } else if let Some(daemon) = self.daemons.get_mut(&pid) {
            daemon.turn(salt, kernel)
        } else if let Some(server) = self.servers.get_mut(&pid) {
            server.turn(kernel);
            true
        } else {
            true
        };
        if !goes_on {
            self.kernel.say(pid, || "exits".to_owned());
            self.gone(pid);
        }
    }

    /// Everybody has all the turns they need, until so much later.
    fn pass(&mut self, length: Duration, dice: &mut Rng) {
        let until = self.kernel.now + length;
        loop {
            let mut turns = 0;
            while self.step(dice) {
                turns += 1;
                if turns > MOST_TURNS {
                    self.kernel
                        .must(false, || "somebody goes round in circles".to_owned());
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

    /// What must be true at any moment.
    fn look(&mut self) {
        let serving: Vec<Pid> = self
            .daemons
            .iter()
            .filter(|(pid, it)| it.serves() && self.kernel.alive(**pid))
            .map(|(pid, _)| *pid)
            .collect();
        self.kernel.must(serving.len() <= 1, || {
            format!("rule 1: daemons {serving:?} serve")
        });
        for pid in serving {
            let late = self.daemons.get(&pid).and_then(|it| it.due(&self.kernel));
            let late = late.is_some_and(|due| self.kernel.now > due + LADDER);
            let late = late && self.kernel.runs(pid);
            self.kernel.must(!late, || {
                format!("rule 2: daemon {pid} is there for nobody")
            });
        }
    }
}
