//! What the server keeps for its clients: subscriptions, log levels, lists.

use kennel_testkit::{Client, Scope, wait_for};
use serde_json::{Value, json};

use crate::stage::{seen, servers, session, shared_with};

fn subscribe(client: &mut Client, uri: &str) {
    let answer = client.request("resources/subscribe", json!({"uri": uri}));
    assert_eq!(answer["result"], json!({}));
}

/// Everything that is said to a client up to the answer to a ping, which is answered at once.
fn heard(client: &mut Client) -> Vec<Value> {
    client.say("{\"jsonrpc\":\"2.0\",\"id\":\"fence\",\"method\":\"tools/call\",\"params\":{\"name\":\"seen\"}}\n");
    let mut heard = Vec::new();
    loop {
        let line: Value = serde_json::from_str(&client.line().unwrap()).unwrap();
        if line["id"] == "fence" {
            return heard;
        }
        heard.push(line);
    }
}

#[test]
fn a_resource_is_subscribed_once_and_its_changes_are_told_to_subscribers_alone() {
    let scope = Scope::new("subscribe");
    let (mut one, mut two, mut other) = (session(&scope), session(&scope), session(&scope));
    subscribe(&mut one, "a:1");
    subscribe(&mut two, "a:1");
    subscribe(&mut other, "b:2");
    assert_eq!(seen(&mut one)["subscribed"], json!(["a:1", "b:2"]));

    other.call("touch", json!({"uri": "a:1"}));
    for client in [&mut one, &mut two] {
        let told = heard(client);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0]["params"]["uri"], "a:1");
    }
    assert_eq!(heard(&mut other), Vec::<Value>::new());

    one.request("resources/unsubscribe", json!({"uri": "a:1"}));
    assert_eq!(seen(&mut one)["unsubscribed"], json!([]));
    two.request("resources/unsubscribe", json!({"uri": "a:1"}));
    assert_eq!(seen(&mut one)["unsubscribed"], json!(["a:1"]));
}

#[test]
fn a_killed_client_gives_up_its_subscriptions_and_its_calls() {
    let scope = Scope::new("killed-client");
    let (mut one, mut killed) = (session(&scope), session(&scope));
    subscribe(&mut killed, "a:1");
    let work = json!({"name": "work", "arguments": {"ms": 600_000, "tag": "x"}});
    killed.send("tools/call", work.clone());
    killed.send("tools/call", work);
    wait_for("its calls are there", || {
        (seen(&mut one)["calls"].as_u64() >= Some(2)).then_some(())
    });
    killed.kill();
    wait_for("both are cancelled", || {
        (seen(&mut one)["cancelled"] == 2).then_some(())
    });
    wait_for("nothing is subscribed", || {
        (seen(&mut one)["unsubscribed"] == json!(["a:1"])).then_some(())
    });
    assert_eq!(servers(&scope).len(), 1);
}

#[test]
fn a_cancelled_call_is_cancelled_at_the_server_and_never_heard_of_again() {
    let scope = Scope::new("cancel");
    let (mut one, mut other) = (session(&scope), session(&scope));
    let work = |ms: u64| json!({"name": "work", "arguments": {"ms": ms, "tag": "x"}});
    // The same ids on both: the other's call goes on.
    let id = one.send("tools/call", work(600_000));
    let others = other.send("tools/call", work(300));
    assert_eq!(id, others);
    one.say(&format!(
        "{}\n",
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "ünnötig"}})
    ));
    wait_for("it is cancelled", || {
        (seen(&mut one)["cancelled"] == 1).then_some(())
    });
    assert!(other.answer(others)["result"].is_object());
    assert_eq!(heard(&mut one), Vec::<Value>::new());
}

#[test]
fn each_client_hears_the_log_at_its_own_level_and_the_server_speaks_for_the_most_curious() {
    let scope = Scope::new("levels");
    let (mut curious, mut calm) = (session(&scope), session(&scope));
    curious.request("logging/setLevel", json!({"level": "debug"}));
    calm.request("logging/setLevel", json!({"level": "error"}));
    assert_eq!(seen(&mut calm)["levels"], json!(["debug"]));
    for level in ["debug", "error"] {
        calm.call("log", json!({"level": level, "tag": level}));
    }
    let levels = |told: Vec<Value>| -> Vec<Value> {
        let level = |line: &Value| line["params"]["level"].clone();
        told.iter().map(level).collect()
    };
    assert_eq!(levels(heard(&mut curious)), ["debug", "error"]);
    calm.kill();
    drop(calm);
}

#[test]
fn a_list_is_asked_for_once_until_it_changes_unless_somebody_wants_it_fresh() {
    for (options, asked) in [(&[][..], [1, 2]), (&["--no-cache"][..], [5, 10])] {
        let scope = Scope::new("lists");
        let mut clients: Vec<Client> = (0..5)
            .map(|_| Client::begin(&mut shared_with(&scope, options)))
            .collect();
        let ask_all = |clients: &mut Vec<Client>| {
            let list =
                |client: &mut Client| client.request("tools/list", json!({}))["result"].clone();
            let answers: Vec<Value> = clients.iter_mut().map(list).collect();
            assert!(answers.iter().all(|answer| *answer == answers[0]));
        };
        ask_all(&mut clients);
        assert_eq!(seen(&mut clients[0])["lists"], asked[0], "{options:?}");
        clients[3].call("change", json!({}));
        for client in &mut clients[..3] {
            let told = heard(client);
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0]["method"], "notifications/tools/list_changed");
        }
        ask_all(&mut clients);
        assert_eq!(seen(&mut clients[0])["lists"], asked[1], "{options:?}");
    }
}
