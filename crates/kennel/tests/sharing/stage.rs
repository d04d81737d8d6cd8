//! What the tests stand on: apps with sessions that share a server.

use std::process::Command;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, run};
use serde_json::{Value, json};

pub(crate) fn kennel(scope: &Scope) -> Command {
    scope.command(env!("CARGO_BIN_EXE_kennel"))
}

/// `kennel run --share always` before the server for many.
pub(crate) fn shared(scope: &Scope) -> Command {
    shared_with(scope, &[])
}

pub(crate) fn shared_with(scope: &Scope, options: &[&str]) -> Command {
    let mut command = kennel(scope);
    command
        .args(["run", "--share", "always", "--stop-after", "1s,50ms"])
        .args(options)
        .arg("--")
        .arg(bin("tk-shared"))
        .env("TESTKIT_ROLL", scope.roll());
    command
}

/// A session with the capabilities every test client has.
pub(crate) fn session(scope: &Scope) -> Client {
    Client::begin(&mut shared(scope))
}

/// A session of another class.
pub(crate) fn session_as(scope: &Scope, version: &str, capabilities: Value) -> Client {
    let mut client = Client::start(&mut shared(scope));
    shake_hands(&mut client, version, capabilities);
    client
}

pub(crate) fn shake_hands(client: &mut Client, version: &str, capabilities: Value) -> Value {
    let params = json!({
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": {"name": "testkit", "version": "0"},
    });
    let answer = client.request("initialize", params);
    client.say("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    answer
}

/// The text a tool answers with.
#[track_caller]
pub(crate) fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

/// What the server has been told so far.
#[track_caller]
pub(crate) fn seen(client: &mut Client) -> Value {
    let seen: Value = serde_json::from_str(&text(&client.call("seen", json!({})))).unwrap();
    assert_eq!(seen["odd"], json!([]), "nothing odd was said to it");
    seen
}

#[track_caller]
pub(crate) fn server_of(client: &mut Client) -> u64 {
    seen(client)["pid"].as_u64().unwrap()
}

pub(crate) fn listing(scope: &Scope) -> Vec<Value> {
    let ended = run(kennel(scope).args(["ps", "--json"]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The daemon's log.
pub(crate) fn log(scope: &Scope) -> String {
    let keys = std::fs::read_dir(scope.runtime_dir().join("daemons"));
    let logs = keys.into_iter().flatten().flatten();
    logs.map(|key| std::fs::read_to_string(key.path().join("log")).unwrap_or_default())
        .collect()
}

/// The servers that live.
pub(crate) fn servers(scope: &Scope) -> Vec<ProcessRef> {
    let is_server = |process: &ProcessRef| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
        name.is_ok_and(|name| name == "tk-shared\n")
    };
    scope.survivors().into_iter().filter(is_server).collect()
}
