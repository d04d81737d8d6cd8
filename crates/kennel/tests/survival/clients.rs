//! The official clients, while what is behind their sessions is killed, stopped or put to rest: nothing but answers
//! reaches them.

use std::path::PathBuf;
use std::process::Command;

use kennel_sys::Signal;
use kennel_testkit::{Client, Scope, full, tool, wait_for};
use serde_json::{Value, json};

use crate::stage::{LOSSES, Way, daemons, have_begun, kill, servers, session};

/// One of the official clients.
#[derive(Clone, Copy)]
enum Official {
    TypeScript,
    Python,
}

impl Official {
    /// Starts it, and it starts this session.
    fn start(self, scope: &Scope, session: &Command) -> Client {
        let (program, name, script) = match self {
            Official::TypeScript => (
                tool("node").unwrap(),
                "client.mjs",
                include_str!("official.mjs"),
            ),
            Official::Python => (
                bed().join("python/bin/python"),
                "client.py",
                include_str!("official.py"),
            ),
        };
        let file = scope.path(name);
        std::fs::write(&file, script).unwrap();
        // Its packages are looked for beside it.
        let packages = bed().join("npm/node_modules");
        std::os::unix::fs::symlink(packages, scope.path("node_modules")).unwrap();
        let mut command = scope.command(&program);
        command
            .arg(file)
            .arg(session.get_program())
            .args(session.get_args());
        for (variable, value) in session.get_envs() {
            if let Some(value) = value {
                command.env(variable, value);
            }
        }
        Client::start(&mut command)
    }
}

fn bed() -> PathBuf {
    let bed = std::env::var_os("TESTKIT_BED").map(PathBuf::from);
    bed.expect("the testbed: run these tests with `cargo xtask test`")
}

/// What it says of a round. It noticed nothing but answers, and the read went all the way.
#[track_caller]
fn round_went_well(client: &mut Client, round: usize) -> Value {
    let said = client.line().unwrap_or_else(|| client.stderr_so_far());
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    let progress: Vec<f64> = serde_json::from_value(said["progress"].clone()).unwrap();
    assert!(progress.is_sorted_by(|one, other| one < other), "{said}");
    assert_eq!(progress.last(), Some(&3.0), "{said}");
    assert_eq!(said["text"], round.to_string(), "{said}");
    assert_eq!(said["odd"], json!([]), "{said}");
    said["work"].clone()
}

/// Each client says so in its own way.
fn is_done(work: &Value) -> bool {
    work == "done" || work == "0"
}

#[track_caller]
fn ends_well(mut client: Client) {
    client.close();
    let ended = client.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
}

/// Two rounds on each way, with a kill in each; on the most different ways, unless there is time for all.
fn notices_nothing(official: Official) {
    let losses = match full() {
        true => LOSSES.to_vec(),
        false => vec![LOSSES[0], LOSSES[3]],
    };
    for (way, victim) in losses {
        let scope = Scope::new("official");
        let mut client = official.start(&scope, &session(&scope, way, "app", &[]));
        for round in 1..=2 {
            client.say(&format!("{round}\n"));
            // Two in each round, and the read once more.
            have_begun(&scope, 3 * round - 1);
            kill(&scope, victim);
            let work = round_went_well(&mut client, round);
            assert_eq!(work, "-32603 unknown", "{way:?} {victim:?}");
        }
        ends_well(client);
    }
}

/// Its server hibernates between two rounds.
fn notices_no_hibernation(official: Official) {
    for way in [Way::Solo, Way::Shared] {
        let scope = Scope::new("official");
        let options = ["--hibernate", "300ms"];
        let mut client = official.start(&scope, &session(&scope, way, "app", &options));
        for _ in 0..2 {
            client.say("0\n");
            assert!(is_done(&round_went_well(&mut client, 0)), "{way:?}");
            wait_for("nobody serves", || servers(&scope).is_empty().then_some(()));
        }
        ends_well(client);
    }
}

/// Its daemon is stopped for good.
fn notices_no_stopped_daemon(official: Official) {
    let scope = Scope::new("official");
    let mut client = official.start(&scope, &session(&scope, Way::Shared, "app", &[]));
    client.say("0\n");
    assert!(is_done(&round_went_well(&mut client, 0)));
    let daemon = daemons(&scope).pop().expect("a daemon");
    daemon.signal(Signal::STOP).unwrap();
    client.say("0\n");
    // Nobody knows whether what a stopped daemon has was passed on.
    assert_eq!(round_went_well(&mut client, 0), "-32603 unknown");
    ends_well(client);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_typescript_client_notices_nothing_but_answers() {
    notices_nothing(Official::TypeScript);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_python_client_notices_nothing_but_answers() {
    notices_nothing(Official::Python);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_clients_do_not_notice_that_their_server_hibernates() {
    notices_no_hibernation(Official::TypeScript);
    notices_no_hibernation(Official::Python);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_clients_go_on_when_their_daemon_is_stopped() {
    notices_no_stopped_daemon(Official::TypeScript);
    notices_no_stopped_daemon(Official::Python);
}
