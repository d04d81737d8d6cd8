//! A daemon under a key of version 1 or 2, as an earlier build started it.

use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::Arc;

use kennel_core::hello::{ClientHello, Control, Text};
use kennel_testkit::{Client, Scope, bin, run};
use serde_json::{Value, json};

use crate::stage::{Cast, Daemon, hello, key_of_version_1, key_of_version_2};

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
    // It did not count then.
    command.env("BW_SESSION", "s");
    command
}

/// The hello of such a session, with a credential that no former version counted.
fn its_hello(scope: &Scope) -> ClientHello {
    let mut hello = hello(scope, &[bin("tk-server").as_os_str().as_bytes()]);
    let session = (&b"BW_SESSION"[..], &b"s"[..]);
    Arc::make_mut(&mut hello.env).push((session.0.into(), session.1.into()));
    if let Some(fields) = &mut hello.key {
        fields.names = vec![Text::from(&b"HOME"[..])];
        fields.env_key = Some(fields.names.clone());
    }
    hello
}

/// How earlier builds computed keys.
type KeyOf = fn(&ClientHello) -> String;
const FORMER: [(&str, KeyOf); 2] = [("two", key_of_version_2), ("one", key_of_version_1)];

#[test]
fn a_session_joins_the_daemon_of_its_former_key_and_starts_no_second_writer() {
    for (version, former_key_of) in FORMER {
        let label = format!("former-{version}");
        let (daemon, _first) = Daemon::at_key(&label, Cast::default(), its_hello, former_key_of);
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
        assert_eq!(all.len(), 1, "{version}: {all:?}");
        assert_eq!(all[0]["daemon_pid"], daemon.process.pid());
        drop((one, two));
        daemon.stop();
    }
}

#[test]
fn a_daemon_of_a_former_key_serves_those_who_have_one_key_now() {
    // None of these counted with `--env-key` for the version.
    for (version, former_key_of, name, values) in [
        (1, FORMER[1].1, "CLAUDE_CODE_OAUTH_TOKEN", ["1", "2"]),
        (2, FORMER[0].1, "OP_SESSION_x", ["1", "2"]),
        (2, FORMER[0].1, "X", ["Bearer 1", "Bearer 2"]),
    ] {
        let with = |scope: &Scope, value: &str| {
            let mut hello = its_hello(scope);
            let pair = (name.as_bytes().into(), value.as_bytes().into());
            Arc::make_mut(&mut hello.env).push(pair);
            hello
        };
        let (daemon, mut first) = Daemon::at_key(
            &format!("former-{version}-{name}"),
            Cast::default(),
            |scope| with(scope, values[0]),
            former_key_of,
        );
        let other = with(&daemon.scope, values[1]);
        assert_eq!(
            former_key_of(&daemon.hello()),
            former_key_of(&other),
            "{name}"
        );
        first.greet(&daemon.hello());
        assert_eq!(first.ask("echo", json!(1)), 1);
        let mut same = daemon.client();
        assert_eq!(same.ask("echo", json!(2)), 2);
        let mut client = daemon.connect();
        client.greet(&other);
        match client.word() {
            Control::Solo(solo) => assert!(solo.why.contains("its key"), "{solo:?}"),
            word => panic!("{name}: {word:?}"),
        }
        daemon.stop();
    }
}
