//! A daemon under the key of version 1, as an earlier build started it.

use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use kennel_core::hello::{ClientHello, Control, Text};
use kennel_testkit::{Client, Scope, bin, run};
use serde_json::{Value, json};

use crate::stage::{Cast, Daemon, former_key_of, hello};

fn session(scope: &Scope) -> Command {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args([
            "run",
            "--share",
            "always",
            "--stop-after",
            "50ms,50ms",
            "--env-key",
            "HOME",
        ])
        .args(["--cwd", "/", "--"])
        .arg(bin("tk-server"))
        .env("TESTKIT_ROLL", scope.roll());
    // Credentials always count: the hello below has no other.
    for (name, _) in std::env::vars_os() {
        let is_plain = ["PATH", "HOME"].iter().any(|plain| name == *plain);
        if !is_plain && !name.as_bytes().starts_with(b"KENNEL_") {
            command.env_remove(&name);
        }
    }
    let marks = scope.command("any");
    command.envs(
        marks
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command
}

/// The hello of such a session.
fn its_hello(scope: &Scope) -> ClientHello {
    let mut hello = hello(scope, &[bin("tk-server").as_os_str().as_bytes()]);
    if let Some(fields) = &mut hello.key {
        fields.names = vec![Text::from(&b"HOME"[..])];
        fields.env_key = Some(fields.names.clone());
    }
    hello
}

#[test]
fn a_session_joins_the_daemon_of_its_former_key_and_starts_no_second_writer() {
    let (daemon, _first) = Daemon::at_key("former", Cast::default(), its_hello, former_key_of);
    let mut one = Client::begin(&mut session(&daemon.scope));
    let mut two = Client::begin(&mut session(&daemon.scope));
    for client in [&mut one, &mut two] {
        assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
    }
    daemon.state_when("both share its server", |state| {
        state["servers"][0]["clients"] == 2
    });
    let ended = run(daemon
        .scope
        .command(env!("CARGO_BIN_EXE_kennel"))
        .args(["ps", "--json"]));
    let all: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["daemon_pid"], daemon.process.pid());
    drop((one, two));
    daemon.stop();
}

#[test]
fn a_daemon_of_a_former_key_serves_those_who_have_one_key_now() {
    let with = |scope: &Scope, token: &[u8]| {
        let mut hello = its_hello(scope);
        let name = Text::from(&b"CLAUDE_CODE_OAUTH_TOKEN"[..]);
        hello.env.push((name, Text::from(token)));
        hello
    };
    // That name did not count for version 1.
    let (daemon, mut first) = Daemon::at_key(
        "former-one",
        Cast::default(),
        |scope| with(scope, b"1"),
        former_key_of,
    );
    first.greet(&daemon.hello());
    assert_eq!(first.ask("echo", json!(1)), 1);
    let mut same = daemon.client();
    assert_eq!(same.ask("echo", json!(2)), 2);
    let mut other = daemon.connect();
    other.greet(&with(&daemon.scope, b"2"));
    match other.word() {
        Control::Solo(solo) => assert!(solo.why.contains("its key"), "{solo:?}"),
        word => panic!("{word:?}"),
    }
    daemon.stop();
}
