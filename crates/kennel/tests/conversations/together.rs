//! Two at a time on one server: each hears what it hears alone with a server of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_testkit::{CANARY, Client, Scope, tool, wait_for};

use crate::sdks::{Script, hear, listen, python, typescript};
use crate::servers::{self, Server, bed};
use crate::ways::{Way, comparable};

/// Counts how often a server is started.
const COUNTED: &str = r#"starts=$1; shift; echo started >> "$starts"; exec "$@""#;

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_two_official_typescript_clients_hear_what_each_hears_alone() {
    let scope = Scope::new("ts-two");
    two_hear_the_same(&scope, &typescript(&scope));
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_two_official_python_clients_hear_what_each_hears_alone() {
    let scope = Scope::new("py-two");
    two_hear_the_same(&scope, &python(&scope));
}

#[track_caller]
fn two_hear_the_same(scope: &Scope, client: &Script) {
    for (number, mut server) in [servers::everything(), servers::python(scope)]
        .into_iter()
        .enumerate()
    {
        let copy = scope.path("alone");
        let mut alone = listen(
            scope,
            client,
            &server,
            &Way::Direct.to(&server, scope),
            &copy,
        );
        let alone = hear(Client::start(&mut alone), &server, &copy);
        let alone = comparable(without_news(alone));
        assert!(alone.concat().contains(server.said), "{alone:?}");

        let starts = scope.path(format!("starts-{number}"));
        let meeting = scope.path(format!("meeting-{number}"));
        std::fs::create_dir(&meeting).unwrap();
        count(&mut server, &starts);
        let command = Way::Daemon.to(&server, scope);
        let copies = ["one", "other"].map(|name| scope.path(format!("{name}-{number}")));
        let both = copies.each_ref().map(|copy| {
            let mut both = listen(scope, client, &server, &command, copy);
            Client::start(both.env("TESTKIT_MEETING", &meeting))
        });
        for (client, copy) in both.into_iter().zip(&copies) {
            let heard = comparable(without_news(hear(client, &server, copy)));
            assert_eq!(heard, alone);
        }
        assert_eq!(counted(&starts), 1);
    }
}

/// A server that adds tools when it is told of its client says so, and says it once: who comes later sees
/// them at once.
fn without_news(mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| !line.contains("/list_changed\""));
    lines
}

fn count(server: &mut Server, starts: &Path) {
    let mut line: Vec<OsString> = ["sh", "-c", COUNTED, "sh"].map(Into::into).to_vec();
    line.push(starts.into());
    line.append(&mut server.line);
    server.line = line;
}

fn counted(starts: &Path) -> usize {
    let text = std::fs::read_to_string(starts).unwrap_or_default();
    text.lines().count()
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_inspector_shows_the_same() {
    let scope = Scope::new("inspector");
    let mut server = servers::everything();
    let direct = Way::Direct.to(&server, &scope);
    let starts = scope.path("starts");
    count(&mut server, &starts);
    let shared = Way::Daemon.to(&server, &scope);

    // One is at work on the server all the time.
    let long = call(
        "trigger-long-running-operation",
        r#"{"duration": 600, "steps": 6000}"#,
    );
    let mut at_work = Client::start(&mut inspect(&scope, &shared, &long));
    wait_for("it has a server", || (counted(&starts) == 1).then_some(()));
    let asked = [
        ["--method", "tools/list"].to_vec(),
        call("echo", r#"{"message": "grüße 😀"}"#),
        call("echo", r#"{"message": 1}"#),
    ];
    let begin = |way| {
        asked
            .each_ref()
            .map(|words| Client::start(&mut inspect(&scope, way, words)))
    };
    let (alone, together) = (begin(&direct), begin(&shared));
    for ((words, alone), together) in asked.iter().zip(alone).zip(together) {
        let alone = shown(alone);
        assert!(
            alone.1.contains("\"text\"") || alone.1.contains("\"tools\""),
            "{alone:?}"
        );
        assert_eq!(shown(together), alone, "{words:?}");
    }
    assert_eq!(counted(&starts), 1);
    assert_eq!(at_work.try_wait(), None);
}

fn call<'a>(tool: &'a str, arguments: &'a str) -> Vec<&'a str> {
    let call = ["--method", "tools/call", "--tool-name", tool];
    [&call[..], &["--tool-args-json", arguments]].concat()
}

/// Its exit code, and what a person sees.
fn shown(mut inspector: Client) -> (Option<i32>, String, String) {
    inspector.close();
    let ended = inspector.wait();
    let stderr = without_banner(&ended.stderr);
    (ended.status.code(), ended.stdout, stderr)
}

/// What a server says when it starts is heard by whoever started it.
fn without_banner(stderr: &str) -> String {
    let lines = stderr
        .lines()
        .filter(|line| !line.starts_with("Starting default"));
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// The Inspector's command line for the server that `way` starts. It hands no environment on by itself.
fn inspect(scope: &Scope, way: &Command, words: &[&str]) -> Command {
    let inspector: PathBuf = bed().join("npm/node_modules/.bin/mcp-inspector");
    let mut command = scope.command(tool("node").unwrap());
    command.arg(inspector).arg("--cli");
    // What is said here every user can read: no secret goes this way.
    for (name, value) in way.get_envs().filter(|(name, _)| *name != CANARY) {
        if let Some(value) = value {
            let pair = format!("{}={}", name.display(), value.display());
            command.args(["-e", &pair]);
        }
    }
    command.args(words).arg("--");
    command.arg(way.get_program()).args(way.get_args());
    command
}
