//! Requests without end, to a server that does not answer.

use std::collections::BTreeSet;

use kennel_core::session::IN_FLIGHT_LIMIT;
use kennel_testkit::{Client, Scope};
use serde_json::{Value, json};

use crate::stage::{is_modest, serves, session, the_daemon};

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
