//! What calls itself newer and is not fit: the daemon stays as it is, or is lost; the sessions go on.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, wait_for};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

use crate::stage::{
    build, daemon, daemon_when, impostor, log, logs, seen, server_of, session, text, this, visit,
    works,
};

/// Two sessions with a call in flight each; whatever `program` is, both are answered by the server they had.
#[track_caller]
fn stays_as_it_is(label: &str, program: impl FnOnce(&Scope) -> std::path::PathBuf, why: &str) {
    let scope = Scope::new(label);
    let mut clients = [session(&scope, &this()), session(&scope, &this())];
    let server = server_of(&mut clients[0]);
    let before = daemon(&scope);
    let calls = clients.each_mut().map(|client| works(client, "done", 1000));
    let program = program(&scope);
    let _visitor = visit(&scope, &program);
    logs(&scope, why);
    for (client, id) in clients.iter_mut().zip(calls) {
        assert_eq!(text(&client.answer(id)), "done");
        assert_eq!(server_of(client), server);
    }
    // It was said once, and is not asked again.
    let _again = visit(&scope, &program);
    assert_eq!(server_of(&mut clients[1]), server);
    assert_eq!(log(&scope).matches("stays ").count(), 1, "{}", log(&scope));
    let after = daemon(&scope);
    assert_eq!(after["daemon_pid"], before["daemon_pid"]);
    assert_eq!(after["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn one_that_does_not_even_start_is_not_become() {
    stays_as_it_is(
        "silent",
        |scope| impostor(scope, "silent"),
        "its check failed",
    );
}

#[test]
fn one_that_never_answers_is_not_become_and_holds_nobody_up() {
    stays_as_it_is("mute", |scope| impostor(scope, "mute"), "it did not answer");
}

#[test]
fn one_that_reads_no_state_like_ours_is_not_become() {
    let why = "it reads states of format [999], and this build writes 2";
    stays_as_it_is("format", |scope| impostor(scope, "other-format"), why);
}

#[test]
fn one_that_is_older_than_its_client_says_is_not_become() {
    stays_as_it_is("older", |scope| impostor(scope, "older"), "not newer");
}

#[test]
fn one_that_cannot_be_executed_is_not_become() {
    let closed = |scope: &Scope| {
        let path = impostor(scope, "fails");
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    };
    stays_as_it_is("no-exec", closed, "it cannot be executed");
}

/// Other clients may have taken the descriptors.
#[test]
fn one_that_cannot_be_checked_for_lack_of_descriptors_is_checked_again() {
    let scope = Scope::new("descriptors");
    let mut client = session(&scope, &this());
    let server = server_of(&mut client);
    let newer = build(&scope, "99.1.0");
    let pid = daemon(&scope)["daemon_pid"].as_i64().unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let limit = |limit: Option<u64>| {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap());
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = limit.or(maximum);
        prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap()
    };
    // One for the connection, one for its process, and some to check that one.
    limit(Some(open as u64 + 6));
    let _visitor = visit(&scope, &newer);
    logs(&scope, "Too many open files");
    assert!(log(&scope).contains("stays "), "{}", log(&scope));
    limit(None);
    daemon_when(&scope, "99.1.0");
    assert_eq!(server_of(&mut client), server);
}

#[test]
fn rule_9_one_that_others_can_write_to_is_not_become() {
    // The group is ours: others may be in it, too.
    for (label, mode) in [("writable", 0o757), ("group-writable", 0o775)] {
        let open = |scope: &Scope| {
            let path = build(scope, "99.1.0");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
            path
        };
        stays_as_it_is(label, open, "others can write to it");
    }
}

#[test]
fn one_that_is_gone_is_not_become() {
    let gone = |scope: &Scope| scope.path("gone");
    let scope = Scope::new("gone");
    let mut client = session(&scope, &this());
    let server = server_of(&mut client);
    let _visitor = visit(&scope, &gone(&scope));
    logs(&scope, "its program cannot be opened");
    assert_eq!(server_of(&mut client), server);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn rule_9_one_that_belongs_to_another_user_is_not_become_needs_root() {
    if !is_root() {
        return;
    }
    let foreign = |scope: &Scope| {
        let path = build(scope, "99.1.0");
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        path
    };
    stays_as_it_is("foreign", foreign, "it belongs to uid 65534");
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// The new program is there, and is not the daemon yet: what is killed here is lost in the middle.
#[test]
fn one_that_is_killed_in_the_middle_is_a_daemon_that_died_and_the_sessions_go_on() {
    let scope = Scope::new("killed");
    let mut clients: Vec<Client> = (0..3).map(|_| session(&scope, &this())).collect();
    let server = server_of(&mut clients[0]);
    let process = daemon_process(&scope);
    let _visitor = visit(&scope, &impostor(&scope, "hangs"));
    wait_for("it is the other program", || {
        runs(&process, "hangs").then_some(())
    });
    process.signal(Signal::KILL).unwrap();
    go_on(&scope, &mut clients, server);
}

#[test]
fn one_that_fails_after_it_was_become_is_a_daemon_that_died_and_the_sessions_go_on() {
    let scope = Scope::new("fails");
    let mut clients: Vec<Client> = (0..3).map(|_| session(&scope, &this())).collect();
    let server = server_of(&mut clients[0]);
    let process = daemon_process(&scope);
    let _visitor = visit(&scope, &impostor(&scope, "fails"));
    assert!(process.wait(Some(kennel_testkit::DEADLINE)).unwrap());
    go_on(&scope, &mut clients, server);
}

#[test]
fn one_that_hangs_after_it_was_become_is_ended_by_its_clients_and_the_sessions_go_on() {
    let scope = Scope::new("hangs");
    let mut clients: Vec<Client> = (0..2).map(|_| session(&scope, &this())).collect();
    let server = server_of(&mut clients[0]);
    let process = daemon_process(&scope);
    let _visitor = visit(&scope, &impostor(&scope, "hangs"));
    wait_for("it is the other program", || {
        runs(&process, "hangs").then_some(())
    });
    go_on(&scope, &mut clients, server);
    assert!(!process.is_alive());
}

/// All meet at another daemon, with another server; of the first nothing is left.
#[track_caller]
fn go_on(scope: &Scope, clients: &mut [Client], lost: u64) {
    let next = answered(&mut clients[0]);
    assert_ne!(next, lost);
    for client in clients.iter_mut() {
        assert_eq!(answered(client), next);
    }
    assert_eq!(seen(&mut clients[0])["initialize"], 1);
    assert!(
        !scope
            .survivors()
            .iter()
            .any(|it| u64::from(it.pid()) == lost)
    );
    daemon_when(scope, env!("CARGO_PKG_VERSION"));
}

/// The server that answers. A call in flight while the daemon is lost may be an error: its outcome is unknown.
#[track_caller]
fn answered(client: &mut Client) -> u64 {
    wait_for("a call is answered", || {
        let answer = client.request("tools/call", json!({"name": "seen", "arguments": {}}));
        let seen: Value = answer
            .get("result")
            .map(|_| serde_json::from_str(&text(&answer)).unwrap())?;
        seen["pid"].as_u64()
    })
}

fn daemon_process(scope: &Scope) -> ProcessRef {
    let pid = daemon(scope)["daemon_pid"].as_u64().unwrap();
    ProcessRef::open(u32::try_from(pid).unwrap()).unwrap()
}

fn runs(process: &ProcessRef, name: &str) -> bool {
    let program = std::fs::read_link(format!("/proc/{}/exe", process.pid()));
    program.is_ok_and(|program| program.file_name() == Some(Path::new(name).as_os_str()))
}
