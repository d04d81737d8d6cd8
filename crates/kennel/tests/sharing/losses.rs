//! Servers that end: what the app is told, and when the next one starts. The same for a session's own server and for a
//! shared one.

use std::process::Command;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, wait_for};
use serde_json::{Value, json};

use crate::stage::kennel;

const MODES: [&str; 2] = ["never", "always"];

fn session(scope: &Scope, share: &str) -> Command {
    session_stopped_after(scope, share, "1s,50ms")
}

fn session_stopped_after(scope: &Scope, share: &str, times: &str) -> Command {
    let mut command = kennel(scope);
    command
        .args(["run", "--share", share, "--stop-after", times, "--"])
        .arg(bin("tk-server"));
    command
}

/// Works once; every later one ends before it answers.
fn works_once(scope: &Scope, share: &str) -> Command {
    let script = r#"mkdir "$1" 2>/dev/null && exec "$2"; echo broken >&2; exit 7"#;
    let mut command = kennel(scope);
    command
        .args(["run", "--share", share, "--stop-after", "1s,50ms", "--"])
        .args(["sh", "-c", script, "sh"])
        .arg(scope.path("first"))
        .arg(bin("tk-server"));
    command
}

fn server_of(client: &mut Client) -> ProcessRef {
    let pid = client.request("pid", json!({}))["result"].as_u64().unwrap();
    ProcessRef::open(u32::try_from(pid).unwrap()).unwrap()
}

fn data(answer: &Value) -> &Value {
    &answer["error"]["data"]
}

#[test]
fn a_server_that_crashes_is_lost_though_a_helper_of_it_holds_its_stdio() {
    for share in MODES {
        for holds in ["stdout", "both"] {
            let scope = Scope::new("helper-holds");
            let mut client = Client::begin(&mut session(&scope, share));
            let before = server_of(&mut client);
            let lost = client.request("abandon", json!({"holds": holds}));
            assert_eq!(data(&lost)["signal"], "SIGABRT", "{share}: {lost}");
            let after = server_of(&mut client);
            assert_ne!(after.pid(), before.pid(), "{share}, {holds}");
        }
    }
}

/// The first one dies in the middle of an answer; those after it answer.
const CUT_OFF: &str = r#"
mkdir "$1" 2>/dev/null || exec "$2"
while read -r line; do
    id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    case $line in
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}\n' "$id" ;;
    *tools/list*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"na' "$id"; exit 9 ;;
    esac
done
"#;

#[test]
fn a_safe_request_that_was_half_answered_is_sent_to_the_next_server() {
    for share in MODES {
        let scope = Scope::new("half-answered");
        let mut command = kennel(&scope);
        command
            .args(["run", "--share", share, "--stop-after", "1s,50ms", "--"])
            .args(["sh", "-c", CUT_OFF, "sh"])
            .arg(scope.path("first"))
            .arg(bin("tk-server"));
        let mut client = Client::begin(&mut command);
        let answer = client.request("tools/list", json!({}));
        assert!(answer["result"].is_object(), "{share}: {answer}");
    }
}

#[test]
fn a_server_whose_launcher_was_killed_goes_on() {
    for share in MODES {
        let scope = Scope::new("launcher-killed");
        let mut command = kennel(&scope);
        command
            .args(["run", "--share", share, "--stop-after", "1s,50ms", "--"])
            .args(["sh", "-c", r#"exec 3<&0; "$1" <&3 & wait"#, "sh"])
            .arg(bin("tk-server"));
        let mut client = Client::begin(&mut command);
        let server = server_of(&mut client);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
        let launcher: u32 = stat.split(' ').nth(3).unwrap().parse().unwrap();
        let launcher = ProcessRef::open(launcher).unwrap();
        launcher.signal(Signal::KILL).unwrap();
        launcher.wait(None).unwrap();
        // Longer than a moment, and far shorter than what counts as silence.
        let slow = client.request("slow", json!({"ms": 2_000}));
        assert_eq!(slow["result"], "slow", "{share}: {slow}");
        assert_eq!(server_of(&mut client).pid(), server.pid(), "{share}");
    }
}

#[test]
fn a_loss_says_how_the_server_ended() {
    for share in MODES {
        let scope = Scope::new("how-it-ended");
        let mut client = Client::begin(&mut session(&scope, share));
        let died = client.request("die", json!({}));
        assert_eq!(data(&died)["exitCode"], 3, "{share}: {died}");
        assert_eq!(data(&died)["reason"], "server_restarted");

        let server = server_of(&mut client);
        let lost = client.send("slow", json!({"ms": 600_000, "stderr": "it has begun"}));
        wait_for("the call has begun", || {
            client
                .stderr_so_far()
                .contains("it has begun")
                .then_some(())
        });
        server.signal(Signal::KILL).unwrap();
        let killed = client.answer(lost);
        assert_eq!(data(&killed)["signal"], "SIGKILL", "{share}: {killed}");
        let message = killed["error"]["message"].as_str().unwrap();
        assert!(message.contains("possibly out of memory"), "{message}");
    }
}

#[test]
fn a_server_that_answers_and_dies_is_started_again_however_often() {
    for share in MODES {
        let scope = Scope::new("again-and-again");
        let mut client = Client::begin(&mut session(&scope, share));
        for round in 0..8 {
            let died = client.request("die", json!({}));
            assert_eq!(data(&died)["reason"], "server_restarted", "{share} {round}");
            let echo = client.request("echo", json!([round]));
            assert_eq!(echo["result"], json!([round]), "{share}");
        }
    }
}

#[test]
fn a_server_that_never_answers_again_is_given_up_with_the_time_of_the_next_attempt() {
    for share in MODES {
        let scope = Scope::new("given-up");
        let mut client = Client::begin(&mut works_once(&scope, share));
        client.request("die", json!({}));
        let refused = client.request("echo", json!([1]));
        let why = data(&refused);
        assert_eq!(why["reason"], "server_unavailable", "{share}: {refused}");
        assert_eq!(why["exitCode"], 7, "{share}: {refused}");
        assert_eq!(why["detail"], "broken", "{share}");
        let wait = why["retryAfterMs"].as_u64().expect("a time");
        assert!((1..=10_000).contains(&wait), "{share}: {wait}");
        // Before its time, at once; after it, there is another attempt.
        wait_for("it works when it is mended", || {
            let _ = std::fs::remove_dir(scope.path("first"));
            let answer = client.request("echo", json!([2]));
            (answer["result"] == json!([2])).then_some(())
        });
    }
}

#[test]
fn an_app_that_closes_its_input_does_not_wait_for_a_server_for_ever() {
    for share in ["always", "never"] {
        let scope = Scope::new("closed-input");
        let mut client = Client::begin(&mut session_stopped_after(&scope, share, "100ms,50ms"));
        let slow = client.send("slow", json!({"ms": 600_000, "stderr": "it has begun"}));
        wait_for("the call has begun", || {
            let said = client.stderr_so_far();
            said.contains("it has begun").then_some(())
        });
        client.close();
        let refused = client.answer(slow);
        assert_eq!(data(&refused)["outcome"], "unknown", "{share}: {refused}");
        let detail = data(&refused)["detail"].as_str().unwrap();
        assert!(
            detail.contains("did not answer in time"),
            "{share}: {refused}"
        );
        assert_eq!(client.wait().code(), Some(0), "{share}");
    }
}
