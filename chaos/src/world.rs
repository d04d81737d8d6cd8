//! A world: apps, owners and bystanders, and Kennel's directories. All of it is in two scopes, and Kennel writes to only
//! one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_testkit::{Scope, bin};

use crate::app::{App, Kind, SessionLine, Wrapping};
use crate::faults::Disk;
use crate::guarded::Guarded;
use crate::install;
use crate::jobs::JobProcess;
use crate::processes::{Member, Processes, Role};
use crate::rules::{Broken, stamp};
use crate::services::Used;

/// Number of bystanders. They are only checked to be alive.
const BYSTANDERS: usize = 3;

pub(crate) struct World {
    pub(crate) apps: Vec<App>,
    pub(crate) guards: Vec<Guarded>,
    pub(crate) bystanders: Vec<Child>,
    /// Confined processes that connect to daemons.
    pub(crate) intruders: Vec<Child>,
    /// Detached services that are used from here.
    pub(crate) used: Vec<Used>,
    /// Services that were ever connected to from here, by identity.
    pub(crate) used_before: BTreeSet<String>,
    /// Background jobs that Kennel did not start.
    pub(crate) jobs: Vec<JobProcess>,
    pub(crate) commands: Vec<Running>,
    lines: (Sender<SessionLine>, Receiver<SessionLine>),
    /// The warden and the served process of each server, as last seen.
    pub(crate) chains: BTreeMap<u32, (Identity, Identity)>,
    /// Processes that we killed or asked to end, and those that had ended before their warden.
    ended: BTreeSet<String>,
    /// The inode of each lock.
    pub(crate) locks: BTreeMap<PathBuf, u64>,
    /// Whether records were removed, by us or by `purge`, perhaps of running processes; or could not be written.
    pub(crate) unrecorded: bool,
    pub(crate) dir_is_loose: bool,
    /// Whether an event may have left a session without a daemon.
    pub(crate) some_went_solo: bool,
    /// Files outside the world from before.
    pub(crate) outside: BTreeMap<PathBuf, Option<(u64, i64, i64)>>,
    /// The kernel features that are switched off.
    off: &'static str,
    /// Maximum number of concurrent sessions.
    pub(crate) most: usize,
    /// The number of the last build.
    pub(crate) builds: u32,
    /// Pids of dead processes.
    pub(crate) dead_pids: Vec<u32>,
    pub(crate) limited: Vec<ProcessRef>,
    pub(crate) disk: Option<Disk>,
    /// The directory of the tally and the programs, which never gets full.
    pub(crate) stash: Scope,
    /// Last field: dropping it removes the rest.
    pub(crate) scope: Scope,
}

/// A started command of Kennel.
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
    /// Creates a world on a kernel without the features in `off`.
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
            used_before: BTreeSet::new(),
            jobs: Vec::new(),
            commands: Vec::new(),
            lines: channel(),
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
            dead_pids: Vec::new(),
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

    pub(crate) fn look(&self) -> Processes {
        let mut known = BTreeMap::new();
        known.extend(self.bystanders.iter().map(|it| (it.id(), Role::Bystander)));
        let jobs = self.jobs.iter().filter(|it| it.process.is_alive());
        known.extend(jobs.map(|it| (it.process.pid(), Role::Bystander)));
        let guards = self.guards.iter().filter(|it| it.is_owned());
        known.extend(guards.map(|it| (it.owner(), Role::Owner)));
        let apps = self
            .apps
            .iter()
            .filter(|app| app.wrapping != Wrapping::Nothing);
        let apps = apps.filter(|app| app.starter.is_alive());
        known.extend(apps.map(|app| (app.starter.pid(), Role::App)));
        Processes::look(&self.scope, &known)
    }

    /// Starts a process that looks like a server of ours and is not.
    pub(crate) fn start_bystander(&mut self) -> std::io::Result<u32> {
        let mut command = self.command(self.stash.path("tk-shared"));
        // It waits for its stdin, which stays open while this process holds it.
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

    /// An app starts a session.
    pub(crate) fn join(&mut self, how: u64) -> std::io::Result<String> {
        let shared = !how.is_multiple_of(4);
        let kind = [Kind::Many, Kind::Many, Kind::Plain, Kind::Family][(how >> 8) as usize % 4];
        let wrapping =
            [Wrapping::Nothing, Wrapping::Held, Wrapping::Launcher][(how >> 16) as usize % 3];
        // Without the kernel's own number for a process, its identity is its start time, which differs between time
        // namespaces.
        let clocks = crate::has_own_namespaces() && self.off.is_empty();
        let wrapping = match (how >> 48).is_multiple_of(12) && clocks {
            true => Wrapping::Tomorrow,
            false => wrapping,
        };
        let number = self.apps.len();
        let output = self.stash.path(format!("shim-{number}"));
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
        let mut command = match wrapping {
            Wrapping::Nothing => self.command(&line[0]),
            Wrapping::Held => self.shell(
                "exec 3<&0 </dev/null; \"$@\" <&3 3<&- & echo $! >\"$0\"; exec 3<&- >/dev/null 2>&1; exec sleep 10000",
            ),
            Wrapping::Launcher => self.shell(
                "exec 3<&0; \"$@\" <&3 3<&- & echo $! >\"$0\"; exec 3<&-; wait",
            ),
            Wrapping::Tomorrow => {
                let mut command = self.command("unshare");
                command.args(["--time", "--fork", "--monotonic", "86400", "--boottime", "86400"]);
                command.args(["sh", "-c", "echo $$ >\"$0\"; exec \"$@\""]);
                command
            }
        };
        match wrapping {
            Wrapping::Nothing => command.args(&line[1..]),
            _ => command.arg(&output).args(&line),
        };
        // Variables that apps pass on or not, and that must not keep their sessions apart.
        if (how >> 32).is_multiple_of(2) {
            command
                .env("XDG_RUNTIME_DIR", "/nowhere")
                .env("TERM", "chaos")
                .env("DISPLAY", format!(":{number}"));
        }
        let line_sender = self.line_sender();
        let mut app = App::start(
            number,
            (shared, kind, wrapping),
            command,
            &output,
            line_sender,
        )?;
        if self.is_stopping() {
            app.allow_end("kennel stop is under way");
        }
        self.apps.push(app);
        let share = if shared { "shared" } else { "solo" };
        Ok(format!("app {number}, {share}, {kind:?}, {wrapping:?}"))
    }

    /// An app starts a session with a server that starts a detached service. Each server has a different service, so that a
    /// service of a dead server is not in the way.
    pub(crate) fn start_backed_session(&mut self) -> std::io::Result<String> {
        let number = self.apps.len();
        let mut command = self.command(self.stash.path("kennel"));
        command
            .args(["run", "--stop-after", "500ms,500ms", "--share", "never"])
            .args(["--", "sh", "-c", "exec \"$0\" serve \"$1.$$\" \"$2\""])
            .arg(self.stash.path("tk-backend"))
            .arg(self.stash.path(format!("backend-{number}")))
            .arg(self.stash.path("roll"));
        let what = (false, Kind::Backed, Wrapping::Nothing);
        let output = self.stash.path(format!("shim-{number}"));
        let mut app = App::start(number, what, command, &output, self.line_sender())?;
        if self.is_stopping() {
            app.allow_end("kennel stop is under way");
        }
        self.apps.push(app);
        Ok(format!("app {number}, with a service"))
    }

    /// Whether the tree of a service is still running: its server, warden and session exist, and were not asked to end.
    pub(crate) fn tree_is_whole(&mut self, processes: &Processes, service: &Member) -> bool {
        let above: Vec<&Member> = processes.above(service).collect();
        let is_well = |role| {
            above.iter().any(|it| {
                let output = self.ended.contains(&it.process.identity().to_string());
                it.role == role && !output && !it.stopped && it.process.is_alive()
            })
        };
        let well = [Role::Server, Role::Warden, Role::Shim]
            .into_iter()
            .all(is_well);
        let mut apps = self.apps.iter_mut().filter(|app| app.kind == Kind::Backed);
        well && apps.any(|app| {
            let its = above
                .iter()
                .any(|it| app.is_session_or_starter(&it.process));
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
        let mut guarded = Guarded::start(owner, command)?;
        if self.is_stopping() {
            guarded.allow_end();
        }
        let text = format!("guard {} of owner {}", guarded.pid(), guarded.owner());
        self.guards.push(guarded);
        Ok(text)
    }

    /// Whether `kennel stop` still runs: on a slow machine it finds what was started after it.
    pub(crate) fn is_stopping(&self) -> bool {
        self.commands.iter().any(|command| command.stops)
    }

    /// Starts a command of Kennel without waiting for it.
    pub(crate) fn run(&mut self, words: &[&str]) -> std::io::Result<()> {
        let stops = words[0] == "stop";
        if stops {
            let went_solo = self.some_went_solo;
            for app in &mut self.apps {
                if !app.shared || went_solo {
                    app.allow_end("kennel stop");
                }
            }
            self.guards.iter_mut().for_each(Guarded::allow_end);
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

    /// A command of Kennel that examines only processes of this world.
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

    /// Signals a process, by identity, and records what that excuses.
    pub(crate) fn signal(&mut self, member: &Member, signal: Signal) -> String {
        let pid = member.process.pid();
        let ends = signal != Signal::STOP;
        if ends {
            self.ended.insert(member.process.identity().to_string());
            if signal == Signal::KILL {
                self.dead_pids.push(pid);
            }
            if member.role == Role::Warden {
                self.note_outlived(member);
            }
            let why = format!("{:?} {pid} was ended", member.role);
            for app in &mut self.apps {
                if app.is_session_or_starter(&member.process) {
                    app.allow_end(&why);
                }
            }
            for guard in &mut self.guards {
                // The end of its server is expected.
                if guard.pid() == pid || matches!(member.role, Role::Server | Role::Warden) {
                    guard.allow_end();
                }
            }
        }
        if member.role == Role::Daemon {
            self.some_went_solo = true;
        }
        // It may be gone already.
        let _ = member.process.signal(signal);
        format!("{:?} {pid}", member.role)
    }

    /// Records a warden that has outlived the process it served, and was ending the tree.
    fn note_outlived(&mut self, warden: &Member) {
        let identity = warden.process.identity();
        let chains = self.chains.values();
        let served = chains.filter(|(its, _)| its.same_process(identity));
        let outlived = served.filter(|(_, served)| served.pid() != warden.parent);
        let outlived: Vec<String> = outlived.map(|(_, served)| served.to_string()).collect();
        self.ended.extend(outlived);
    }

    /// Whether both processes that could have ended this server were ended, or never seen: then the next start ends it.
    pub(crate) fn is_excused(&self, server: &Member) -> bool {
        let ended = |identity: &Identity| self.ended.contains(&identity.to_string());
        match self.chains.get(&server.process.pid()) {
            Some((warden, served)) => ended(warden) && ended(served),
            // They started and ended between two looks.
            None => !self.ended.is_empty(),
        }
    }

    /// Whether its tree is on record. Without a record, a server that lost its warden and served process cannot be found.
    pub(crate) fn is_recorded(&self, server: &Member) -> bool {
        let variables = std::fs::read(format!("/proc/{}/environ", server.process.pid()));
        let variables = String::from_utf8_lossy(&variables.unwrap_or_default()).into_owned();
        let mut variables = variables.split('\0');
        let cookie = variables.find_map(|variable| variable.strip_prefix("KENNEL_TREE="));
        let cookie = cookie.and_then(|mark| mark.split(',').next());
        let trees = self.scope.runtime_dir().join("trees");
        cookie.is_some_and(|cookie| trees.join(cookie).exists())
    }

    /// Maximum number of keys: one for each shared server, and one for each session in another time namespace.
    pub(crate) fn keys_wanted(&self) -> usize {
        let kinds = [Kind::Many, Kind::Plain, Kind::Family];
        let wanted = |kind: &&Kind| self.apps.iter().any(|app| app.kind == **kind);
        let apart = |app: &&App| app.wrapping == Wrapping::Tomorrow;
        kinds.iter().filter(wanted).count() + self.apps.iter().filter(apart).count()
    }

    /// The side effects that happened, and how often.
    pub(crate) fn tally(&self) -> BTreeMap<String, u32> {
        let text = std::fs::read_to_string(self.stash.path("tally")).unwrap_or_default();
        let mut tally = BTreeMap::new();
        for tag in text.lines().filter_map(|line| line.strip_prefix("work ")) {
            *tally.entry(tag.to_owned()).or_default() += 1;
        }
        tally
    }

    /// The channel on which an app's thread sends lines.
    pub(crate) fn line_sender(&self) -> Sender<SessionLine> {
        self.lines.0.clone()
    }

    /// Handles the lines of the apps; waits at most `wait` for the first one.
    pub(crate) fn handle_lines(&mut self, wait: Duration) -> Result<(), Broken> {
        let mut lines = self.lines.1.recv_timeout(wait).ok();
        while let Some((number, line)) = lines {
            match line {
                Some(line) => self.apps[number].handle_lines(&line)?,
                None => self.apps[number].end(),
            }
            lines = self.lines.1.try_recv().ok();
        }
        Ok(())
    }
}

/// The directories that Kennel would write to if it mistook the world.
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
