//! Memory that does not grow with the ill will of a client or the server.

use std::collections::BTreeSet;

use kennel_core::mux::{Class, ClientId};
use kennel_core::session::{IN_FLIGHT_LIMIT, NAME_LIMIT};

use crate::play::{
    INITIALIZED, Play, WELCOME, call, cancel, class_of, error, id_of, initialize, initialize_with,
    modern, reason, refusal, request, result,
};

/// What is kept of the server's requests.
const MEBI: usize = 1 << 20;

fn sample(id: &str) -> String {
    request(id, "sampling/createMessage", "{}")
}

fn subscribe(id: &str, uri: &str) -> String {
    request(id, "resources/subscribe", &format!(r#"{{"uri":"{uri}"}}"#))
}

fn unsubscribe(id: &str, uri: &str) -> String {
    request(
        id,
        "resources/unsubscribe",
        &format!(r#"{{"uri":"{uri}"}}"#),
    )
}

#[test]
fn requests_of_the_server_without_end_are_refused_until_some_are_answered() {
    let mut play = Play::legacy(1);
    play.asks(1, &call("1", "a"));
    for id in 0..IN_FLIGHT_LIMIT {
        play.server(&sample(&id.to_string()));
    }
    let asked = play.heard(1);
    assert_eq!(asked.len(), IN_FLIGHT_LIMIT);
    play.server(&sample("-1"));
    assert_eq!(refusal(&play.server_heard()[0]), ("-1".into(), -32000));
    play.nobody_hears();
    play.client(1, &result(&id_of(&asked[0]), "{}"));
    assert_eq!(play.server_heard(), [result("0", "{}")]);
    play.server(&sample("-1"));
    play.is_asked(1);
}

#[test]
fn long_ids_of_the_server_are_refused_and_all_ids_together_are_bounded() {
    let mut play = Play::legacy(1);
    play.asks(1, &call("1", "a"));
    let id = |length: usize, last: usize| format!("\"{}{last:05}\"", "x".repeat(length - 7));
    play.server(&sample(&id(NAME_LIMIT + 1, 0)));
    assert_eq!(
        refusal(&play.server_heard()[0]),
        (id(NAME_LIMIT + 1, 0), -32600)
    );
    // What is very long is not repeated.
    play.server(&sample(&id(MEBI, 0)));
    assert_eq!(refusal(&play.server_heard()[0]), ("null".into(), -32600));
    play.nobody_hears();

    let mut asked = 0;
    while play.server_heard().is_empty() {
        play.server(&sample(&id(NAME_LIMIT, asked)));
        asked += 1;
    }
    assert_eq!(asked, 4 * MEBI / NAME_LIMIT + 1);
    assert!(play.mux.stored_bytes() <= 4 * MEBI + NAME_LIMIT);
    play.leave(1);
    assert_eq!(play.mux.stored_bytes(), 0);
}

#[test]
fn a_long_roots_list_is_refused_and_long_roots_are_those_of_nobody_else() {
    let mut play = Play::legacy(2);
    let long = "x".repeat(MEBI + 1);
    play.server(&request("7", "roots/list", &format!(r#"{{"x":"{long}"}}"#)));
    assert_eq!(refusal(&play.server_heard()[0]), ("7".into(), -32600));
    play.nobody_hears();

    play.server(&request("8", "roots/list", "{}"));
    let (one, other) = (play.is_asked(1), play.is_asked(2));
    play.client(1, &result(&one, r#"{"roots":[]}"#));
    play.client(2, &result(&other, &format!(r#"{{"roots":["{long}"]}}"#)));
    assert_eq!(play.dismissed, [2]);
}

#[test]
fn subscriptions_of_a_client_are_bounded_and_the_others_notice_nothing() {
    let mut play = Play::legacy(2);
    let long = "x".repeat(8 * 1024 + 1);
    play.client(1, &subscribe("1", &long));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32602));

    let uri = |nth: usize| format!("{nth:x>8192}");
    let mut count = 0;
    loop {
        play.client(1, &subscribe("1", &uri(count)));
        let Some(line) = play.server_heard().pop() else {
            break;
        };
        play.server(&result(&id_of(&line), "{}"));
        assert_eq!(play.heard(1), [result("1", "{}")]);
        count += 1;
    }
    let refused = play.heard(1);
    assert_eq!(refusal(&refused[0]), ("1".into(), -32000));
    assert_eq!(reason(&refused[0]), "too_many_subscriptions");
    assert_eq!(count, 4 * MEBI / (8192 + 256));
    assert!(play.mux.stored_bytes() <= 4 * MEBI);
    // What it has, it may say again.
    play.client(1, &subscribe("2", &uri(0)));
    assert_eq!(play.heard(1), [result("2", "{}")]);
    // Another client has its own room, and so has this one when it ends some.
    let minted = play.asks(2, &subscribe("1", &uri(count)));
    play.server(&error(&minted, -32002));
    assert_eq!(play.heard(2), [error("1", -32002)]);
    play.asks(1, &unsubscribe("3", &uri(0)));
    play.asks(1, &subscribe("4", &uri(count)));
    play.leave(1);
    play.leave(2);
    // What the server is still to be asked to end counts until it is.
    loop {
        let heard = play.server_heard();
        if heard.is_empty() {
            break;
        }
        for line in heard {
            play.server(&result(&id_of(&line), "{}"));
        }
        assert!(play.mux.stored_bytes() <= 4 * MEBI);
    }
    assert_eq!(play.mux.stored_bytes(), 0);
}

#[test]
fn a_very_long_answer_to_initialize_is_an_error() {
    let mut play = Play::greeting();
    play.join(1);
    let minted = play.asks(1, &initialize("0"));
    let long = format!(r#"{{"instructions":"{}"}}"#, "x".repeat(MEBI));
    play.server(&result(&minted, &long));
    let heard = play.heard(1);
    assert_eq!(refusal(&heard[0]), ("0".into(), -32603));
    assert_eq!(reason(&heard[0]), "answer_too_long");
    // It may try again.
    let minted = play.asks(1, &initialize("1"));
    play.server(&result(&minted, WELCOME));
    assert_eq!(play.heard(1), [result("1", WELCOME)]);
}

/// One client of a version that has batches.
fn with_batches() -> Play {
    let batches: Class = class_of(&initialize_with("0", "2025-03-26", "{}"));
    let mut play = Play::new(batches);
    play.join(1);
    let minted = play.asks(1, &initialize_with("0", "2025-03-26", "{}"));
    play.server(&result(&minted, WELCOME));
    play.client(1, INITIALIZED);
    play.forget();
    play
}

fn batch(count: usize, member: impl Fn(&str) -> String) -> String {
    let members = (1..=count).map(|id| member(&id.to_string()));
    format!("[{}]", members.collect::<Vec<_>>().join(","))
}

/// Whether each of so many requests has one answer, in arrays that are short enough; how many are no errors.
#[track_caller]
fn answered_once(heard: &[String], count: usize, max_line: usize) -> usize {
    let mut ids = BTreeSet::new();
    let mut good = 0;
    for line in heard {
        assert!(line.len() <= max_line, "{} bytes", line.len());
        let answers: Vec<serde_json::Value> = serde_json::from_str(line).expect("an array");
        for answer in answers {
            let is_error = answer["error"]["data"]["reason"] == "batch_too_long";
            assert!(is_error || answer["result"].is_object() || answer["result"].is_string());
            good += usize::from(!is_error);
            assert!(
                ids.insert(answer["id"].as_u64().expect("a number")),
                "{}",
                answer["id"]
            );
        }
    }
    assert_eq!(ids.len(), count);
    good
}

#[test]
fn rule_4_the_answers_to_a_batch_are_no_longer_than_a_line_may_be() {
    const MAX_LINE: usize = 256 * 1024;
    for (length, good) in [(100_000, 1), (1000, 120), (MAX_LINE - 1000, 1), (10, 1500)] {
        let mut play = with_batches();
        play.mux.set_max_line(MAX_LINE);
        let count = 3000;
        play.client(1, &batch(count, |id| call(id, "a")));
        let answer = format!("\"{}\"", "x".repeat(length));
        for line in play.server_heard() {
            play.server(&result(&id_of(&line), &answer));
            assert!(
                play.mux.stored_bytes() <= MAX_LINE,
                "{}",
                play.mux.stored_bytes()
            );
        }
        assert!(answered_once(&play.heard(1), count, MAX_LINE) >= good);
        assert_eq!(play.mux.pending_requests_of(ClientId(1)), 0);
        assert_eq!(play.mux.stored_bytes(), 0);
        // The next batch has room again.
        play.client(1, &batch(2, |id| request(id, "ping", "{}")));
        assert_eq!(answered_once(&play.heard(1), 2, MAX_LINE), 2);
    }
}

#[test]
fn errors_of_many_open_batches_are_not_kept() {
    let mut play = with_batches();
    play.mux.set_max_line(256 * 1024);
    for at in 0..20 {
        let pings = batch(1000, |id| request(id, "ping", "{}"));
        let open = call(&format!("\"{at}\""), "a");
        play.client(1, &pings.replacen('[', &format!("[{open},"), 1));
        assert!(
            play.mux.stored_bytes() <= 256 * 1024,
            "{}",
            play.mux.stored_bytes()
        );
    }
}

#[test]
fn answers_that_wait_for_the_rest_of_their_batch_are_bounded() {
    let mut play = with_batches();
    play.client(1, &batch(5, |id| call(id, "a")));
    let asked = play.server_heard();
    let long = format!("\"{}\"", "x".repeat(6 * MEBI));
    for line in &asked[..4] {
        play.server(&result(&id_of(line), &long));
    }
    assert!(
        play.mux.stored_bytes() <= 17 * MEBI,
        "{}",
        play.mux.stored_bytes()
    );
    play.server(&result(&id_of(&asked[4]), "{}"));
    let answers = play.heard(1).pop().expect("all answers");
    let answers: Vec<serde_json::Value> = serde_json::from_str(&answers).unwrap();
    let too_long = answers
        .iter()
        .filter(|it| it["error"]["data"]["reason"] == "batch_too_long");
    let ids: Vec<_> = too_long.map(|it| it["id"].to_string()).collect();
    assert_eq!(ids, ["3", "4"]);
    assert_eq!(play.mux.stored_bytes(), 0);
    assert_eq!(play.mux.pending_requests_of(ClientId(1)), 0);
}

#[test]
fn cancelled_requests_that_the_server_goes_on_with_count_until_it_answers() {
    let mut play = Play::legacy(1);
    let cancel = |id: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        )
    };
    let mut refused = 0;
    for id in 0..IN_FLIGHT_LIMIT + 10 {
        play.client(1, &subscribe("-1", "a"));
        match &play.server_heard()[..] {
            [heard] => play.server(&result(&id_of(heard), "{}")),
            _ => refused += 1,
        }
        play.forget();
        play.client(1, &unsubscribe(&id.to_string(), "a"));
        play.client(1, &cancel(id));
        play.forget();
    }
    assert!((1..=10).contains(&refused), "{refused}");
}

#[test]
fn what_is_kept_of_requests_in_flight_is_bounded_and_the_others_notice_nothing() {
    let id = |nth: usize| format!("\"{nth:x>1000}\"");
    let long = "x".repeat(3500);
    let calls = |nth: usize| modern(&id(nth), "tools/call", "");
    let lists = |nth: usize| modern(&id(nth), "tools/list", &format!(r#","{nth}":"{long}""#));
    let line: [&dyn Fn(usize) -> String; 2] = [&calls, &lists];
    for line in line {
        let mut play = Play::modern(2);
        let mut asked = Vec::new();
        while asked.len() < IN_FLIGHT_LIMIT {
            play.client(1, &line(asked.len()));
            let Some(minted) = play.server_heard().pop() else {
                break;
            };
            asked.push(id_of(&minted));
        }
        let refused = play.heard(1);
        assert_eq!(refusal(&refused[0]), (id(asked.len()), -32000));
        assert_eq!(reason(&refused[0]), "too_many_requests");
        assert!((4 * MEBI..4 * MEBI + 16 * 1024).contains(&play.mux.stored_bytes()));
        play.asks(2, &line(asked.len()));
        // What is answered or cancelled makes room.
        play.server(&result(&asked[0], "{}"));
        play.asks(1, &line(0));
        play.client(1, &line(asked.len()));
        assert_eq!(refusal(&play.heard(1).pop().expect("an error")).1, -32000);
        play.client(1, &cancel(&id(1)));
        play.forget();
        play.asks(1, &line(1));
        play.leave(1);
        play.leave(2);
        assert_eq!(play.mux.stored_bytes(), 0);
    }
}

#[test]
fn a_long_message_that_would_have_to_be_searched_is_refused_under_its_id() {
    let mut play = Play::legacy(2);
    let many = |bytes: usize| format!("{}\"z\":0", "\"k\":0,".repeat(bytes / 6));
    let meta = format!(r#"{{"name":"a","_meta":{{{}}}}}"#, many(MEBI));
    let uri = format!(r#"{{"uri":"a",{}}}"#, many(4 * MEBI));
    for (method, params) in [("tools/call", &meta), ("resources/subscribe", &uri)] {
        play.client(1, &request("7", method, params));
        assert_eq!(refusal(&play.heard(1)[0]).0, "7", "{method}");
        play.nobody_hears();
    }
    // The same in a place where nobody has to search.
    let call = format!(r#"{{"name":"a","arguments":{{{}}}}}"#, many(5 * MEBI));
    play.asks(1, &request("7", "tools/call", &call));
}

#[test]
fn a_very_long_line_with_separators_is_refused_under_its_id() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    let long = format!("\"{}\u{2028}\"", "x".repeat(8 * MEBI));
    for (line, from_server) in [
        (request("7", "tools/call", &format!("[{long}]")), false),
        (result(&minted, &long), true),
    ] {
        let mut scan = kennel_core::message::Scan::default();
        scan.scan(line.as_bytes());
        let line = line.into_bytes().into();
        match from_server {
            true => play.mux.handle_owned_server_line(line, &scan, play.now),
            false => {
                let client = ClientId(1);
                play.mux
                    .handle_owned_client_line(client, line, &scan, play.now);
            }
        }
        play.tick(play.now);
        let heard = play.heard(1);
        assert_eq!(heard.len(), 1, "{from_server}");
        let id = if from_server { "1" } else { "7" };
        assert_eq!(refusal(&heard[0]).0, id);
    }
    play.nobody_hears();
}
