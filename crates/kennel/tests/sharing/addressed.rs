//! What the server asks reaches the one who called, or nobody.

use std::time::Duration;

use kennel_testkit::{Client, Scope, wait_for};
use serde_json::{Value, json};

use crate::stage::{listing, log, seen, servers, shake_hands, shared_with, text};

fn able(scope: &Scope) -> Client {
    let mut client = Client::start(&mut shared_with(scope, &["--linger", "100ms"]));
    shake_hands(
        &mut client,
        "2025-06-18",
        json!({"sampling": {}, "roots": {}}),
    );
    client
}

fn ask(client: &mut Client, method: &str, tag: &str) -> u64 {
    let arguments = json!({"method": method, "tag": tag});
    client.send("tools/call", json!({"name": "ask", "arguments": arguments}))
}

/// The next line, which is a request of the server's.
#[track_caller]
fn asked(client: &mut Client) -> Value {
    let line: Value = serde_json::from_str(&client.line().unwrap()).unwrap();
    assert!(line["method"].is_string(), "{line}");
    line
}

fn answer(client: &mut Client, question: &Value, result: Value) {
    let line = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
    client.say(&format!("{line}\n"));
}

#[test]
fn a_question_reaches_the_only_one_who_called_and_its_answer_the_server() {
    let scope = Scope::new("sampling");
    let (mut idle, mut caller) = (able(&scope), able(&scope));
    for round in 0..3 {
        let tag = format!("round {round}");
        let call = ask(&mut caller, "sampling/createMessage", &tag);
        let question = asked(&mut caller);
        assert_eq!(question["params"]["tag"], tag.as_str());
        answer(&mut caller, &question, json!({"model": tag}));
        let result = caller.answer(call)["result"].clone();
        assert!(text(&result).contains(&tag), "{result}");
    }
    assert_eq!(servers(&scope).len(), 1);
    seen(&mut idle);
}

#[test]
fn where_two_have_called_nobody_is_asked_and_newcomers_go_solo() {
    let scope = Scope::new("ambiguous");
    let (mut one, mut two) = (able(&scope), able(&scope));
    let work = json!({"name": "work", "arguments": {"ms": 600_000, "tag": "x"}});
    one.send("tools/call", work);
    wait_for("it is at work", || {
        (seen(&mut two)["calls"].as_u64() >= Some(1)).then_some(())
    });
    let call = ask(&mut two, "sampling/createMessage", "whose?");
    let refused = text(&two.answer(call)["result"]);
    assert!(refused.contains("ambiguous_client"), "{refused}");

    // Who is there stays; who comes has a server of its own.
    seen(&mut one);
    let mut newcomer = able(&scope);
    assert_ne!(seen(&mut newcomer)["pid"], seen(&mut one)["pid"]);
    let solo = wait_for("it is listed", || {
        let solo = |entry: &Value| entry["mode"] == "solo";
        listing(&scope).into_iter().find(|entry| solo(entry))
    });
    assert!(solo["why"].is_string(), "{solo}");
    assert_eq!(newcomer.stderr_so_far(), "", "a quiet run says nothing");
    assert!(log(&scope).contains("goes dedicated"), "{}", log(&scope));
}

#[test]
fn whose_roots_differ_goes_solo_and_takes_its_session_with_it() {
    let scope = Scope::new("roots");
    let (mut one, mut two) = (able(&scope), able(&scope));
    let roots = |uri: &str| json!({"roots": [{"uri": uri}]});
    let call = ask(&mut one, "roots/list", "");
    let question = asked(&mut one);
    answer(&mut one, &question, roots("file:///a"));
    assert!(text(&one.answer(call)["result"]).contains("file:///a"));
    // The other one is asked as well, and has others.
    let question = asked(&mut two);
    assert_eq!(question["method"], "roots/list");
    answer(&mut two, &question, roots("file:///b"));
    wait_for("it has a server of its own", || {
        (servers(&scope).len() == 2).then_some(())
    });
    assert_ne!(seen(&mut two)["pid"], seen(&mut one)["pid"]);
    // Its roots are its own now, and so are its calls.
    let call = ask(&mut two, "roots/list", "");
    let question = asked(&mut two);
    answer(&mut two, &question, roots("file:///b"));
    assert!(text(&two.answer(call)["result"]).contains("file:///b"));
    drop((one, two));
    scope.nothing_left_within("linger and all", Duration::from_secs(30));
}

/// What a newcomer asks at once, with side effects, is done once, by the server that it is to have.
#[test]
fn what_is_asked_before_the_roots_are_compared_is_answered_by_ones_own_server() {
    let scope = Scope::new("early");
    let roots = |uri: &str| json!({"roots": [{"uri": uri}]});
    let mut one = able(&scope);
    let call = ask(&mut one, "roots/list", "");
    let question = asked(&mut one);
    answer(&mut one, &question, roots("file:///a"));
    one.answer(call);
    let shared = seen(&mut one)["pid"].clone();
    for (uri, shares) in [
        (Some("file:///a"), true),
        (Some("file:///b"), false),
        (None, false),
    ] {
        let mut newcomer = able(&scope);
        let work = json!({"name": "work", "arguments": {"tag": "paid"}});
        let call = newcomer.send("tools/call", work);
        let question = asked(&mut newcomer);
        assert_eq!(question["method"], "roots/list");
        if let Some(uri) = uri {
            answer(&mut newcomer, &question, roots(uri));
        }
        let paid = newcomer.answer(call);
        assert_eq!(text(&paid["result"]), "paid", "{uri:?}: {paid}");
        assert_eq!(seen(&mut newcomer)["pid"] == shared, shares, "{uri:?}");
    }
    let calls = seen(&mut one)["calls"].as_u64();
    assert_eq!(calls, Some(2), "of those who went solo it has heard none");
}

#[test]
fn requests_piped_by_one_that_tells_no_roots_are_answered_by_its_own_server() {
    let scope = Scope::new("piped-roots");
    let mut one = able(&scope);
    let call = ask(&mut one, "roots/list", "");
    let question = asked(&mut one);
    let roots = json!({"roots": [{"uri": "file:///a"}]});
    answer(&mut one, &question, roots);
    one.answer(call);

    let mut piped = able(&scope);
    let work = json!({"name": "work", "arguments": {"tag": "paid"}});
    piped.send("tools/call", work);
    piped.close();
    let ended = piped.wait();
    assert!(
        ended.stdout.contains("paid"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    let calls = seen(&mut one)["calls"].as_u64();
    assert_eq!(calls, Some(1), "the shared one has heard nothing of it");
}

#[test]
fn requests_piped_to_a_server_that_takes_no_newcomers_are_answered_by_ones_own() {
    let scope = Scope::new("piped-solo");
    let (mut one, mut two) = (able(&scope), able(&scope));
    let work = json!({"name": "work", "arguments": {"ms": 600_000, "tag": "x"}});
    one.send("tools/call", work);
    wait_for("it is at work", || {
        (seen(&mut two)["calls"].as_u64() >= Some(1)).then_some(())
    });
    let call = ask(&mut two, "sampling/createMessage", "whose?");
    two.answer(call);

    let mut piped = Client::start(&mut shared_with(&scope, &["--linger", "100ms"]));
    let capabilities = json!({"sampling": {}, "roots": {}});
    piped.send(
        "initialize",
        json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": {"name": "x", "version": "0"}}),
    );
    piped.send("tools/list", json!({}));
    piped.close();
    let ended = piped.wait();
    let results = ended.stdout.matches("\"result\"").count();
    assert_eq!(results, 2, "{}{}", ended.stdout, ended.stderr);
}
