//! One cell of the matrix: apps with their sessions, a death, and the wait for nobody to be left.

use std::process::Command;
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_testkit::{Client, DEADLINE, Rng, Scope, bin, wait_for};
use serde_json::json;

use crate::{Around, Cell, Mode, Victim};

/// How a cell ended.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// Nobody remained, so long after the last death.
    NothingLeft(Duration),
    /// Who remained, or what else went wrong.
    Failed(String),
}

/// How soon after its start an early victim dies, and how long an app outlives another victim.
const MOMENT: Duration = Duration::from_millis(100);
/// A process between two programs shows no environment: nobody is there if nobody was twice.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(crate) fn play(cell: &Cell, chance: &mut Rng) -> Outcome {
    let mut scene = Scene::set(cell);
    scene.wait_until_ripe(chance);
    scene.kill_the_victim();
    if cell.leaves_a_session() {
        pause(chance.duration_below(MOMENT));
        scene.end_the_apps();
    }
    if cell.victim == Victim::ServedAndWarden {
        scene.start_anew();
        scene.end_the_apps();
    }
    scene.nothing_left()
}

struct Scene<'a> {
    cell: &'a Cell,
    apps: Vec<Client>,
    /// How many apps there ever were: a launcher outlives its app.
    started: usize,
    owner: Option<Client>,
    last_death: Instant,
    /// Who had signed the roll when the victims died.
    doomed: Vec<Identity>,
    /// Last: what is still there goes with it.
    scope: Scope,
}

impl<'a> Scene<'a> {
    fn set(cell: &'a Cell) -> Scene<'a> {
        let scope = Scope::new("matrix");
        let owner = (cell.victim == Victim::Owner)
            .then(|| Client::start(scope.command("sleep").arg("1000")));
        let mut scene = Scene {
            cell,
            apps: Vec::new(),
            started: 0,
            owner,
            last_death: Instant::now(),
            doomed: Vec::new(),
            scope,
        };
        let apps = if cell.victim == Victim::DaemonAndShims {
            2
        } else {
            1
        };
        (0..apps).for_each(|_| scene.start_app());
        scene
    }

    fn start_app(&mut self) {
        let line = self.session();
        let mut app = match self.cell.around {
            Around::PipeHeld => self.app_whose_pipes_are_kept(&line),
            Around::Zombie => self.app(&["subreaper"], &line),
            Around::Launcher => {
                let script = format!("{}; sleep 1000", line.join(" "));
                self.app(&[], &["sh".into(), "-c".into(), script])
            }
            Around::PipeCloses | Around::Early | Around::Stubborn => self.app(&[], &line),
        };
        app.env("KENNEL_FEATURES_OFF", self.cell.off)
            .env("TESTKIT_ROLL", self.scope.roll());
        self.apps.push(match self.cell.around {
            Around::PipeHeld => Client::start_with_kept_pipes(&mut app),
            _ => Client::start(&mut app),
        });
        self.started += 1;
    }

    /// An app with pipes of its own, which close when it dies.
    fn app(&self, options: &[&str], line: &[String]) -> Command {
        let mut app = self.scope.command(bin("tk-app"));
        app.args(options).arg("--").args(line);
        app
    }

    /// An app that passed its own stdin and stdout on to the session: a stranger holds their other ends, and they
    /// stay open whatever becomes of it. So there is neither EOF nor a lost reader, only its death.
    fn app_whose_pipes_are_kept(&self, line: &[String]) -> Command {
        let line = line.join(" ");
        let mut app = self.scope.command("sh");
        app.arg("-c").arg(format!(
            "exec 3<&0 </dev/null; {line} <&3 3<&- & exec 3<&-; exec sleep 1000"
        ));
        app
    }

    /// `kennel run` with its server.
    fn session(&self) -> Vec<String> {
        let mut line = vec![env!("CARGO_BIN_EXE_kennel").to_owned()];
        let mut add = |words: &[&str]| line.extend(words.iter().map(|&word| word.to_owned()));
        add(&["run", "--stop-after", "50ms,50ms"]);
        if self.cell.mode == Mode::Daemon {
            add(&["--share", "always"]);
        }
        match &self.owner {
            // Linger would hide whether it was the owner's end that counted.
            Some(owner) => add(&[
                "--owner-pid",
                &owner.pid().to_string(),
                "--grace",
                "50ms",
                "--linger",
                "10m",
            ]),
            None if self.cell.mode == Mode::Daemon => add(&["--linger", "200ms"]),
            None => {}
        }
        add(&["--"]);
        if self.cell.around == Around::Stubborn {
            add(&[bin("tk-stubborn").to_str().unwrap()]);
            add(&[self.scope.roll().to_str().unwrap(), "family", "2"]);
        } else {
            add(&[bin("tk-server").to_str().unwrap()]);
        }
        line
    }

    /// Until the session is there, or, to die early, until the victim is, and a moment.
    fn wait_until_ripe(&mut self, chance: &mut Rng) {
        if self.cell.around != Around::Early {
            return self.wait_until_ready();
        }
        wait_for("the victim", || (!self.victims().is_empty()).then_some(()));
        pause(chance.duration_below(MOMENT));
    }

    fn wait_until_ready(&mut self) {
        if self.cell.around == Around::Stubborn {
            // They answer nothing, but they sign the roll.
            // Through a daemon they share one.
            let families = match self.cell.mode {
                Mode::Solo => self.apps.len(),
                Mode::Daemon => 1,
            };
            let wanted = families * 3;
            wait_for("the families", || {
                (self.scope.signed().len() >= wanted).then_some(())
            });
            return;
        }
        for app in &mut self.apps {
            if self.cell.around == Around::PipeHeld {
                app.initialize();
                continue;
            }
            let line = app.line();
            assert_eq!(line.as_deref(), Some("ready"), "{}", app.stderr_so_far());
        }
    }

    /// The next start, which ends what nobody was in charge of any more.
    fn start_anew(&mut self) {
        self.apps.clear();
        self.start_app();
        if self.cell.around == Around::Stubborn {
            wait_for("a new family", || {
                (self.scope.signed().len() >= self.doomed.len() + 3).then_some(())
            });
        } else {
            self.wait_until_ready();
        }
        wait_for("the next start to end the tree", || {
            let gone = |identity| ProcessRef::find(identity).unwrap().is_none();
            self.doomed.iter().all(gone).then_some(())
        });
    }

    fn victims(&self) -> Vec<ProcessRef> {
        let apps = |apps: &[Client]| {
            apps.iter()
                .filter_map(|app| ProcessRef::open(app.pid()).ok())
                .collect()
        };
        let both = |one: &str, other: &str| {
            let (mut some, others) = (self.role(one), self.role(other));
            // Both, or not yet.
            if some.is_empty() || others.is_empty() {
                return Vec::new();
            }
            some.extend(others);
            some
        };
        match (self.cell.victim, self.cell.mode) {
            (Victim::App, _) => apps(&self.apps),
            (Victim::Owner, _) => apps(self.owner.as_slice()),
            (Victim::Shim, _) => self.role("run"),
            (Victim::Daemon, _) => self.role("daemon"),
            (Victim::Warden, _) => self.role("warden"),
            (Victim::Server, _) => self
                .role("warden")
                .iter()
                .filter_map(eldest_child)
                .collect(),
            (Victim::DaemonAndShims, _) => both("daemon", "run"),
            (Victim::ServedAndWarden, Mode::Solo) => both("run", "warden"),
            (Victim::ServedAndWarden, Mode::Daemon) => both("daemon", "warden"),
        }
    }

    /// Kennel's own processes that were started as `kennel <word>`.
    fn role(&self, word: &str) -> Vec<ProcessRef> {
        let mut processes = self.scope.survivors();
        processes.retain(|process| {
            words_of(process)
                .get(1)
                .is_some_and(|second| second == word)
        });
        // A child that has not become another program yet still looks like its parent.
        let pids: Vec<u32> = processes.iter().map(ProcessRef::pid).collect();
        processes.retain(|process| !parent_of(process).is_some_and(|pid| pids.contains(&pid)));
        processes
    }

    fn kill_the_victim(&mut self) {
        let victims = self.victims();
        assert!(!victims.is_empty(), "there is a victim");
        self.doomed = self.scope.signed();
        for victim in &victims {
            victim.signal(self.cell.how).unwrap();
        }
        self.last_death = Instant::now();
        match self.cell.victim {
            Victim::App => self.reap_the_apps(),
            Victim::Owner => self.reap_the_owner(),
            _ => {}
        }
        if self.cell.how == Signal::STOP {
            // Somebody waits for it: else nobody can tell that it is stuck.
            self.make_the_apps_wait();
        }
        let deaf = self.cell.victim == Victim::Server
            && self.cell.around == Around::Stubborn
            && self.cell.how == Signal::TERM;
        for victim in victims.iter().filter(|_| !deaf) {
            assert!(
                victim.wait(Some(DEADLINE)).unwrap(),
                "the victim lives after {DEADLINE:?}: {}{}",
                words_of(victim).join(" "),
                self.evidence()
            );
        }
    }

    fn make_the_apps_wait(&mut self) {
        for app in &mut self.apps {
            if self.cell.around == Around::PipeHeld {
                app.send("ping", json!({}));
            } else {
                app.say("ping\n");
            }
        }
    }

    /// Where the victim left them alive.
    fn end_the_apps(&mut self) {
        for app in &self.apps {
            if let Ok(process) = ProcessRef::open(app.pid()) {
                process.signal(Signal::KILL).unwrap();
            }
        }
        self.last_death = Instant::now();
        self.reap_the_apps();
    }

    fn reap_the_apps(&mut self) {
        if self.cell.around != Around::Zombie {
            for app in &mut self.apps {
                wait_for("the app to be dead", || app.try_wait());
            }
        }
    }

    fn reap_the_owner(&mut self) {
        if let Some(owner) = &mut self.owner
            && self.cell.around != Around::Zombie
        {
            wait_for("the owner to be dead", || owner.try_wait());
        }
    }

    fn nothing_left(self) -> Outcome {
        loop {
            let mut left = self.left();
            let time = self.last_death.elapsed();
            if left.is_empty() {
                pause(LOOK_AGAIN);
                left = self.left();
                if left.is_empty() {
                    return Outcome::NothingLeft(time);
                }
            }
            if time > DEADLINE {
                let who: Vec<String> = left.iter().map(describe).collect();
                return Outcome::Failed(format!(
                    "left after {DEADLINE:?}:\n  {}{}",
                    who.join("\n  "),
                    self.evidence()
                ));
            }
            pause(LOOK_AGAIN);
        }
    }

    /// Who is there of server, warden, shim and daemon: everyone but the scenery.
    fn left(&self) -> Vec<ProcessRef> {
        let mut left = self.scope.survivors();
        // One more shell than launchers is a session about to begin.
        let mut launchers = if self.cell.around == Around::Launcher {
            self.started
        } else {
            0
        };
        left.retain(|process| {
            let name = words_of(process).first().cloned().unwrap_or_default();
            let is_scenery = name == "sleep"
                || self.apps.iter().any(|app| app.pid() == process.pid())
                || (name == "sh" && launchers > 0);
            if name == "sh" {
                launchers = launchers.saturating_sub(1);
            }
            !is_scenery
        });
        left
    }

    /// What a failed cell's processes had to say.
    fn evidence(&self) -> String {
        let mut text = String::new();
        for app in &self.apps {
            text += &format!("\n  app {} said: {}", app.pid(), app.stderr_so_far());
        }
        let daemons = std::fs::read_dir(self.scope.runtime_dir().join("daemons"));
        for daemon in daemons.into_iter().flatten().flatten() {
            let log = std::fs::read_to_string(daemon.path().join("log")).unwrap_or_default();
            text += &format!("\n  the daemon's log:\n{log}");
        }
        text
    }
}

/// A warden's server; what it adopted comes after it.
fn eldest_child(warden: &ProcessRef) -> Option<ProcessRef> {
    let pid = warden.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    ProcessRef::open(children.split_whitespace().next()?.parse().ok()?).ok()
}

fn parent_of(process: &ProcessRef) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok()
}

fn words_of(process: &ProcessRef) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
    let words = line.split(|&byte| byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn describe(process: &ProcessRef) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()));
    let status = status.unwrap_or_default();
    let telling = |line: &&str| line.starts_with("State") || line.starts_with("PPid");
    let facts: Vec<&str> = status.lines().filter(telling).collect();
    let words = words_of(process).join(" ");
    format!("{} {} {words}", process.pid(), facts.join(" "))
}

fn pause(time: Duration) {
    events::sleep(&[], &[], Some(time)).unwrap();
}
