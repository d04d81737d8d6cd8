//! Rule 2: however the owner ends, nothing is left once nobody is connected for the grace; and not before.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{DEADLINE, Scope, count, on_each_kernel, on_each_kernel_alone, run, with_pid};

use crate::stage::{GRACE, Guarded, ends_with, guard, kennel, kill, listing, owner};

/// Guards a server for an owner that `end` then ends, and sees that all of it goes, in its time.
#[track_caller]
fn goes_with(scope: &Scope, mut owner: Child, end: impl FnOnce(&mut Child)) {
    ends_in_its_time(scope, &mut owner, end);
    // A zombie is nobody's survivor, and is reaped here at the latest.
    owner.wait().unwrap();
    scope.nothing_left_within("the owner is gone", DEADLINE);
}

#[track_caller]
fn ends_in_its_time(scope: &Scope, owner: &mut Child, end: impl FnOnce(&mut Child)) {
    let mut guarded = Guarded::start(scope, &["--owner-pid", &owner.id().to_string()]);
    let server = guarded.connect().server();
    let before = Instant::now();
    end(owner);
    assert_eq!(guarded.ends(), Some(0), "nobody needed it: all is well");
    assert!(before.elapsed() >= GRACE, "not before the grace is over");
    assert!(!server.is_alive());
}

/// Guards a server whose owner is gone at the start, and sees that all of it goes. On a busy machine the grace may be over
/// before the server listens.
#[track_caller]
fn goes_without_owner(scope: &Scope, identity: &str) {
    let mut command = guard(scope, &[], &["127.0.0.1:0"]);
    let ended = run(command.env("KENNEL_OWNER_PID", identity));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn rule_2_an_owner_killed_with_9_takes_its_server_with_it() {
    for _ in 0..count(20) {
        let scope = Scope::new("owner-killed");
        goes_with(&scope, owner(&scope), kill);
    }
}

#[test]
fn rule_2_an_owner_that_exits_takes_its_server_with_it() {
    for _ in 0..count(20) {
        let scope = Scope::new("owner-exits");
        let owner = scope.command("cat").stdin(Stdio::piped()).spawn().unwrap();
        goes_with(&scope, owner, |owner| {
            drop(owner.stdin.take());
            assert!(owner.wait().unwrap().success());
        });
    }
}

#[test]
fn lesson_2_an_owner_that_is_a_zombie_is_gone() {
    for _ in 0..count(20) {
        let scope = Scope::new("owner-zombie");
        goes_with(&scope, owner(&scope), |owner| {
            // Not reaped: it stays in the table of processes.
            ProcessRef::open(owner.id())
                .unwrap()
                .signal(Signal::KILL)
                .unwrap();
        });
    }
}

#[test]
fn an_owner_that_was_dead_at_the_start_is_gone_and_the_grace_runs() {
    for _ in 0..count(20) {
        let scope = Scope::new("owner-dead");
        let mut dead = owner(&scope);
        let identity = ProcessRef::open(dead.id()).unwrap().identity().to_string();
        kill(&mut dead);
        let before = Instant::now();
        goes_without_owner(&scope, &identity);
        assert!(before.elapsed() >= GRACE);
        scope.nothing_left_within("the owner was gone", DEADLINE);
    }
}

#[test]
fn rule_6_an_owner_whose_pid_somebody_else_has_at_the_start_is_gone() {
    for _ in 0..count(20) {
        let scope = Scope::new("owner-other");
        // The pid is a living process's, the rest is not.
        let mut other = owner(&scope);
        let mut dead = owner(&scope);
        let identity = ProcessRef::open(dead.id()).unwrap().identity().to_string();
        kill(&mut dead);
        let (_, rest) = identity.split_once(':').unwrap();
        let identity = format!("{}:{rest}", other.id());
        goes_without_owner(&scope, &identity);
        kill(&mut other);
        scope.nothing_left_within("the owner was gone", DEADLINE);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_6_an_owner_is_gone_though_its_reused_pid_lives() {
    on_each_kernel_alone(|| {
        for _ in 0..count(20) {
            let scope = Scope::new("owner-reused");
            let (mut first, mut heir) = (owner(&scope), None);
            ends_in_its_time(&scope, &mut first, |owner| {
                let pid = owner.id();
                kill(owner);
                let start = || scope.command("sleep").arg("1000").spawn().unwrap();
                heir = Some(with_pid(pid, start));
            });
            // It lived all the while, under that very number.
            let mut heir = heir.unwrap();
            assert!(heir.try_wait().unwrap().is_none());
            kill(&mut heir);
            scope.nothing_left_within("the owner is gone", DEADLINE);
        }
    });
}

#[test]
fn an_owner_is_seen_to_end_on_every_kernel() {
    on_each_kernel(|| {
        let scope = Scope::new("owner-kernels");
        goes_with(&scope, owner(&scope), kill);
    });
}

#[test]
fn while_the_owner_lives_the_server_does_connected_or_not() {
    let scope = Scope::new("owner-lives");
    let mut owner = owner(&scope);
    let mut guarded = Guarded::start(&scope, &["--owner-pid", &owner.id().to_string()]);
    guarded.stays_for(GRACE * 3);
    let shown = &listing(&scope)[0];
    assert_eq!(shown["mode"], "guard");
    assert_eq!(shown["owner"], owner.id());
    assert_eq!(shown["guarded"]["owner_alive"], true);
    kill(&mut owner);
    guarded.ends();
}

#[test]
fn without_an_owner_nothing_ends_it_but_itself() {
    let scope = Scope::new("no-owner");
    let mut guarded = Guarded::start(&scope, &["--grace", "0"]);
    guarded.stays_for(GRACE * 2);
}

#[test]
fn lesson_22_the_variable_names_the_owner_and_goes_no_further() {
    let scope = Scope::new("variable");
    let mut owner = owner(&scope);
    let name = |command: &mut Command| {
        command.env("KENNEL_OWNER_PID", owner.id().to_string());
    };
    let mut guarded = Guarded::with(&scope, &[], &["127.0.0.1:0"], name);
    assert_eq!(guarded.connect().ask("env KENNEL_OWNER_PID"), "unset");
    // Nor is it in anything else that was started: the guard's own environment has it no more.
    for process in scope.survivors() {
        let environ = std::fs::read(format!("/proc/{}/environ", process.pid())).unwrap_or_default();
        let has = environ
            .split(|&byte| byte == 0)
            .any(|pair| pair.starts_with(b"KENNEL_OWNER_PID="));
        assert!(!has || process.pid() == guarded.child.id(), "{process:?}");
    }
    kill(&mut owner);
    assert_eq!(guarded.ends(), Some(0));
}

#[test]
fn a_bad_owner_is_an_error_as_a_flag_and_a_warning_as_a_variable() {
    let scope = Scope::new("bad-owner");
    for bad in ["0", "-1", "abc", ""] {
        let flag = format!("--owner-pid={bad}");
        let (_, stderr) = ends_with(2, &mut guard(&scope, &[&flag], &["127.0.0.1:0"]));
        assert!(stderr.contains("--owner-pid"), "{stderr}");
        let mut command = kennel(&scope);
        command.args(["guard", "--", "true"]);
        let (_, stderr) = ends_with(0, command.env("KENNEL_OWNER_PID", bad));
        assert!(stderr.contains("KENNEL_OWNER_PID is ignored"), "{stderr}");
    }
}

#[test]
fn that_the_owner_is_gone_already_is_told_in_one_line() {
    let scope = Scope::new("owner-told");
    let mut dead = owner(&scope);
    kill(&mut dead);
    let pid = dead.id().to_string();
    // Detached, it is told whether it listens: the grace must be long enough for that on a busy machine.
    for detach in [&[][..], &["--detach", "--grace", "3s"]] {
        let options = [&["--owner-pid", &pid][..], detach].concat();
        let ended = kennel_testkit::run(&mut guard(&scope, &options, &["127.0.0.1:0"]));
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let told = ended.stderr.matches("the owner has already exited").count();
        assert_eq!(
            (told, ended.stderr.lines().count()),
            (1, 1),
            "{}",
            ended.stderr
        );
    }
    scope.nothing_left_within("the owner was gone", DEADLINE);
}
