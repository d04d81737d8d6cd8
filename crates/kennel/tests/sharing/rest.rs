//! Sessions that outlast their server on purpose: hibernation, and the way back from a server of one's own.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use kennel_testkit::{Client, Scope, bin, run, wait_for};
use serde_json::{Value, json};

use crate::stage::{kennel, listing, seen, server_of, servers, shared_with};

fn solo_with(scope: &Scope, options: &[&str]) -> Command {
    let mut command = kennel(scope);
    command
        .args(["run", "--share", "never", "--stop-after", "1s,50ms"])
        .args(options)
        .arg("--")
        .arg(bin("tk-shared"))
        .env("TESTKIT_ROLL", scope.roll());
    command
}

fn states(scope: &Scope) -> Vec<Value> {
    let entries = listing(scope).into_iter();
    entries.map(|entry| entry["state"].clone()).collect()
}

fn nobody_serves(scope: &Scope) {
    wait_for("no server is left", || {
        servers(scope).is_empty().then_some(())
    });
}

#[test]
fn a_session_of_its_own_hibernates_and_the_next_request_wakes_it() {
    let scope = Scope::new("hibernates");
    let mut client = Client::begin(&mut solo_with(&scope, &["--hibernate", "200ms"]));
    client.request("resources/subscribe", json!({"uri": "a:1"}));
    client.request("logging/setLevel", json!({"level": "debug"}));
    let first = server_of(&mut client);
    nobody_serves(&scope);
    wait_for("it is listed", || {
        (states(&scope) == ["hibernating"]).then_some(())
    });
    let stop = run(kennel(&scope).args(["stop", "--all"]));
    assert_eq!(stop.code(), Some(0), "{}", stop.stderr);
    assert!(stop.stdout.contains("nothing to stop"), "{}", stop.stdout);
    // The session itself is there.
    assert_eq!(client.request("ping", json!({}))["result"], json!({}));
    assert!(servers(&scope).is_empty(), "a ping wakes nobody");
    let told = seen(&mut client);
    assert_ne!(told["pid"], first);
    assert_eq!(told["subscribed"], json!(["a:1"]));
    assert_eq!(told["levels"], json!(["debug"]));
    // And again: it costs no budget, however often.
    for _ in 0..7 {
        nobody_serves(&scope);
        server_of(&mut client);
    }
}

#[test]
fn a_call_under_way_keeps_a_server_awake() {
    let scope = Scope::new("awake");
    for (mode, mut command) in [
        ("solo", solo_with(&scope, &["--hibernate", "100ms"])),
        ("shared", shared_with(&scope, &["--hibernate", "100ms"])),
    ] {
        let mut client = Client::begin(&mut command);
        let result = client.call("work", json!({"ms": 1500, "tag": "done"}));
        assert_eq!(result["content"][0]["text"], "done", "{mode}");
    }
}

#[test]
fn ten_sessions_hibernate_together_and_share_a_server_when_they_wake() {
    let scope = Scope::new("ten-hibernate");
    // Long enough that nobody who is about to ask finds it gone again.
    let options = ["--hibernate", "2s", "--linger", "0s"];
    let mut clients: Vec<Client> = (0..10)
        .map(|_| Client::begin(&mut shared_with(&scope, &options)))
        .collect();
    clients[3].request("resources/subscribe", json!({"uri": "a:1"}));
    let first = server_of(&mut clients[0]);
    nobody_serves(&scope);
    wait_for("ten sessions are listed, and no daemon", || {
        let listing = listing(&scope);
        let clients = listing.first()?["clients"].as_array()?.len();
        let one = listing.len() == 1 && listing[0]["daemon_pid"].is_null();
        (one && clients == 10 && listing[0]["state"] == "hibernating").then_some(())
    });
    for client in &mut clients {
        assert_ne!(server_of(client), first);
    }
    assert_eq!(servers(&scope).len(), 1);
    clients[7].call("touch", json!({"uri": "a:1"}));
    let told = clients[3].line().unwrap();
    assert!(told.contains("notifications/resources/updated"), "{told}");
}

#[test]
fn a_shared_server_hibernates_only_while_all_its_clients_want_that() {
    let scope = Scope::new("one-wants");
    // The one that has it started wants none of it.
    let mut other = Client::begin(&mut shared_with(&scope, &["--hibernate", "never"]));
    let mut sleepy = Client::begin(&mut shared_with(&scope, &["--hibernate", "100ms"]));
    let server = server_of(&mut sleepy);
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_secs(1))).unwrap();
    assert_eq!(server_of(&mut other), server);
    other.close();
    other.wait();
    nobody_serves(&scope);
    assert_ne!(server_of(&mut sleepy), server);
}

#[test]
fn requests_that_meet_a_server_falling_asleep_are_answered() {
    let scope = Scope::new("falling-asleep");
    let options = ["--hibernate", "20ms", "--linger", "0s"];
    for mut command in [solo_with(&scope, &options), shared_with(&scope, &options)] {
        let mut client = Client::begin(&mut command);
        for round in 0..60 {
            let tag = format!("{round}");
            // Around the moment it falls asleep, again and again; the work is not safe to repeat.
            let work = json!({"tag": tag, "ms": round % 7});
            assert_eq!(client.call("work", work)["content"][0]["text"], tag);
            let nap = Duration::from_millis(17 + round % 8);
            let _ = std::sync::mpsc::channel::<()>().1.recv_timeout(nap);
        }
    }
}

#[test]
fn a_session_that_had_to_do_without_a_daemon_comes_back_when_there_can_be_one() {
    let scope = Scope::new("comes-back");
    let place = scope.runtime_dir();
    std::fs::create_dir(&place).unwrap();
    let mode = |mode| std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode));
    mode(0o777).unwrap();
    let mut client = Client::begin(&mut shared_with(&scope, &[]));
    client.request("resources/subscribe", json!({"uri": "a:1"}));
    let own = server_of(&mut client);
    let said = wait_for("it says so", || {
        let said = client.stderr_so_far();
        (!said.is_empty()).then_some(said)
    });
    assert!(said.contains("using a dedicated server"), "{said}");

    mode(0o700).unwrap();
    wait_for("it shares", || {
        let listed = listing(&scope);
        let shared = listed.iter().find(|entry| entry["mode"] == "shared")?;
        (shared["clients"].as_array()?.len() == 1).then_some(())
    });
    let told = seen(&mut client);
    assert_ne!(told["pid"], own);
    assert_eq!(told["subscribed"], json!(["a:1"]));
    // What ends the session's process tree must not end everybody's daemon.
    let daemon = listing(&scope)[0]["daemon_pid"].as_u64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    assert!(
        !status.contains(&format!("PPid:\t{}\n", client.pid())),
        "{status}"
    );
    let mut other = Client::begin(&mut shared_with(&scope, &[]));
    assert_eq!(seen(&mut other)["pid"], told["pid"]);
    wait_for("its own server is gone", || {
        (servers(&scope).len() == 1).then_some(())
    });
}
