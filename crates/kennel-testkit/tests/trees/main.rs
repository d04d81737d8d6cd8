//! Rule 2: when the last reason to live is gone, the whole server tree is gone, whatever was killed
//! with -9 and in which order; and nobody else is touched.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod hung;
mod ladder;
mod next_start;
mod records;
mod start;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_testkit::{DEADLINE, Scope, bin, count, on_each_kernel, skipped, tool, wait_for};

/// The whole ladder, quickly.
const QUICK: [&str; 2] = ["50", "50"];
/// A ladder nobody climbs: what ends before, ended by itself.
const SLOW: [&str; 2] = ["3600000", "3600000"];

/// A served process with its warden and its server's tree.
struct Served {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// What the server said before its tree was announced.
    said_before: Vec<String>,
    /// `None` if it had ended before we looked.
    warden: Option<ProcessRef>,
}

impl Served {
    fn start(scope: &Scope, ladder: [&str; 2], server: &[&str]) -> Served {
        let records = scope.path("trees");
        std::fs::create_dir_all(&records).unwrap();
        let mut child = scope
            .command(bin("tk-tree"))
            .arg("serve")
            .arg(records)
            .args(ladder)
            .arg("--")
            .args(server)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said_before = Vec::new();
        let identity: Identity = loop {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "no warden");
            match line.trim().strip_prefix("warden ") {
                Some(identity) => break identity.parse().unwrap(),
                None => said_before.push(line.trim().to_owned()),
            }
        };
        let warden = ProcessRef::find(&identity).unwrap();
        Served {
            child,
            stdin,
            stdout,
            said_before,
            warden,
        }
    }

    fn family(scope: &Scope, ladder: [&str; 2], what: &str, n: usize) -> Served {
        let (program, roll) = (bin("tk-stubborn"), scope.roll());
        let n = n.to_string();
        let words = [program.to_str().unwrap(), roll.to_str().unwrap(), what, &n];
        Served::start(scope, ladder, &words)
    }

    fn warden(&self) -> &ProcessRef {
        self.warden
            .as_ref()
            .expect("the warden lived when we looked")
    }

    fn ask_to_stop(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
    }

    /// What it told until its stdout closed; nobody of the tree may hold that any more.
    fn told(&mut self) -> Vec<String> {
        let rest = self.stdout.by_ref().lines().map(Result::unwrap);
        self.said_before.drain(..).chain(rest).collect()
    }
}

/// Somebody who looks like a member of the tree, and is none.
fn bystander(scope: &Scope) -> Child {
    scope
        .command(bin("tk-stubborn"))
        .arg(scope.path("bystanders"))
        .arg("stay")
        .spawn()
        .unwrap()
}

fn all_signed(scope: &Scope, n: usize) -> Vec<Identity> {
    wait_for(&format!("{n} signatures"), || {
        let signed = scope.signed();
        (signed.len() == n).then_some(signed)
    })
}

fn all_gone(members: &[Identity]) {
    for identity in members {
        wait_for(&format!("{identity} to be gone"), || {
            ProcessRef::find(identity).unwrap().is_none().then_some(())
        });
    }
}

fn records_left(scope: &Scope) -> usize {
    std::fs::read_dir(scope.path("trees")).unwrap().count()
}

fn next_start(scope: &Scope) {
    next_start_within(scope, "50");
}

/// The next start, with this many milliseconds between SIGTERM and SIGKILL.
fn next_start_within(scope: &Scope, after_term: &str) {
    let output = scope
        .command(bin("tk-tree"))
        .arg("next-start")
        .arg(scope.path("trees"))
        .arg(after_term)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Stops a warden, and waits until it is stopped.
fn stop_warden(warden: &ProcessRef) {
    warden.signal(Signal::STOP).unwrap();
    wait_for("the warden is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", warden.pid())).ok()?;
        stat.contains(") T ").then_some(())
    });
}

#[test]
fn rule_2_a_stubborn_tree_is_gone_after_the_ladder_and_nobody_else() {
    for _ in 0..count(100) {
        let scope = Scope::new("ladder");
        let mut other = bystander(&scope);
        let mut served = Served::family(&scope, QUICK, "family", 3);
        let members = all_signed(&scope, 4);
        served.ask_to_stop();
        served.told();
        assert!(served.child.wait().unwrap().success());
        // No waiting: when the served process was told `Empty`, nobody was left.
        assert!(
            members
                .iter()
                .all(|member| ProcessRef::find(member).unwrap().is_none())
        );
        assert_eq!(other.try_wait().unwrap(), None, "a bystander was touched");
        assert_eq!(records_left(&scope), 0);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

#[test]
fn rule_2_the_tree_ends_when_the_process_it_serves_is_killed() {
    on_each_kernel(|| {
        for _ in 0..count(100) {
            let scope = Scope::new("served-killed");
            let mut other = bystander(&scope);
            let mut served = Served::family(&scope, QUICK, "family", 2);
            let members = all_signed(&scope, 3);
            served.child.kill().unwrap();
            // Not reaped yet: a zombie is as dead as can be.
            all_gone(&members);
            wait_for("the warden to end", || {
                (!served.warden().is_alive()).then_some(())
            });
            served.child.wait().unwrap();
            assert_eq!(records_left(&scope), 0);
            assert_eq!(other.try_wait().unwrap(), None, "a bystander was touched");
            other.kill().unwrap();
            other.wait().unwrap();
        }
    });
}

#[test]
fn rule_2_a_killed_wardens_child_dies_with_it_and_the_served_process_ends_the_strays() {
    on_each_kernel(|| {
        for _ in 0..count(100) {
            let scope = Scope::new("warden-killed");
            let mut served = Served::family(&scope, SLOW, "family", 3);
            let members = all_signed(&scope, 4);
            assert!(served.warden().signal(Signal::KILL).unwrap());
            let told = served.told();
            assert!(served.child.wait().unwrap().success());
            assert!(
                members
                    .iter()
                    .all(|member| ProcessRef::find(member).unwrap().is_none())
            );
            // The server itself, and the three that were detached from it.
            assert!(told.iter().any(|line| line == "strays 4"), "{told:?}");
        }
    });
}

#[test]
fn members_that_wiped_their_environment_go_with_the_warden_all_the_same() {
    let scope = Scope::new("bare");
    let mut served = Served::family(&scope, QUICK, "bare", 3);
    let members = all_signed(&scope, 4);
    served.child.kill().unwrap();
    all_gone(&members);
    served.child.wait().unwrap();
}

#[test]
fn a_runner_that_forks_and_exits_does_not_free_its_server() {
    for _ in 0..count(20) {
        let scope = Scope::new("runner");
        let mut served = Served::family(&scope, QUICK, "runner", 2);
        let members = all_signed(&scope, 3);
        // The direct child is gone, and its tree is not: the warden stays with it.
        let mut line = String::new();
        while !line.contains("Exited") {
            line.clear();
            served.stdout.read_line(&mut line).unwrap();
        }
        assert!(
            members
                .iter()
                .all(|member| ProcessRef::find(member).unwrap().is_some())
        );
        served.child.kill().unwrap();
        all_gone(&members);
        served.child.wait().unwrap();
    }
}

#[test]
fn four_hundred_processes_in_sessions_of_their_own_go_too() {
    let scope = Scope::new("swarm");
    let mut served = Served::family(&scope, QUICK, "swarm", 400);
    let members = all_signed(&scope, 401);
    served.child.kill().unwrap();
    all_gone(&members);
    served.child.wait().unwrap();
}
