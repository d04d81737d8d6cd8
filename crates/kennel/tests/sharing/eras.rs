//! What a daemon makes of a server that was asked for its era.

use std::process::Command;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, wait_for};
use serde_json::json;

use crate::auto::{CAPABILITIES, VERSION};
use crate::stage::{kennel, listing, log};

/// The first of it says nothing and has to be killed; those after it answer.
fn slow_at_first(scope: &Scope) -> Command {
    let script = r#"mkdir "$1" 2>/dev/null && exec sleep 1000; exec "$2""#;
    let mut command = kennel(scope);
    command
        .args(["run", "--share", "always", "--stop-after", "1s,50ms", "--"])
        .args(["sh", "-c", script, "sh"])
        .arg(scope.path("first"))
        .arg(bin("tk-server"));
    command
}

#[test]
fn a_server_that_is_killed_before_it_could_say_what_it_is_does_not_speak_for_the_next() {
    let scope = Scope::new("killed-early");
    let discover = |client: &mut Client| {
        client.send(
            "server/discover",
            json!({"_meta": {VERSION: "2026-07-28", CAPABILITIES: {}}}),
        )
    };
    let mut first = Client::start(&mut slow_at_first(&scope));
    let id = discover(&mut first);
    let is_sleep = |process: &ProcessRef| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
        name.is_ok_and(|name| name == "sleep\n")
    };
    let asked = wait_for("it runs", || scope.survivors().into_iter().find(is_sleep));
    wait_for("it was asked", || {
        let waiting = listing(&scope)[0]["servers"][0]["pid"].as_u64()?;
        (waiting == u64::from(asked.pid())).then_some(())
    });
    asked.signal(Signal::KILL).unwrap();
    first.answer(id);
    wait_for("its end is known", || {
        log(&scope).contains("Signal(9)").then_some(())
    });

    let mut second = Client::start(&mut slow_at_first(&scope));
    let id = discover(&mut second);
    let answer = second.answer(id);
    assert_eq!(answer["result"]["unknown"], "server/discover", "{answer}");
}

/// Knows the modern era, and says in its own words that it has no `initialize`.
fn modern_only(scope: &Scope) -> Command {
    let script = r#"
        read -r discover; echo '{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"]}}'
        read -r initialize; echo '{"jsonrpc":"2.0","id":"2","error":{"code":-32022,"message":"modern only"}}'
        exec cat > /dev/null"#;
    let mut command = kennel(scope);
    command
        .args(["run", "--share", "always", "--stop-after", "1s,50ms", "--"])
        .args(["sh", "-c", script]);
    command
}

#[test]
fn initialize_after_a_successful_discover_is_answered_by_the_server() {
    let scope = Scope::new("discover-then-initialize");
    let mut client = Client::start(&mut modern_only(&scope));
    let meta = json!({"_meta": {VERSION: "2026-07-28", CAPABILITIES: {}}});
    let id = client.send("server/discover", meta);
    let known = client.answer(id);
    assert!(known["result"].is_object(), "{known}");
    let legacy = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    let id = client.send("initialize", legacy);
    let answer = client.answer(id);
    assert_eq!(answer["error"]["code"], -32022, "{answer}");
}
