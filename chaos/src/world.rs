//! A world: apps, owners and bystanders, and the directories that Kennel has there. Nothing of it is outside of two
//! scopes, and in one of them nothing is written by Kennel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_testkit::{Scope, bin};

use crate::app::{App, Around, Heard, Kind};
use crate::cast::{Cast, Member, Role};
use crate::faults::Disk;
use crate::guarded::Guarded;
use crate::install;
use crate::jobs::JobProcess;
use crate::rules::{Broken, stamp};
use crate::services::Used;

/// Nothing reads the answer of the bystanders; that they live is enough.
const BYSTANDERS: usize = 3;

pub(crate) struct World {
    pub(crate) apps: Vec<App>,
    pub(crate) guards: Vec<Guarded>,
    pub(crate) bystanders: Vec<Child>,
    /// Confined processes that speak to daemons.
    pub(crate) intruders: Vec<Child>,
    /// Detached services that are used from here.
    pub(crate) used: Vec<Used>,
    /// Those that were connected to from here at any time, by identity.
    pub(crate) met: BTreeSet<String>,
    /// Background jobs that Kennel did not start.
    pub(crate) jobs: Vec<JobProcess>,
    pub(crate) commands: Vec<Running>,
    heard: (Sender<Heard>, Receiver<Heard>),
    /// The warden and the served process of each server, as last seen.
    pub(crate) chains: BTreeMap<u32, (Identity, Identity)>,
    /// Whom we have killed or asked to end, and those who had ended when their warden was.
    ended: BTreeSet<String>,
    /// The inode of each lock.
    pub(crate) locks: BTreeMap<PathBuf, u64>,
    /// Records were removed, by us or by `purge`, perhaps of those who still run; or none could be written.
    pub(crate) unrecorded: bool,
    pub(crate) dir_is_loose: bool,
    /// Something happened that may have left a session without a daemon.
    pub(crate) some_went_solo: bool,
    /// What was there before, and is none of ours.
    pub(crate) outside: BTreeMap<PathBuf, Option<(u64, i64, i64)>>,
    /// Which features of the kernel Kennel has to do without.
    off: &'static str,
    /// How many sessions there may be at once.
    pub(crate) most: usize,
    /// What a newer build has to be newer than.
    pub(crate) builds: u32,
    /// Pids of those who died here.
    pub(crate) graves: Vec<u32>,
    pub(crate) limited: Vec<ProcessRef>,
    pub(crate) disk: Option<Disk>,
    /// Where the tally is, and the programs: never full.
    pub(crate) stash: Scope,
    /// Last: what is still there goes with it.
    pub(crate) scope: Scope,
}

/// A command of Kennel's that was started.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) stops: bool,
    pub(crate) removes: bool,
    child: Child,
}

impl Running {
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for bystander in &mut self.bystanders {
            let _ = bystander.kill();
            let _ = bystander.wait();
        }
    }
}

impl World {
    /// A fresh one, on a kernel without the features that are `off`.
    pub(crate) fn begin(off: &'static str) -> std::io::Result<World> {
        let (stash, scope) = (Scope::new("chaos-stash"), Scope::new("chaos"));
        for program in [
            "tk-shared",
            "tk-server",
            "tk-stubborn",
            "tk-ports",
            "tk-backend",
        ] {
            std::fs::copy(bin(program), stash.path(program))?;
        }
        install::newer(&stash.path("kennel"), 0)?;
        let disk = Disk::mount(scope.dir())?;
        std::fs::create_dir_all(scope.path("home"))?;
        let outside = outside()
            .into_iter()
            .map(|path| (path.clone(), stamp(&path)));
        let mut world = World {
            apps: Vec::new(),
            guards: Vec::new(),
            bystanders: Vec::new(),
            intruders: Vec::new(),
            used: Vec::new(),
            met: BTreeSet::new(),
            jobs: Vec::new(),
            commands: Vec::new(),
            heard: channel(),
            chains: BTreeMap::new(),
            ended: BTreeSet::new(),
            locks: BTreeMap::new(),
            unrecorded: false,
            dir_is_loose: false,
            some_went_solo: false,
            outside: outside.collect(),
            off,
            most: 200,
            builds: 0,
            graves: Vec::new(),
            limited: Vec::new(),
            disk,
            stash,
            scope,
        };
        for _ in 0..BYSTANDERS {
            world.start_bystander()?;
        }
        Ok(world)
    }

    pub(crate) fn look(&self) -> Cast {
        let mut known = BTreeMap::new();
        known.extend(self.bystanders.iter().map(|it| (it.id(), Role::Bystander)));
        let jobs = self.jobs.iter().filter(|it| it.process.is_alive());
        known.extend(jobs.map(|it| (it.process.pid(), Role::Bystander)));
        let guards = self.guards.iter().filter(|it| it.is_owned());
        known.extend(guards.map(|it| (it.owner(), Role::Owner)));
        let apps = self.apps.iter().filter(|app| app.around != Around::Nothing);
        let apps = apps.filter(|app| app.starter.is_alive());
        known.extend(apps.map(|app| (app.starter.pid(), Role::App)));
        Cast::look(&self.scope, &known)
    }

    /// One that looks like a server of ours, and is none.
    pub(crate) fn start_bystander(&mut self) -> std::io::Result<u32> {
        let mut command = self.command(self.stash.path("tk-shared"));
        // It waits for its stdin, which stays open as long as it is held here.
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let pid = child.id();
        self.bystanders.push(child);
        Ok(pid)
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.scope.command(program);
        command
            .env("KENNEL_FEATURES_OFF", self.off)
            .env("TESTKIT_TALLY", self.stash.path("tally"))
            .env_remove("TESTKIT_ROLL");
        command
    }

    /// An app begins a session.
    pub(crate) fn join(&mut self, how: u64) -> std::io::Result<String> {
        let shared = !how.is_multiple_of(4);
        let kind = [Kind::Many, Kind::Many, Kind::Plain, Kind::Family][(how >> 8) as usize % 4];
        let around = [Around::Nothing, Around::Held, Around::Launcher][(how >> 16) as usize % 3];
        // Without the kernel's own number for a process, its start is what tells who it is: by whose clock?
        let clocks = crate::is_apart() && self.off.is_empty();
        let around = match (how >> 48).is_multiple_of(12) && clocks {
            true => Around::Tomorrow,
            false => around,
        };
        let number = self.apps.len();
        let told = self.stash.path(format!("shim-{number}"));
        let mut line = vec![self.stash.path("kennel").display().to_string()];
        let mut add = |words: &[&str]| line.extend(words.iter().map(|&word| word.to_owned()));
        add(&["run", "--linger", "1s", "--stop-after", "500ms,500ms"]);
        add(&["--share", if shared { "always" } else { "never" }]);
        if (how >> 24).is_multiple_of(6) {
            add(&["--hibernate", "1s"]);
        }
        let path = |name: &str| self.stash.path(name).display().to_string();
        add(&["--"]);
        match kind {
            Kind::Many => add(&[&path("tk-shared")]),
            Kind::Plain => add(&[&path("tk-server")]),
            Kind::Backed => unreachable!("not drawn here"),
            Kind::Family => add(&[
                "sh",
                "-c",
                "\"$0\" \"$1\" family 1 </dev/null >/dev/null & exec \"$2\"",
                &path("tk-stubborn"),
                &path("roll"),
                &path("tk-shared"),
            ]),
        }
        let mut command = match around {
            Around::Nothing => self.command(&line[0]),
            Around::Held => self.shell(
                "exec 3<&0 </dev/null; \"$@\" <&3 3<&- & echo $! >\"$0\"; exec 3<&- >/dev/null 2>&1; exec sleep 10000",
            ),
            Around::Launcher => self.shell(
                "exec 3<&0; \"$@\" <&3 3<&- & echo $! >\"$0\"; exec 3<&-; wait",
            ),
            Around::Tomorrow => {
                let mut command = self.command("unshare");
                command.args(["--time", "--fork", "--monotonic", "86400", "--boottime", "86400"]);
                command.args(["sh", "-c", "echo $$ >\"$0\"; exec \"$@\""]);
                command
            }
        };
        match around {
            Around::Nothing => command.args(&line[1..]),
            _ => command.arg(&told).args(&line),
        };
        // What apps pass on or not, and what must not keep their sessions apart.
        if (how >> 32).is_multiple_of(2) {
            command
                .env("XDG_RUNTIME_DIR", "/nowhere")
                .env("TERM", "chaos")
                .env("DISPLAY", format!(":{number}"));
        }
        let ear = self.ear();
        let mut app = App::start(number, (shared, kind, around), command, &told, ear)?;
        if self.commands.iter().any(|command| command.stops) {
            app.excuse("kennel stop is under way");
        }
        self.apps.push(app);
        let share = if shared { "shared" } else { "solo" };
        Ok(format!("app {number}, {share}, {kind:?}, {around:?}"))
    }

    /// An app begins a session with a server of its own that starts a detached service. Each server has its own, so that
    /// no service of a dead one is in the way.
    pub(crate) fn join_backed(&mut self) -> std::io::Result<String> {
        let number = self.apps.len();
        let mut command = self.command(self.stash.path("kennel"));
        command
            .args(["run", "--stop-after", "500ms,500ms", "--share", "never"])
            .args(["--", "sh", "-c", "exec \"$0\" serve \"$1.$$\" \"$2\""])
            .arg(self.stash.path("tk-backend"))
            .arg(self.stash.path(format!("backend-{number}")))
            .arg(self.stash.path("roll"));
        let what = (false, Kind::Backed, Around::Nothing);
        let told = self.stash.path(format!("shim-{number}"));
        let mut app = App::start(number, what, command, &told, self.ear())?;
        if self.commands.iter().any(|command| command.stops) {
            app.excuse("kennel stop is under way");
        }
        self.apps.push(app);
        Ok(format!("app {number}, with a service"))
    }

    /// Whether nobody has begun to end the tree that a service is in: its server, warden and session are there, and were
    /// not told to end.
    pub(crate) fn tree_is_whole(&mut self, cast: &Cast, service: &Member) -> bool {
        let above: Vec<&Member> = cast.above(service).collect();
        let is_well = |role| {
            above.iter().any(|it| {
                let told = self.ended.contains(&it.process.identity().to_string());
                it.role == role && !told && !it.stopped && it.process.is_alive()
            })
        };
        let well = [Role::Server, Role::Warden, Role::Shim]
            .into_iter()
            .all(is_well);
        let mut apps = self.apps.iter_mut().filter(|app| app.kind == Kind::Backed);
        well && apps.any(|app| {
            let its = above.iter().any(|it| app.is_of(&it.process));
            its && app.ready && app.may_end.is_none() && app.is_open()
        })
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        command
    }

    pub(crate) fn guard(&mut self) -> std::io::Result<String> {
        let owner = self.command("sleep").arg("10000").spawn()?;
        let mut command = self.command(self.stash.path("kennel"));
        command
            .args(["guard", "--grace", "500ms", "--stop-after", "500ms"])
            .args(["--owner-pid", &owner.id().to_string(), "--"])
            .arg(self.stash.path("tk-ports"))
            .arg("127.0.0.1:0");
        let guarded = Guarded::start(owner, command)?;
        let text = format!("guard {} of owner {}", guarded.pid(), guarded.owner());
        self.guards.push(guarded);
        Ok(text)
    }

    /// Starts a command of Kennel's; nobody waits for it here.
    pub(crate) fn run(&mut self, words: &[&str]) -> std::io::Result<()> {
        let stops = words[0] == "stop";
        if stops {
            let went_solo = self.some_went_solo;
            for app in &mut self.apps {
                if !app.shared || went_solo {
                    app.excuse("kennel stop");
                }
            }
            self.guards.iter_mut().for_each(Guarded::excuse);
            self.used.iter_mut().for_each(|it| it.may_end = true);
        }
        let removes = words[0] == "purge";
        self.unrecorded |= removes;
        let child = self.kennel(words).stdout(Stdio::null()).spawn()?;
        self.commands.push(Running {
            name: format!("kennel {} ({})", words.join(" "), child.id()),
            stops,
            removes,
            child,
        });
        Ok(())
    }

    /// A command of Kennel's that may look at nobody outside of this world.
    pub(crate) fn kennel(&self, words: &[&str]) -> Command {
        let mut command = self.command(self.stash.path("kennel"));
        let mark = command
            .get_envs()
            .find(|(name, _)| *name == "TESTKIT_SCOPE");
        let mark = mark
            .and_then(|(_, value)| value?.to_str())
            .map(str::to_owned);
        command
            .args(words)
            .env(
                "KENNEL_REAP_ONLY",
                format!("TESTKIT_SCOPE={}", mark.unwrap_or_default()),
            )
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Signals one, by identity, and remembers what that excuses.
    pub(crate) fn signal(&mut self, member: &Member, signal: Signal) -> String {
        let pid = member.process.pid();
        let ends = signal != Signal::STOP;
        if ends {
            self.ended.insert(member.process.identity().to_string());
            if signal == Signal::KILL {
                self.graves.push(pid);
            }
            if member.role == Role::Warden {
                self.note_whom_it_outlived(member);
            }
            let why = format!("{:?} {pid} was ended", member.role);
            for app in &mut self.apps {
                if app.is_of(&member.process) {
                    app.excuse(&why);
                }
            }
            for guard in &mut self.guards {
                // Its server's end is its own.
                if guard.pid() == pid || matches!(member.role, Role::Server | Role::Warden) {
                    guard.excuse();
                }
            }
        }
        if member.role == Role::Daemon {
            self.some_went_solo = true;
        }
        // One that is gone already is as good.
        let _ = member.process.signal(signal);
        format!("{:?} {pid}", member.role)
    }

    /// A warden that has another parent than the one it served has outlived it, and was ending the tree.
    fn note_whom_it_outlived(&mut self, warden: &Member) {
        let identity = warden.process.identity();
        let chains = self.chains.values();
        let served = chains.filter(|(its, _)| its.same_process(identity));
        let outlived = served.filter(|(_, served)| served.pid() != warden.parent);
        let outlived: Vec<String> = outlived.map(|(_, served)| served.to_string()).collect();
        self.ended.extend(outlived);
    }

    /// Both who could have ended this one were ended, or never seen: the next start does it.
    pub(crate) fn is_excused(&self, server: &Member) -> bool {
        let ended = |identity: &Identity| self.ended.contains(&identity.to_string());
        match self.chains.get(&server.process.pid()) {
            Some((warden, served)) => ended(warden) && ended(served),
            // It came and lost them between two looks.
            None => !self.ended.is_empty(),
        }
    }

    /// Whether its tree is on record. Without one, whoever lost warden and served process is out of reach.
    pub(crate) fn is_recorded(&self, server: &Member) -> bool {
        let variables = std::fs::read(format!("/proc/{}/environ", server.process.pid()));
        let variables = String::from_utf8_lossy(&variables.unwrap_or_default()).into_owned();
        let mut variables = variables.split('\0');
        let cookie = variables.find_map(|variable| variable.strip_prefix("KENNEL_TREE="));
        let cookie = cookie.and_then(|mark| mark.split(',').next());
        let trees = self.scope.runtime_dir().join("trees");
        cookie.is_some_and(|cookie| trees.join(cookie).exists())
    }

    /// How many keys there can be: one for each server that somebody wants to share, and one for each session in a time
    /// namespace of its own.
    pub(crate) fn keys_wanted(&self) -> usize {
        let kinds = [Kind::Many, Kind::Plain, Kind::Family];
        let wanted = |kind: &&Kind| self.apps.iter().any(|app| app.kind == **kind);
        let apart = |app: &&App| app.around == Around::Tomorrow;
        kinds.iter().filter(wanted).count() + self.apps.iter().filter(apart).count()
    }

    /// What was done with side effects, and how often.
    pub(crate) fn tally(&self) -> BTreeMap<String, u32> {
        let text = std::fs::read_to_string(self.stash.path("tally")).unwrap_or_default();
        let mut tally = BTreeMap::new();
        for tag in text.lines().filter_map(|line| line.strip_prefix("work ")) {
            *tally.entry(tag.to_owned()).or_default() += 1;
        }
        tally
    }

    /// Where an app's thread tells what it hears.
    pub(crate) fn ear(&self) -> Sender<Heard> {
        self.heard.0.clone()
    }

    /// Takes what the apps have heard, for at most so long if it is nothing.
    pub(crate) fn hear(&mut self, wait: Duration) -> Result<(), Broken> {
        let mut heard = self.heard.1.recv_timeout(wait).ok();
        while let Some((number, line)) = heard {
            match line {
                Some(line) => self.apps[number].hear(&line)?,
                None => self.apps[number].end(),
            }
            heard = self.heard.1.try_recv().ok();
        }
        Ok(())
    }
}

/// Where Kennel would write if it mistook the world.
fn outside() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let mut places = vec![
        format!("/tmp/kennel-{uid}").into(),
        format!("/run/user/{uid}/kennel").into(),
    ];
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from) {
        let inside = [
            ".config/kennel",
            ".cache/kennel",
            ".local/state/kennel",
            ".local/share/kennel",
        ];
        places.extend(inside.map(|name| home.join(name)));
    }
    places
}
