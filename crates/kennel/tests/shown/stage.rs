//! What the tests stand on: sessions that share a server, and a look at what is said of them.

use std::process::Command;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, Terminal, bin, run, wait_for};
use serde_json::{Value, json};

pub(crate) fn kennel(scope: &Scope) -> Command {
    scope.command(env!("CARGO_BIN_EXE_kennel"))
}

/// `kennel` with these words, in a terminal.
#[track_caller]
pub(crate) fn in_terminal(scope: &Scope, words: &[&str], columns: u16, rows: u16) -> Terminal {
    Terminal::start(terminal_command(scope).args(words), columns, rows)
}

/// `kennel`, as a terminal starts it.
pub(crate) fn terminal_command(scope: &Scope) -> Command {
    let mut command = kennel(scope);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command
}

/// A session of a server that does as it is told.
pub(crate) fn session(scope: &Scope, options: &[&str]) -> Client {
    let mut command = kennel(scope);
    command
        .args(["run", "--stop-after", "50ms,50ms"])
        .args(options)
        .arg("--")
        .arg(bin("tk-server"))
        .env("TESTKIT_ROLL", scope.roll());
    Client::begin(&mut command)
}

pub(crate) fn shared(scope: &Scope) -> Client {
    session(scope, &["--share", "always"])
}

#[track_caller]
pub(crate) fn server_of(client: &mut Client) -> u32 {
    let pid = client.request("pid", json!({}))["result"].as_u64().unwrap();
    u32::try_from(pid).unwrap()
}

/// Kills the server of this session; its next one.
#[track_caller]
pub(crate) fn lose_server(client: &mut Client) -> u32 {
    let old = server_of(client);
    let process = ProcessRef::open(old).unwrap();
    assert!(process.signal(Signal::KILL).unwrap());
    wait_for("another server", || {
        let answer = client.request("pid", json!({}));
        let pid = answer["result"].as_u64()?;
        (pid != u64::from(old)).then_some(u32::try_from(pid).unwrap())
    })
}

/// What a command that works says.
#[track_caller]
pub(crate) fn says(scope: &Scope, words: &[&str]) -> String {
    let ended = run(kennel(scope).args(words));
    assert_eq!(ended.code(), Some(0), "{words:?}: {}", ended.stderr);
    ended.stdout
}

#[track_caller]
pub(crate) fn listing(scope: &Scope) -> Vec<Value> {
    serde_json::from_str(&says(scope, &["ps", "--json"])).unwrap()
}
