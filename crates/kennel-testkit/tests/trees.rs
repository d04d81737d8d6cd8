//! Rule 2: when the last reason to live is gone, the whole server tree is gone, whatever was killed
//! with -9 and in which order; and nobody else is touched.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_testkit::{DEADLINE, Scope, bin, count, on_each_kernel, skipped, wait_for};

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
fn rule_2_what_outlives_both_is_ended_by_the_next_start() {
    on_each_kernel(|| {
        for _ in 0..count(100) {
            let scope = Scope::new("both-killed");
            let mut other = bystander(&scope);
            let mut served = Served::family(&scope, SLOW, "family", 3);
            let members = all_signed(&scope, 4);
            served.child.kill().unwrap();
            served.warden().signal(Signal::KILL).unwrap();
            served.child.wait().unwrap();
            wait_for("the warden to end", || {
                (!served.warden().is_alive()).then_some(())
            });
            // The detached ones do live on: else this test would show nothing.
            assert!(
                members
                    .iter()
                    .any(|member| ProcessRef::find(member).unwrap().is_some())
            );
            next_start(&scope);
            assert!(
                members
                    .iter()
                    .all(|member| ProcessRef::find(member).unwrap().is_none())
            );
            assert_eq!(records_left(&scope), 0);
            assert_eq!(other.try_wait().unwrap(), None, "a bystander was touched");
            other.kill().unwrap();
            other.wait().unwrap();
        }
    });
}

#[test]
fn what_a_warden_was_writing_when_it_was_killed_goes_with_its_record() {
    let scope = Scope::new("half-written");
    let mut served = Served::family(&scope, SLOW, "family", 1);
    all_signed(&scope, 2);
    served.child.kill().unwrap();
    served.warden().signal(Signal::KILL).unwrap();
    served.child.wait().unwrap();
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    let trees = std::fs::read_dir(scope.path("trees")).unwrap();
    let names: Vec<String> = trees
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    std::fs::write(scope.path("trees").join(format!(".{}", names[0])), "half").unwrap();
    next_start(&scope);
    assert_eq!(records_left(&scope), 0);
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

#[test]
fn the_next_start_leaves_a_tree_alone_whose_warden_lives() {
    let scope = Scope::new("attended");
    let mut served = Served::family(&scope, SLOW, "family", 1);
    let members = all_signed(&scope, 2);
    next_start(&scope);
    assert!(
        members
            .iter()
            .all(|member| ProcessRef::find(member).unwrap().is_some())
    );
    served.child.kill().unwrap();
    served.child.wait().unwrap();
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
fn rule_2_a_stopped_warden_is_continued_by_whoever_ends_its_tree() {
    on_each_kernel(|| {
        let scope = Scope::new("stopped-warden");
        let mut served = Served::family(&scope, QUICK, "family", 2);
        let members = all_signed(&scope, 3);
        stop_warden(served.warden());
        served.ask_to_stop();
        let told = served.told();
        assert!(told.contains(&"report Empty".to_owned()), "{told:?}");
        all_gone(&members);
        assert!(served.child.wait().unwrap().success());
    });
}

#[test]
fn rule_2_a_stopped_warden_whose_served_process_is_gone_is_continued_by_the_next_start() {
    on_each_kernel(|| {
        let scope = Scope::new("stopped-orphan");
        let mut served = Served::family(&scope, QUICK, "family", 2);
        let members = all_signed(&scope, 3);
        stop_warden(served.warden());
        let records = std::fs::File::open(scope.path("trees")).unwrap();
        let found = || kennel_sys::tree::find_leftovers(records.as_fd()).unwrap();
        assert!(found().is_empty(), "the process that it serves lives");
        served.child.kill().unwrap();
        served.child.wait().unwrap();
        assert_eq!(found().len(), members.len() + 1);
        next_start(&scope);
        all_gone(&members);
        assert!(!served.warden().is_alive());
        assert_eq!(records_left(&scope), 0);
    });
}

#[test]
fn rule_2_a_server_that_stops_its_warden_again_and_again_is_ended_by_the_next_start() {
    let scope = Scope::new("stopped-again");
    let line = format!(
        "{} {} stay & trap '' TERM; while kill -STOP $PPID; do :; done",
        bin("tk-stubborn").display(),
        scope.roll().display()
    );
    let mut served = Served::start(&scope, QUICK, &["sh", "-c", &line]);
    let members = all_signed(&scope, 1);
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    next_start(&scope);
    all_gone(&members);
    assert!(!served.warden().is_alive());
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

#[test]
fn each_rung_ends_early_when_the_tree_is_empty() {
    let scope = Scope::new("polite");
    let (program, roll) = (bin("tk-stubborn"), scope.roll());
    let words = [program.to_str().unwrap(), roll.to_str().unwrap(), "polite"];
    let mut served = Served::start(&scope, SLOW, &words);
    let members = all_signed(&scope, 1);
    served.ask_to_stop();
    // With rungs of an hour this returns only because EOF was enough.
    let told = served.told();
    assert!(
        told.iter().any(|line| line.contains("Exited(Code(0))")),
        "{told:?}"
    );
    all_gone(&members);
    assert!(served.child.wait().unwrap().success());
}

/// Only SIGTERM ends them: the last rung comes after an hour.
/// The first rung takes an hour, unless it has passed already.
#[test]
fn a_server_that_had_its_time_after_eof_gets_sigterm_at_once() {
    let scope = Scope::new("after-eof");
    let (program, roll) = (bin("tk-stubborn"), scope.roll());
    let words = [
        program.to_str().unwrap(),
        roll.to_str().unwrap(),
        "levels",
        "1",
        "1",
    ];
    let mut served = Served::start(&scope, SLOW, &words);
    let members = all_signed(&scope, 3);
    let stdin = served.stdin.as_mut().unwrap();
    stdin.write_all(b"stop after eof\n").unwrap();
    all_gone(&members);
    assert!(served.child.wait().unwrap().success());
}

const TERM_ONLY: [&str; 2] = ["50", "3600000"];

#[test]
fn sigterm_reaches_every_process_once_though_launchers_exit_at_once() {
    on_each_kernel(|| {
        for _ in 0..count(20) {
            let scope = Scope::new("levels");
            let (program, roll) = (bin("tk-stubborn"), scope.roll());
            let words = [
                program.to_str().unwrap(),
                roll.to_str().unwrap(),
                "levels",
                "5",
                "6",
            ];
            let mut served = Served::start(&scope, TERM_ONLY, &words);
            let members = all_signed(&scope, 36);
            served.ask_to_stop();
            all_gone(&members);
            let terminated = std::fs::read_to_string(roll.with_extension("terminated")).unwrap();
            let mut terminated: Vec<&str> = terminated.lines().collect();
            assert_eq!(terminated.len(), 36, "each was sent SIGTERM once");
            terminated.sort_unstable();
            terminated.dedup();
            assert_eq!(terminated.len(), 36, "one was sent it twice, another never");
            assert!(served.child.wait().unwrap().success());
        }
    });
}

#[test]
fn the_next_start_sends_sigterm_once_before_it_kills() {
    let scope = Scope::new("levels-left");
    let (program, roll) = (bin("tk-stubborn"), scope.roll());
    let words = [
        program.to_str().unwrap(),
        roll.to_str().unwrap(),
        "levels",
        "2",
        "3",
    ];
    let mut served = Served::start(&scope, SLOW, &words);
    let members = all_signed(&scope, 9);
    served.child.kill().unwrap();
    served.warden().signal(Signal::KILL).unwrap();
    served.child.wait().unwrap();
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    next_start_within(&scope, "60000");
    all_gone(&members);
    let terminated = std::fs::read_to_string(roll.with_extension("terminated")).unwrap();
    let mut names: Vec<&str> = terminated.lines().collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "one was sent SIGTERM twice");
    assert_eq!(all, 8, "all but the server, which died with its warden");
}

#[test]
fn a_stopped_server_is_ended_by_sigterm_or_after_it() {
    let scope = Scope::new("frozen");
    let mut served = Served::family(&scope, QUICK, "family", 1);
    let members = all_signed(&scope, 2);
    for member in &members {
        ProcessRef::find(member)
            .unwrap()
            .unwrap()
            .signal(Signal::STOP)
            .unwrap();
    }
    served.child.kill().unwrap();
    all_gone(&members);
    served.child.wait().unwrap();
}

#[test]
fn a_server_inherits_its_stdio_and_nothing_else_and_leads_its_own_session() {
    let scope = Scope::new("inherits");
    // Each line in one write: the reports go to the same stdout, at any moment.
    let script = "echo $(ls /proc/self/fd); env | grep -c ^KENNEL_; \
                  env | grep -c ^KENNEL_TREE=; ps -o pid=,sid= -p $$";
    let mut served = Served::start(&scope, QUICK, &["sh", "-c", script]);
    let told: Vec<String> = served
        .told()
        .into_iter()
        .filter(|line| !line.starts_with("report"))
        .collect();
    served.child.wait().unwrap();
    // `ls` itself has the directory open as 3.
    assert_eq!(told[0].trim(), "0 1 2 3", "{told:?}");
    assert_eq!(
        told[1].trim(),
        "1",
        "of Kennel's variables only the tree's cookie"
    );
    assert_eq!(told[2].trim(), "1");
    let numbers: Vec<&str> = told[3].split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "pid and session");
}

#[test]
fn a_command_that_cannot_be_started_is_refused_as_a_shell_would() {
    let scope = Scope::new("refused");
    let script = scope.path("not-executable");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    for (program, errno) in [("no-such-program", 2), (script.to_str().unwrap(), 13)] {
        let mut served = Served::start(&scope, QUICK, &[program]);
        let told = served.told();
        assert!(
            told.contains(&format!("report Refused({errno})")),
            "{told:?}"
        );
        served.child.wait().unwrap();
        assert_eq!(records_left(&scope), 0);
    }
}

#[test]
fn nobody_is_left_when_the_served_process_dies_at_any_moment_of_the_start() {
    let mut chance = kennel_testkit::Rng::seeded("start");
    for _ in 0..count(100) {
        let scope = Scope::new("early");
        let records = scope.path("trees");
        std::fs::create_dir_all(&records).unwrap();
        let mut child = scope
            .command(bin("tk-tree"))
            .arg("serve")
            .arg(records)
            .args(QUICK)
            .arg("--")
            .arg(bin("tk-stubborn"))
            .arg(scope.roll())
            .args(["family", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let moment = chance.duration_below(Duration::from_millis(15));
        let process = ProcessRef::open(child.id()).unwrap();
        process.wait(Some(moment)).unwrap();
        child.kill().unwrap();
        scope.nothing_left_within("killed at start", Duration::from_secs(60));
        child.wait().unwrap();
    }
}

#[test]
fn rule_6_a_record_of_another_version_or_that_cannot_be_read_ends_nobody() {
    for change in ["kennel-tree 2", "something else"] {
        let scope = Scope::new("other-version");
        let mut served = Served::family(&scope, SLOW, "family", 1);
        let members = all_signed(&scope, 2);
        let record = std::fs::read_dir(scope.path("trees"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        let text = std::fs::read_to_string(record.path()).unwrap();
        std::fs::write(record.path(), text.replace("kennel-tree 1", change)).unwrap();
        next_start(&scope);
        assert!(
            members
                .iter()
                .all(|member| ProcessRef::find(member).unwrap().is_some())
        );
        served.child.kill().unwrap();
        served.child.wait().unwrap();
    }
}

/// What is written down is what a disaster leaves: both killed, and a server to end. But another user wrote it.
#[test]
fn needs_root_rule_9_a_record_of_another_user_ends_nobody() {
    let scope = Scope::new("foreign-record");
    std::fs::create_dir(scope.path("trees")).unwrap();
    let cookie = "0123456789abcdef".repeat(2);
    let mut bystander = scope
        .command("sleep")
        .arg("1000")
        .env("KENNEL_TREE", &cookie)
        .spawn()
        .unwrap();
    let dead = {
        let mut gone = scope.command("sleep").arg("1000").spawn().unwrap();
        let identity = *ProcessRef::open(gone.id()).unwrap().identity();
        gone.kill().unwrap();
        gone.wait().unwrap();
        identity
    };
    let server = *ProcessRef::open(bystander.id()).unwrap().identity();
    let text = format!("kennel-tree 1\nserved {dead}\nwarden {dead}\nsession 0\nserver {server}\n");
    let record = scope.path("trees").join(cookie);
    std::fs::write(&record, text).unwrap();
    std::os::unix::fs::chown(&record, Some(65534), Some(65534)).unwrap();
    next_start(&scope);
    assert_eq!(
        bystander.try_wait().unwrap(),
        None,
        "ended on a stranger's word"
    );
    assert_eq!(records_left(&scope), 1, "what is not ours is not removed");
    // The same, said by us: it would have been.
    std::os::unix::fs::chown(&record, Some(0), Some(0)).unwrap();
    next_start(&scope);
    assert!(!bystander.wait().unwrap().success());
    assert_eq!(records_left(&scope), 0);
}

#[test]
fn needs_root_a_tree_of_another_pid_namespace_is_left_alone() {
    let scope = Scope::new("namespace");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    let mut inside = scope
        .command("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(bin("tk-tree"))
        .arg("serve")
        .arg(&records)
        .args(SLOW)
        .args(["--", "sh", "-c", "echo up; exec sleep 1000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(inside.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "up"));
    next_start(&scope);
    assert_eq!(records_left(&scope), 1);
    let asleep = scope.survivors().iter().any(|process| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
        name.is_ok_and(|name| name == "sleep\n")
    });
    assert!(asleep, "a living tree was ended from outside its namespace");
    inside.kill().unwrap();
    inside.wait().unwrap();
}

#[test]
fn a_child_from_before_an_exec_is_no_stray() {
    let scope = Scope::new("elder");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    // One stays; the other starts a process and exits once it is told to: that process becomes ours.
    let (go, pid) = (scope.path("go"), scope.path("pid"));
    let line = format!(
        "sleep 1000 >/dev/null & echo $!; mkfifo {go}; \
         (read word <{go}; sleep 1000 & echo $! >{pid}.new; mv {pid}.new {pid}) >/dev/null & \
         exec {} serve {} {} {} -- {} {} family 1",
        bin("tk-tree").display(),
        records.display(),
        SLOW[0],
        SLOW[1],
        bin("tk-stubborn").display(),
        scope.roll().display(),
        go = go.display(),
        pid = pid.display()
    );
    let mut child = scope
        .command("sh")
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let elder = ProcessRef::open(lines.next().unwrap().parse().unwrap()).unwrap();
    let warden: Identity = lines
        .next()
        .unwrap()
        .strip_prefix("warden ")
        .unwrap()
        .parse()
        .unwrap();
    let members = all_signed(&scope, 2);
    std::fs::write(go, "go\n").unwrap();
    let adopted = wait_for("the process becomes a child of the served one", || {
        let pid = std::fs::read_to_string(&pid).ok()?;
        let process = ProcessRef::open(pid.trim().parse().unwrap()).unwrap();
        let parent = ProcessRef::parent_of(&process).unwrap()?;
        (parent.pid() == child.id()).then_some(process)
    });
    ProcessRef::find(&warden)
        .unwrap()
        .unwrap()
        .signal(Signal::KILL)
        .unwrap();
    assert!(lines.any(|line| line.starts_with("strays ")));
    all_gone(&members);
    assert!(
        elder.is_alive(),
        "a child that was never in the tree was ended"
    );
    assert!(adopted.is_alive(), "a child of such a child was ended");
    child.wait().unwrap();
}

#[test]
fn whoever_ignores_sigchld_is_served_all_the_same() {
    let scope = Scope::new("sigchld");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    for (server, told) in [
        ("true", "Exited(Code(0))"),
        ("no-such-program", "Refused(2)"),
    ] {
        let program = bin("tk-tree");
        let line = format!(
            "trap '' CHLD; exec {} serve {} 50 50 -- {server}",
            program.display(),
            records.display()
        );
        let output = scope
            .command("sh")
            .args(["-c", &line])
            .stdin(Stdio::piped())
            .output()
            .unwrap();
        let heard = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{heard}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(heard.contains(told), "{heard}");
        assert_eq!(records_left(&scope), 0);
    }
}

#[test]
fn a_server_whose_record_is_required_and_cannot_be_written_is_not_started() {
    let scope = Scope::new("unrecorded");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    let output = scope
        .command(bin("tk-tree"))
        .arg("serve-recorded")
        .arg(&records)
        .args(QUICK)
        .arg("--")
        .arg("touch")
        .arg(scope.path("started"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let heard = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{heard}");
    // The directory is gone: ENOENT.
    assert!(
        heard.contains("report NotRecorded(2)\nreport Empty\n"),
        "{heard}"
    );
    assert!(!scope.path("started").exists(), "the server ran");
}

/// A server under a warden that has a locked file on a file system that does not answer, and calls itself a daemon.
/// `None`, and a word about it, where there is no FUSE.
fn served_hung(scope: &Scope, server: &[&str]) -> Option<(Served, Identity)> {
    // Where the warden looks for the lock of a daemon.
    kennel_sys::runtime_dir::RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    std::fs::create_dir(scope.path("hung")).unwrap();
    let (program, mountpoint) = (bin("tk-hung"), scope.path("hung"));
    let hung = format!(
        "exec unshare --mount {} daemon {}",
        program.display(),
        mountpoint.display()
    );
    let mut words = server.to_vec();
    words.push(&hung);
    let mut served = Served::start(scope, QUICK, &words);
    let is_said = |said: &str| said == "ready" || said.starts_with("no FUSE");
    let mut said = served.said_before.clone();
    while !said.iter().any(|said| is_said(said)) {
        let mut line = String::new();
        assert!(served.stdout.read_line(&mut line).unwrap() > 0, "{said:?}");
        said.push(line.trim().to_owned());
    }
    if !said.contains(&"ready".to_owned()) {
        skipped(&said.join(" "));
        return None;
    }
    let is_hung = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.starts_with(program.as_os_str().as_encoded_bytes())
    };
    let process = scope.survivors().into_iter().find(is_hung).unwrap();
    Some((served, *process.identity()))
}

#[test]
fn needs_root_rule_2_a_server_with_a_lock_on_a_file_system_that_does_not_answer_is_ended() {
    let scope = Scope::new("hung-server");
    let Some((mut served, hung)) = served_hung(&scope, &["sh", "-c"]) else {
        return;
    };
    served.child.kill().unwrap();
    all_gone(&[hung]);
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    served.child.wait().unwrap();
    assert_eq!(records_left(&scope), 0);
}

#[test]
fn needs_root_rule_2_a_leftover_with_a_lock_on_a_file_system_that_does_not_answer_is_ended() {
    let scope = Scope::new("hung-leftover");
    // Not a child of the warden: it does not die with it.
    let server = ["sh", "-c", "sh -c \"$0\" & exec sleep 1000"];
    let Some((mut served, hung)) = served_hung(&scope, &server) else {
        return;
    };
    served.child.kill().unwrap();
    served.warden().signal(Signal::KILL).unwrap();
    served.child.wait().unwrap();
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    let hung = ProcessRef::find(&hung).unwrap().unwrap();
    let mut next = scope
        .command(bin("tk-tree"))
        .arg("next-start")
        .arg(scope.path("trees"))
        .arg("50")
        .spawn()
        .unwrap();
    let starting = ProcessRef::open(next.id()).unwrap();
    let is_done = starting.wait(Some(DEADLINE)).unwrap();
    let was_ended = !hung.is_alive();
    // Frees one that hangs.
    hung.signal(Signal::KILL).unwrap();
    next.wait().unwrap();
    assert!(is_done, "the next start hangs");
    assert!(was_ended);
    assert_eq!(records_left(&scope), 0);
}
