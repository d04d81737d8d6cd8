//! A guarded process, handled from outside.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use kennel_guard::{Guard, announce_owner};
use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Keeper, Scope, bin, on_each_kernel, wait_for};

/// A `tk-guarded` that is told things and tells things. Its stdin stays open in our hands.
struct Guarded {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Guarded {
    fn start(scope: &Scope, arguments: &[&str]) -> Guarded {
        Guarded::with(scope, arguments, |_| {})
    }

    fn with(scope: &Scope, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Guarded {
        let mut command = scope.command(bin("tk-guarded"));
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Guarded {
            child,
            stdin,
            stdout,
        }
    }

    fn hears(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    fn obeys(&mut self, order: &str) {
        self.tell(order);
        assert_eq!(self.hears(), format!("done: {order}"));
    }

    fn signal(&self, signal: Signal) {
        ProcessRef::open(self.child.id())
            .unwrap()
            .signal(signal)
            .unwrap();
    }

    fn ends(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

fn sleeper(scope: &Scope) -> Child {
    scope.command("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn every_signal_ends_in_the_one_shutdown() {
    for (signal, name) in [
        (Signal::TERM, "SIGTERM"),
        (Signal::INT, "SIGINT"),
        (Signal::HUP, "SIGHUP"),
    ] {
        let scope = Scope::new("signal");
        let mut guarded = Guarded::start(&scope, &["store=s"]);
        assert_eq!(guarded.hears(), "guarded");
        guarded.signal(signal);
        assert_eq!(guarded.hears(), format!("ended: {name}"));
        guarded.ends();
    }
}

#[test]
fn stopping_oneself_is_the_same_end() {
    let scope = Scope::new("asked");
    let mut guarded = Guarded::start(&scope, &[]);
    assert_eq!(guarded.hears(), "guarded");
    guarded.tell("stop");
    assert!(["ended: stop asked", "done: stop"].contains(&&*guarded.hears()));
    guarded.ends();
}

#[test]
fn an_owner_that_dies_ends_it_after_the_grace_be_it_reaped_or_a_zombie() {
    on_each_kernel(|| {
        for reaped in [true, false] {
            let scope = Scope::new("owner");
            let mut owner = sleeper(&scope);
            let flag = format!("owner={}", owner.id());
            let mut guarded = Guarded::start(&scope, &[&flag, "grace=20"]);
            assert_eq!(guarded.hears(), "guarded");
            owner.kill().unwrap();
            if reaped {
                owner.wait().unwrap();
            }
            let ended = guarded.hears();
            assert!(
                ended.starts_with("ended: owner gone and no client attached"),
                "{ended}"
            );
            guarded.ends();
            owner.wait().unwrap();
        }
    });
}

#[test]
fn an_owner_that_was_dead_or_a_zombie_at_the_start_counts_as_gone() {
    on_each_kernel(|| {
        let scope = Scope::new("dead-owner");
        let mut zombie = sleeper(&scope);
        zombie.kill().unwrap();
        let mut dead = sleeper(&scope);
        dead.kill().unwrap();
        dead.wait().unwrap();
        for pid in [zombie.id(), dead.id()] {
            let flag = format!("owner={pid}");
            let mut guarded = Guarded::start(&scope, &[&flag, "grace=20"]);
            assert_eq!(guarded.hears(), "guarded");
            assert!(guarded.hears().starts_with("ended: owner gone"));
            guarded.ends();
        }
        zombie.wait().unwrap();
    });
}

#[test]
fn rule_3_a_session_keeps_it_alive_without_its_owner_and_its_end_starts_the_grace() {
    let scope = Scope::new("lease");
    let mut owner = sleeper(&scope);
    let flag = format!("owner={}", owner.id());
    let mut guarded = Guarded::start(&scope, &[&flag, "grace=1"]);
    assert_eq!(guarded.hears(), "guarded");
    guarded.obeys("lease");
    owner.kill().unwrap();
    owner.wait().unwrap();
    // With a grace of a millisecond it would be gone long before it has answered all of these.
    for _ in 0..50 {
        guarded.obeys("lease");
        guarded.obeys("end-lease");
    }
    guarded.tell("end-lease");
    let heard = [guarded.hears(), guarded.hears()];
    assert!(
        heard
            .iter()
            .any(|line| line.starts_with("ended: owner gone")),
        "{heard:?}"
    );
    guarded.ends();
}

#[test]
fn nobody_within_the_linger_ends_it_and_a_lease_does_not() {
    let scope = Scope::new("linger");
    let mut guarded = Guarded::start(&scope, &["linger=20"]);
    assert_eq!(guarded.hears(), "guarded");
    let ended = guarded.hears();
    assert!(
        ended.starts_with("ended: no client attached for"),
        "{ended}"
    );
    guarded.ends();
}

#[test]
fn the_backstop_ends_a_silent_session_only_where_it_was_set() {
    let scope = Scope::new("backstop");
    let mut guarded = Guarded::start(&scope, &["linger=600000", "max-idle=300"]);
    assert_eq!(guarded.hears(), "guarded");
    guarded.obeys("lease");
    let ended = guarded.hears();
    assert!(ended.contains("no traffic for"), "{ended}");
    guarded.ends();
}

#[test]
fn a_bad_owner_on_the_command_line_refuses_and_in_the_environment_is_ignored_with_a_notice() {
    let scope = Scope::new("bad-owner");
    for (value, word) in [
        ("0", "not a pid"),
        ("-1", "not a pid"),
        ("12x", "not a pid"),
        ("", "not a pid"),
    ] {
        let flag = format!("owner={value}");
        let mut guarded = Guarded::start(&scope, &[&flag]);
        let heard = guarded.hears();
        assert!(
            heard.starts_with("refused: bad owner:") && heard.contains(word),
            "{heard}"
        );
        assert_eq!(guarded.child.wait().unwrap().code(), Some(1));

        let mut guarded = Guarded::with(&scope, &["owner-env=DIARY_OWNER", "grace=1"], |command| {
            command.env("DIARY_OWNER", value);
        });
        let heard = guarded.hears();
        assert!(
            heard.starts_with("notice: DIARY_OWNER is ignored:") && heard.contains(word),
            "{heard}"
        );
        assert_eq!(guarded.hears(), "guarded");
        guarded.obeys("lease");
        guarded.tell("stop");
        guarded.ends();
    }
}

#[test]
fn nobody_owns_itself() {
    let scope = Scope::new("self-owner");
    let mut command = scope.command("sh");
    let line = format!("exec {} owner=$$", bin("tk-guarded").display());
    let output = command.args(["-c", &line]).output().unwrap();
    let heard = String::from_utf8_lossy(&output.stdout);
    assert!(
        heard.contains("is this server, which cannot be its own owner"),
        "{heard}"
    );
}

#[test]
fn the_flag_counts_before_the_variable() {
    let scope = Scope::new("flag-first");
    let mut named = sleeper(&scope);
    let mut other = sleeper(&scope);
    let flag = format!("owner={}", named.id());
    let mut guarded = Guarded::with(
        &scope,
        &[&flag, "owner-env=DIARY_OWNER", "grace=1"],
        |command| {
            command.env("DIARY_OWNER", other.id().to_string());
        },
    );
    assert_eq!(guarded.hears(), "guarded");
    other.kill().unwrap();
    other.wait().unwrap();
    guarded.obeys("lease");
    guarded.obeys("end-lease");
    assert!(ProcessRef::open(guarded.child.id()).is_ok());
    named.kill().unwrap();
    named.wait().unwrap();
    assert!(guarded.hears().starts_with("ended: owner gone"));
    guarded.ends();
}

#[test]
fn without_an_owner_the_watch_is_never_armed() {
    let scope = Scope::new("no-owner");
    let mut guarded = Guarded::start(&scope, &["owner-env=DIARY_OWNER", "grace=1"]);
    assert_eq!(guarded.hears(), "guarded");
    for _ in 0..20 {
        guarded.obeys("lease");
        guarded.obeys("end-lease");
    }
    guarded.tell("stop");
    guarded.ends();
}

#[test]
fn lesson_22_the_owner_variable_reaches_nothing_that_is_started_later() {
    let scope = Scope::new("scrub");
    let mut guarded = Guarded::with(&scope, &["owner-env=DIARY_OWNER"], |command| {
        announce_owner(command, "DIARY_OWNER").unwrap();
    });
    assert_eq!(guarded.hears(), "guarded");
    guarded.tell("child-env DIARY_OWNER");
    assert_eq!(guarded.hears(), "child sees: unset");
    assert_eq!(guarded.hears(), "done: child-env DIARY_OWNER");
    guarded.tell("stop");
    guarded.ends();
    // And nothing stayed with the one that announced itself.
    assert!(std::env::var_os("DIARY_OWNER").is_none());
    let output = scope.command("env").output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("DIARY_OWNER"));
}

#[test]
fn an_owner_of_another_user_is_watched_as_well() {
    on_each_kernel(|| {
        let scope = Scope::new("init");
        // As anybody but root, pid 1 may not be signalled: that is no reason to think it dead.
        let mut guarded = Guarded::start(&scope, &["owner=1", "grace=1"]);
        assert_eq!(guarded.hears(), "guarded");
        for _ in 0..20 {
            guarded.obeys("lease");
            guarded.obeys("end-lease");
        }
        guarded.tell("stop");
        guarded.ends();
    });
}

#[test]
fn a_store_has_one_holder_and_the_second_is_told_who() {
    let scope = Scope::new("store");
    let store = format!("store={}", scope.path("a.db").display());
    let mut first = Guarded::start(&scope, &[&store]);
    assert_eq!(first.hears(), "guarded");
    let mut second = Guarded::start(&scope, &[&store]);
    let heard = second.hears();
    let pid = format!("pid {}", first.child.id());
    assert!(
        heard.starts_with("refused: ") && heard.contains(&pid) && heard.contains("tk-guarded"),
        "{heard}"
    );
    assert_eq!(second.child.wait().unwrap().code(), Some(1));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let mut third = Guarded::start(&scope, &[&store]);
    assert_eq!(third.hears(), "guarded");
    third.tell("stop");
    third.ends();
}

#[test]
fn those_that_coexist_do_and_keep_out_whoever_wants_the_store_alone() {
    let scope = Scope::new("coexist");
    let store = format!("store={}", scope.path("a.db").display());
    let mut both: Vec<Guarded> = (0..2)
        .map(|_| Guarded::start(&scope, &[&store, "coexist"]))
        .collect();
    for guarded in &mut both {
        assert_eq!(guarded.hears(), "guarded");
    }
    let mut alone = Guarded::start(&scope, &[&store]);
    assert!(alone.hears().starts_with("refused: "));
    alone.child.wait().unwrap();
    for mut guarded in both {
        guarded.tell("stop");
        guarded.ends();
    }
    let mut alone = Guarded::start(&scope, &[&store]);
    assert_eq!(alone.hears(), "guarded");
    let mut late = Guarded::start(&scope, &[&store, "coexist"]);
    assert!(late.hears().starts_with("refused: "));
    late.child.wait().unwrap();
    alone.tell("stop");
    alone.ends();
}

#[test]
fn the_parent_watch_can_be_switched_off_by_the_builder_and_by_the_environment() {
    for (arguments, value, gone) in [
        (&[][..], None, true),
        (&[][..], Some("yes"), true),
        (&[][..], Some("garbage"), true),
        (&[][..], Some(""), true),
        (&[][..], Some("OFF"), false),
        (&[][..], Some("0"), false),
        (&[][..], Some("False"), false),
        (&[][..], Some("no"), false),
        (&["parent=off"][..], None, false),
    ] {
        let scope = Scope::new("switch");
        // A parent that starts it in the background, with pipes that a stranger holds, and waits to be killed.
        let program = bin("tk-guarded");
        let line = format!(
            "exec 3<&0; {} {} <&3 & sleep 1000",
            program.display(),
            arguments.join(" ")
        );
        let mut command = scope.command("sh");
        let (_keeper, pipes) = Keeper::start().unwrap();
        command
            .args(["-c", &line])
            .stdin(pipes.input)
            .stdout(pipes.output);
        if let Some(value) = value {
            command.env("KENNEL_PARENT_WATCH", value);
        }
        let mut parent = command.spawn().unwrap();
        let mut stdout = BufReader::new(pipes.reader);
        let mut stdin = pipes.writer;
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if value == Some("garbage") {
            assert!(line.contains("KENNEL_PARENT_WATCH is ignored"), "{line}");
            line.clear();
            stdout.read_line(&mut line).unwrap();
        }
        assert_eq!(line, "guarded\n", "{value:?}");
        parent.kill().unwrap();
        parent.wait().unwrap();
        line.clear();
        if gone {
            stdout.read_line(&mut line).unwrap();
            assert_eq!(line, "ended: the parent process is gone\n", "{value:?}");
        } else {
            for _ in 0..20 {
                writeln!(stdin, "lease").unwrap();
                line.clear();
                stdout.read_line(&mut line).unwrap();
                assert_eq!(line, "done: lease\n", "{value:?}");
            }
            writeln!(stdin, "stop").unwrap();
        }
        wait_for("the guarded process to end", || {
            let left = scope.survivors();
            left.iter()
                .all(|process| process_name(process) != "tk-guarded")
                .then_some(())
        });
    }
}

fn process_name(process: &ProcessRef) -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
    name.unwrap_or_default().trim_end().to_owned()
}

#[test]
fn the_end_can_be_awaited_under_a_runtime() {
    let scope = Scope::new("tokio");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let guard = Guard::builder("here")
        .watch_parent(false)
        .acquire()
        .unwrap();
    let reason = runtime.block_on(async {
        let stopping = tokio::spawn(guard.stopping());
        tokio::task::yield_now().await;
        let me = std::process::id().to_string();
        let status = scope.command("kill").args(["-TERM", &me]).status().unwrap();
        assert!(status.success());
        stopping.await.unwrap()
    });
    assert_eq!(reason.to_string(), "SIGTERM");
    drop(guard);
}

#[test]
fn dropping_the_guard_ends_its_watch_and_lets_waiters_go() {
    let guard = Guard::builder("here")
        .watch_parent(false)
        .acquire()
        .unwrap();
    let lease = guard.lease();
    let stopping = guard.stopping();
    drop(guard);
    drop(lease);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    assert_eq!(runtime.block_on(stopping).to_string(), "stop asked");
}
