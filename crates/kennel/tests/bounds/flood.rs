//! Requests without end, to a server that does not answer, and lines without end that mean nothing.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};

use kennel_core::session::IN_FLIGHT_LIMIT;
use kennel_testkit::{Client, Scope, wait_for};
use serde_json::{Value, json};

use crate::daemon::connect;
use crate::stage::{is_modest, serves, session, the_daemon};
use crate::unread::log;

#[test]
fn past_the_limit_requests_are_refused_at_once_and_the_rest_is_answered() {
    let scope = Scope::new("bounds-flood");
    for share in ["never", "always"] {
        let mut client = Client::begin(&mut session(&scope, share));
        let slow = client.send("slow", json!({"ms": 3000}));
        let all = IN_FLIGHT_LIMIT as u64 + 5000;
        let first = 10_000_000;
        let lines: String = (first..first + all)
            .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"echo\"}}\n"))
            .collect();
        client.say(&lines);
        let mut waiting: BTreeSet<u64> = (first..first + all).chain([slow]).collect();
        let mut refused = 0;
        while !waiting.is_empty() {
            let answer: Value = serde_json::from_str(&client.line().unwrap()).unwrap();
            assert!(waiting.remove(&answer["id"].as_u64().unwrap()), "{answer}");
            if answer["error"]["code"] == -32000 {
                assert_eq!(answer["error"]["data"]["reason"], "too_many_requests");
                refused += 1;
            }
        }
        assert!(refused > 0, "{share}");
        serves(&mut client);
        is_modest("the shim", client.pid());
        if share == "always" {
            is_modest("the daemon", the_daemon(&scope).pid());
        }
    }
}

#[test]
fn an_id_without_bound_is_refused() {
    let scope = Scope::new("bounds-id");
    // A server of its own is told the app's ids as they are; to share one, they have to be kept beside others.
    for (share, length, is_refused) in [
        ("never", 5000, false),
        ("never", 2 << 20, true),
        ("always", 5000, true),
    ] {
        let mut client = Client::begin(&mut session(&scope, share));
        let id = "i".repeat(length);
        client.say(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"echo\"}}\n"
        ));
        let answer: Value = serde_json::from_str(&client.line().unwrap()).unwrap();
        let refused = answer["error"]["code"] == -32600;
        assert_eq!(refused, is_refused, "{share} {length}");
        assert_eq!(answer["id"], id);
        serves(&mut client);
    }
}

#[test]
fn a_flood_of_lines_on_stderr_leaves_the_log_to_others() {
    let scope = Scope::new("bounds-stderr");
    let mut client = Client::begin(&mut session(&scope, "always"));
    let said = client.request("say", json!({"stderr": "e\n".repeat(100_000)}));
    assert_eq!(said["result"], "said", "{said}");
    // Its end is logged behind all that it said.
    client.send("die", json!({}));
    let log = wait_for("the server's end is logged", || {
        Some(log(&scope)).filter(|log| log.contains("a server is lost"))
    });
    let logged = log.matches("server says: e").count();
    assert!((1..=1000).contains(&logged), "{logged}");
    assert!(log.contains("runs for"), "its beginning is there");
}

#[test]
fn a_flood_of_lines_that_are_no_messages_leaves_the_log_to_others() {
    let scope = Scope::new("bounds-notes");
    let mut command = session(&scope, "always");
    // Else a client without a hello is not served.
    command.env_remove("SECRET_CANARY_TOKEN");
    let mut client = Client::begin(&mut command);
    let mut bare = connect(&scope);
    let params = json!({
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "testkit", "version": "0"},
    });
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let ping = json!({"jsonrpc": "2.0", "id": "last", "method": "ping"});
    let lines = format!("{request}\n{}{ping}\n", "x\n".repeat(5000));
    bare.write_all(lines.as_bytes()).unwrap();
    let mut answers = BufReader::new(&bare).lines();
    let last = answers.find(|line| line.as_ref().is_ok_and(|it| it.contains("last")));
    assert!(last.is_some(), "{}", log(&scope));
    serves(&mut client);
    let log = log(&scope);
    let logged = log.matches("dropped a line from client").count();
    assert!((1..=100).contains(&logged), "{logged}");
}
