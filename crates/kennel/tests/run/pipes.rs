//! A session that talks has pipes beside its socket, and nobody notices.

use std::time::Duration;

use kennel_sys::Signal;
use kennel_testkit::{Client, Scope, wait_for};
use serde_json::json;

use crate::stage::{serves, shared, shared_and_patient, the_daemon};

/// How many pipes the shim has open.
fn pipes_of(client: &Client) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", client.pid())).unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("pipe:"))
        .count()
}

/// After that, and not before, it has two more.
#[track_caller]
fn talk(client: &mut Client) {
    let before = pipes_of(client);
    for number in 0..40 {
        let answer = client.request("echo", json!({"number": number}));
        assert_eq!(answer["result"], json!({"number": number}), "{answer}");
    }
    assert_eq!(pipes_of(client), before + 2);
}

#[test]
fn a_session_that_talks_has_pipes_and_goes_on_when_its_daemon_is_killed() {
    let scope = Scope::new("talks");
    let mut client = Client::begin(&mut shared(&scope));
    for round in 0..3 {
        talk(&mut client);
        let long = "x".repeat(3 << 20);
        let answer = client.request("echo", json!([long]));
        assert_eq!(answer["result"][0], long.as_str());
        let daemon = the_daemon(&scope);
        let begun = format!("{round}: begun");
        let lost = client.send("slow", json!({"ms": 600_000, "stderr": begun}));
        wait_for(&begun, || {
            client.stderr_so_far().contains(&begun).then_some(())
        });
        daemon.signal(Signal::KILL).unwrap();
        let answer = client.answer(lost);
        let reason = &answer["error"]["data"]["reason"];
        assert_eq!(reason, "server_restarted", "{answer}");
        assert!(daemon.wait(Some(Duration::from_secs(60))).unwrap());
        serves(&mut client);
    }
    client.close();
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn what_was_asked_before_the_end_of_input_is_answered_through_the_pipe() {
    let scope = Scope::new("talks-eof");
    let mut client = Client::begin(&mut shared_and_patient(&scope));
    talk(&mut client);
    let slow = client.send("slow", json!({"ms": 500}));
    client.close();
    assert!(client.answer(slow).get("result").is_some());
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn one_whose_app_does_not_read_is_no_burden_and_loses_nothing() {
    let scope = Scope::new("talks-late");
    let mut client = Client::begin(&mut shared(&scope));
    talk(&mut client);
    // More than all pipes on the way hold, before the first answer is read.
    let text = "x".repeat(64 << 10);
    let calls: Vec<u64> = (0..64)
        .map(|_| client.send("echo", json!([text])))
        .collect();
    for call in calls {
        assert_eq!(client.answer(call)["result"][0], text.as_str());
    }
    client.close();
    assert_eq!(client.wait().code(), Some(0));
}
