//! What the tests stand on: processes that lost their starter, others that did not, and a doctor who looks at
//! these alone.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kennel_testkit::{Client, Ended, Scope, Subject, bin, run, wait_for};
use serde_json::Value;

/// The variable that keeps `doctor` and `reap` to the processes of one test. Without it a test would look at, and
/// end, what is the developer's.
const ONLY: &str = "KENNEL_REAP_ONLY";
/// What carries it in the environment of everything below.
const MARK: &str = "DOCTORS_PATIENT";

/// A part of the machine that a test may reap.
pub(crate) struct Ward {
    pub(crate) scope: Scope,
    mark: String,
}

impl Ward {
    pub(crate) fn new() -> Ward {
        let scope = Scope::new("doctor");
        let mark = scope.dir().to_str().unwrap().to_owned();
        Ward { scope, mark }
    }

    /// A command whose processes are this ward's.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.scope.command(program);
        // With `tk-idle` in its path: `sleep` is no orphan, for it may go on by itself.
        let programs = bin("tk-idle");
        let mut path = programs.parent().unwrap().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        command.env(MARK, &self.mark).env("PATH", path);
        command
    }

    /// `kennel`, kept to this ward.
    pub(crate) fn kennel(&self, words: &[&str]) -> Ended {
        self.wait_until_idle();
        let mut command = self.restricted(env!("CARGO_BIN_EXE_kennel"));
        run(command.args(words))
    }

    /// Waits until every `tk-idle` of this ward, and the shell before it, has begun to wait: one that starts runs, and that is a
    /// doubt.
    fn wait_until_idle(&self) {
        for process in self.scope.survivors() {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
            let name = name.unwrap_or_default();
            if ["tk-idle", "sh", "innocent"].contains(&name.trim_end()) {
                wait_until_blocked(process.pid());
            }
        }
    }

    /// A command that runs `kennel`, kept to this ward.
    pub(crate) fn restricted(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        assert!(self.mark.len() > 8, "never without a mark");
        let mut command = self.scope.command(program);
        command
            .env(ONLY, format!("{MARK}={}", self.mark))
            .current_dir(self.scope.path("home"));
        for name in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG"] {
            command.env_remove(name);
        }
        command
    }

    /// A copy of a program that every user can run: others may not be able to reach the one that was built.
    pub(crate) fn copied_for_all(&self, program: &Path) -> String {
        let dir = self.scope.dir();
        std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        let copy = dir.join(program.file_name().unwrap());
        std::fs::copy(program, &copy).unwrap();
        std::fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
        copy.to_str().unwrap().to_owned()
    }

    pub(crate) fn doctor(&self) -> Value {
        let ended = self.kennel(&["doctor", "--json"]);
        let report: Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", ended.stdout, ended.stderr));
        let ok = report["ok"].as_bool().unwrap();
        assert_eq!(ended.code(), Some(if ok { 0 } else { 1 }));
        report
    }

    /// What a check found.
    pub(crate) fn findings(&self, check: &str) -> Vec<Value> {
        let report = self.doctor();
        let all = report["findings"].as_array().unwrap();
        let of = |finding: &&Value| finding["check"] == check;
        all.iter().filter(of).cloned().collect()
    }

    /// The orphans that are found, by pid.
    pub(crate) fn orphans(&self) -> Vec<u32> {
        let pid = |finding: Value| u32::try_from(finding["pid"].as_u64().unwrap()).unwrap();
        let mut pids: Vec<u32> = self.findings("orphans").into_iter().map(pid).collect();
        pids.sort_unstable();
        pids
    }

    /// The processes that are shown though it is in doubt whether they are orphans, by pid.
    pub(crate) fn in_doubt(&self) -> Vec<u32> {
        let report = self.doctor();
        let shown = report["in_doubt"].as_array().into_iter().flatten();
        let mut pids: Vec<u32> = shown
            .map(|shown| u32::try_from(shown["pid"].as_u64().unwrap()).unwrap())
            .collect();
        pids.sort_unstable();
        pids
    }

    /// An app with a child that it started as `options` say.
    pub(crate) fn family(&self, options: &[&str], command: &[&str]) -> Family {
        let mut app = self.command(bin("tk-parent"));
        app.args(options).arg("--").args(command);
        Family::start(&mut app)
    }
}

/// Waits until a process and everybody below it is blocked, or gone.
pub(crate) fn wait_until_blocked(pid: u32) {
    let dir = |pid: u32| format!("/proc/{pid}/task/{pid}");
    wait_for(&format!("pid {pid} waits"), || {
        let mut left = vec![pid];
        while let Some(pid) = left.pop() {
            let stat = std::fs::read_to_string(format!("{}/stat", dir(pid))).unwrap_or_default();
            let children = std::fs::read_to_string(format!("{}/children", dir(pid)));
            let children = children.unwrap_or_default();
            left.extend(
                children
                    .split_whitespace()
                    .map(|pid| pid.parse::<u32>().unwrap()),
            );
            // Of a stopped one and of a zombie nothing is awaited.
            let state = stat.rsplit_once(") ").map(|(_, fields)| &fields[..1]);
            if state.is_some_and(|state| ["R", "D"].contains(&state)) {
                return None;
            }
        }
        Some(())
    });
}

/// An app and what it started.
pub(crate) struct Family {
    app: Child,
    pub(crate) child: Subject,
}

impl Family {
    pub(crate) fn start(command: &mut Command) -> Family {
        let mut app = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(app.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let pid = line.trim().strip_prefix("child ").unwrap().parse().unwrap();
        let child = Subject::open(pid).unwrap();
        Family { app, child }
    }

    /// What the launcher launched.
    pub(crate) fn grandchild(&self) -> Subject {
        let pid = self.child.pid();
        wait_for("what the launcher launched", || {
            let children =
                std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            Subject::open(children.split_whitespace().next()?.parse().ok()?)
        })
    }

    /// Kills the app with -9.
    pub(crate) fn kill_app(&mut self) {
        self.app.kill().unwrap();
        self.app.wait().unwrap();
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = self.app.kill();
        let _ = self.app.wait();
    }
}

/// A session behind Kennel, with a server that answers.
pub(crate) fn session(ward: &Ward) -> Client {
    let mut command = ward.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args(["run", "--stop-after", "50ms,50ms", "--"])
        .arg(bin("tk-server"));
    Client::begin(&mut command)
}
