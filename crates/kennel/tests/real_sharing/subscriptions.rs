//! Updates reach those who subscribed, and a client that is killed is subscribed to nothing.

use kennel_testkit::{Scope, wait_for};
use serde_json::{Value, json};

use crate::person::{Person, enveloped};
use crate::stage::{always, clients_per_server_are, dual, everything};

const ONE: &str = "demo://resource/dynamic/text/1";
const TWO: &str = "demo://resource/dynamic/text/2";

/// Of which resources it was told that they changed.
fn updates(person: &Person) -> Vec<&Value> {
    let told = person.told.iter();
    let updates = told.filter(|it| it["method"] == "notifications/resources/updated");
    updates.map(|it| &it["params"]["uri"]).collect()
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_updates_of_server_everything_reach_subscribers_alone() {
    let scope = Scope::new("updates");
    let begin = |name| Person::legacy(name, &mut always(&scope, &everything()), &json!({}));
    let [mut one, mut both, mut none] = ["one", "both", "none"].map(begin);
    clients_per_server_are(&scope, &[3]);
    subscribe(&mut one, ONE);
    subscribe(&mut both, ONE);
    subscribe(&mut both, TWO);
    none.call("toggle-subscriber-updates", json!({}));
    one.is_told(|it| it["params"]["uri"] == ONE);
    both.is_told(|it| it["params"]["uri"] == TWO);
    none.call("toggle-subscriber-updates", json!({}));

    // The server says what it is told, to all.
    both.client.kill();
    let released = |it: &Value| {
        let data = it["params"]["data"].as_str().unwrap_or_default();
        data.contains("Received Unsubscribe") && data.contains(TWO)
    };
    none.is_told(released);
    one.call("echo", json!({"message": "fence"}));
    one.told.clear();
    none.call("toggle-subscriber-updates", json!({}));
    one.is_told(|it| it["params"]["uri"] == ONE);
    one.call("echo", json!({"message": "fence"}));
    none.call("echo", json!({"message": "fence"}));
    assert!(
        updates(&one).iter().all(|uri| **uri == ONE),
        "{:?}",
        one.told
    );
    assert_eq!(updates(&none), Vec::<&Value>::new());
    let unsubscribed_one = |it: &&Value| {
        it.to_string()
            .contains(&format!("Unsubscribe Resource request: {ONE}"))
    };
    assert_eq!(
        none.told.iter().find(unsubscribed_one),
        None,
        "one still wants it"
    );
}

fn subscribe(person: &mut Person, uri: &str) {
    let answer = person.request("resources/subscribe", json!({"uri": uri}));
    assert_eq!(answer["result"], json!({}), "{answer}");
}

fn modern_call(person: &mut Person, tool: &str, arguments: Value) -> Value {
    let answer = person.modern_request("tools/call", json!({"name": tool, "arguments": arguments}));
    let result = &answer["result"]["structuredContent"]["result"];
    assert!(!result.is_null(), "{answer}");
    result.clone()
}

/// `subscriptions/listen` under an id of the client's own choice.
fn listen(person: &mut Person, id: &Value, uri: &str) {
    let params = enveloped(json!({"notifications": {"resourceSubscriptions": [uri]}}));
    let line =
        json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params});
    person.client.say(&format!("{line}\n"));
    person.is_told(|it| {
        it["method"] == "notifications/subscriptions/acknowledged" && subscription(it) == id
    });
}

fn subscription(told: &Value) -> &Value {
    &told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_equal_ids_of_modern_subscriptions_are_each_their_clients_own() {
    for id in [json!("sub"), json!(7_000)] {
        let scope = Scope::new("listen");
        let begin = |name| Person::new(name, &mut always(&scope, &dual(&scope)));
        let [mut one, mut other, mut none] = ["one", "other", "none"].map(begin);
        listen(&mut one, &id, "bed://one");
        listen(&mut other, &id, "bed://other");
        assert_eq!(modern_call(&mut none, "listeners", json!({})), 2);
        clients_per_server_are(&scope, &[3]);
        for uri in ["bed://other", "bed://one", "bed://nobodys"] {
            modern_call(&mut none, "touch", json!({"uri": uri}));
        }
        for (person, uri) in [(&mut one, "bed://one"), (&mut other, "bed://other")] {
            person.is_told(|it| it["params"]["uri"] == uri);
            modern_call(person, "pid", json!({}));
            assert_eq!(updates(person), [uri]);
            assert!(
                person.told.iter().all(|it| *subscription(it) == id),
                "{:?}",
                person.told
            );
        }
        assert_eq!(none.told, Vec::<Value>::new());

        one.client.kill();
        wait_for("it listens no more", || {
            (modern_call(&mut none, "listeners", json!({})) == 1).then_some(())
        });
        modern_call(&mut none, "touch", json!({"uri": "bed://other"}));
        wait_for("the other one does", || {
            modern_call(&mut other, "pid", json!({}));
            (updates(&other).len() == 2).then_some(())
        });
    }
}
