//! What the tests stand on: sessions as an app starts them, and a look at who is there.

use std::path::PathBuf;
use std::process::Command;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, run, wait_for};
use serde_json::{Value, json};

pub(crate) fn kennel(scope: &Scope) -> Command {
    scope.command(env!("CARGO_BIN_EXE_kennel"))
}

/// `kennel run` before the server that does as it is told.
pub(crate) fn solo(scope: &Scope) -> Command {
    session(scope, &[])
}

/// The same, through a daemon.
pub(crate) fn shared(scope: &Scope) -> Command {
    shared_with(scope, &[])
}

pub(crate) fn shared_with(scope: &Scope, options: &[&str]) -> Command {
    session(scope, &[&["--share", "always"], options].concat())
}

/// A shared server whose sessions wait long for answers after the end of input.
pub(crate) fn shared_and_patient(scope: &Scope) -> Command {
    let options = ["--stop-after", "60s,50ms", "--share", "always"];
    with_options(scope, &options)
}

fn session(scope: &Scope, options: &[&str]) -> Command {
    with_options(scope, &[&["--stop-after", "50ms,50ms"], options].concat())
}

fn with_options(scope: &Scope, options: &[&str]) -> Command {
    let mut command = kennel(scope);
    command
        .arg("run")
        .args(options)
        .arg("--")
        .arg(bin("tk-server"))
        .env("TESTKIT_ROLL", scope.roll());
    command
}

/// Everything that was written down about who runs, as `kennel ps` says it.
pub(crate) fn listing(scope: &Scope) -> Vec<Value> {
    let ended = run(kennel(scope).args(["ps", "--json"]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The living daemons of this scope.
pub(crate) fn daemons(scope: &Scope) -> Vec<ProcessRef> {
    let is_daemon = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"daemon")
    };
    scope.survivors().into_iter().filter(is_daemon).collect()
}

#[track_caller]
pub(crate) fn the_daemon(scope: &Scope) -> ProcessRef {
    let mut daemons = daemons(scope);
    assert_eq!(daemons.len(), 1, "one daemon");
    daemons.remove(0)
}

/// Where shims and daemon meet: the place of the only key there is.
#[track_caller]
pub(crate) fn key_dir(scope: &Scope) -> PathBuf {
    let keys = std::fs::read_dir(scope.runtime_dir().join("daemons")).unwrap();
    let keys: Vec<PathBuf> = keys.map(|key| key.unwrap().path()).collect();
    assert_eq!(keys.len(), 1, "one key: {keys:?}");
    keys[0].clone()
}

pub(crate) fn log(scope: &Scope) -> String {
    std::fs::read_to_string(key_dir(scope).join("log")).unwrap_or_default()
}

#[track_caller]
pub(crate) fn logs(scope: &Scope, words: &str) {
    wait_for(&format!("the log says {words:?}"), || {
        log(scope).contains(words).then_some(())
    });
}

/// How many daemons were ever started here, those that found another one in their place too.
pub(crate) fn started_so_far(scope: &Scope) -> usize {
    let telling = |line: &&str| line.contains(" of key ") || line.contains("failed to start");
    log(scope).lines().filter(telling).count()
}

/// The server's process, as it says itself.
#[track_caller]
pub(crate) fn server_of(client: &mut Client) -> ProcessRef {
    let pid = client.request("pid", json!({}))["result"].as_u64().unwrap();
    ProcessRef::open(u32::try_from(pid).unwrap()).unwrap()
}

#[track_caller]
pub(crate) fn serves(client: &mut Client) {
    assert_eq!(
        client.request("echo", json!({"a": 1}))["result"],
        json!({"a": 1})
    );
}

/// The warden that this process is served by.
#[track_caller]
pub(crate) fn warden_of(served: u32) -> ProcessRef {
    wait_for("the warden", || {
        let children =
            std::fs::read_to_string(format!("/proc/{served}/task/{served}/children")).ok()?;
        children.split_whitespace().find_map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (name.trim() == "kennel-warden").then(|| ProcessRef::open(pid.parse().ok()?).ok())?
        })
    })
}

/// The letter that `/proc` has for what a process does.
pub(crate) fn state_of(process: &ProcessRef) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    stat[stat.rfind(") ").unwrap() + 2..]
        .chars()
        .next()
        .unwrap()
}
