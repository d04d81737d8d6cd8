//! Requests of clients: each answer and all progress to its own, exactly once.

use kennel_core::message::{Key, Malformed};
use kennel_core::mux::{ClientId, Lane, Note, Side, Unaddressed};
use kennel_core::note::LineNote;

use crate::play::{
    Play, call, cancel, class_of, error, id_of, initialize_with, notice, progress, refusal,
    request, result,
};

fn with_token(id: &str, token: &str) -> String {
    request(
        id,
        "tools/call",
        &format!(r#"{{"_meta":{{"progressToken":{token}}},"n":1.0}}"#),
    )
}

#[test]
fn rule_4_the_same_id_of_two_clients_is_two_requests() {
    let mut play = Play::legacy(2);
    let first = play.asks(1, &call("1", "a"));
    let second = play.asks(2, &call("1", "b"));
    assert_ne!(first, second);

    play.server(&result(&second, r#"{"of":"b"}"#));
    play.server(&error(&first, -1));
    assert_eq!(play.heard(2), [result("1", r#"{"of":"b"}"#)]);
    assert_eq!(play.heard(1), [error("1", -1)]);

    play.server(&result(&first, "{}"));
    play.server(&result("99", "{}"));
    play.server(&result(&format!("\"{first}\""), "{}"));
    play.nobody_hears();
    let number = |id: &str| Some(Key::Number(id.parse().unwrap()));
    let unknown = |key| Note::Line(LineNote::UnknownAnswer(Side::Server, key));
    assert_eq!(
        play.notes(),
        [
            unknown(number(&first)),
            unknown(number("99")),
            unknown(Some(Key::Text(first.into())))
        ]
    );
}

#[test]
fn an_error_without_an_id_is_delivered_only_while_one_session_ever_used_the_server() {
    let lines = [
        error("null", -32700),
        error("null", -32700).replace(r#""id":null,"#, ""),
    ];
    let unknown = Note::Line(LineNote::UnknownAnswer(Side::Server, None));
    for line in lines {
        // The only one that is attached.
        let mut play = Play::legacy(1);
        play.server(&line);
        assert_eq!(play.heard(1), std::slice::from_ref(&line));
        assert_eq!(play.notes(), []);

        // Another session is attached. The error may be about a notification of either.
        let mut play = Play::legacy(2);
        play.server(&line);
        play.nobody_hears();
        assert_eq!(play.notes(), std::slice::from_ref(&unknown));

        // Even if only one of them has a request in flight.
        let minted = play.asks(1, &call("1", "a"));
        play.client(2, &notice("notifications/x", r#"{"secret":2}"#));
        play.server_heard();
        play.server(&line);
        play.nobody_hears();
        assert_eq!(play.notes(), std::slice::from_ref(&unknown));

        // And after the other one left: the server may answer late.
        play.leave(2);
        play.server_heard();
        play.server(&line);
        play.nobody_hears();
        assert_eq!(play.notes(), std::slice::from_ref(&unknown));

        play.server(&result(&minted, "{}"));
        assert_eq!(play.heard(1), [result("1", "{}")]);
    }
}

#[test]
fn a_line_goes_in_the_lane_of_who_said_it() {
    let mut play = Play::legacy(2);
    play.client(2, &call("1", "a"));
    play.client(2, &notice("notifications/x", "{}"));
    play.client(2, &cancel("1"));
    let lanes: Vec<_> = play
        .server_heard_in_lanes()
        .into_iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(lanes, [Lane::Of(ClientId(2)); 3]);
}

#[test]
fn ids_that_some_sdk_drops_and_ids_in_flight_are_refused() {
    let mut play = Play::legacy(2);
    for id in ["null", "1.5", "1e3"] {
        play.client(1, &call(id, "a"));
        assert_eq!(refusal(&play.heard(1)[0]).1, -32600);
    }
    let minted = play.asks(1, &call("7", "a"));
    play.client(1, &call("7", "b"));
    assert_eq!(refusal(&play.heard(1)[0]), ("7".into(), -32600));
    play.nobody_hears();
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("7", "{}")]);
    play.asks(1, &call("7", "c"));
}

#[test]
fn the_same_progress_token_of_two_clients_is_two_tokens() {
    let mut play = Play::legacy(2);
    let mut asks = |client, token| {
        play.client(client, &with_token("1", token));
        let heard = play.server_heard();
        let minted = id_of(&heard[0]);
        let new = match token.starts_with('"') {
            true => format!("\"{minted}\""),
            false => minted.clone(),
        };
        assert_eq!(heard, [with_token(&minted, &new)], "to the byte");
        minted
    };
    let (first, second) = (asks(1, "1"), asks(2, r#""1""#));

    play.server(&progress(&second));
    assert_eq!(play.heard(2), [progress(r#""1""#)]);
    play.server(&progress(&first));
    assert_eq!(play.heard(1), [progress("1")]);
    play.nobody_hears();

    play.server(&result(&first, "{}"));
    play.forget();
    play.server(&progress(&first));
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::Unaddressed(Unaddressed::Progress)]);
}

#[test]
fn a_request_without_a_token_has_no_progress() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    play.server(&progress(&minted));
    play.nobody_hears();
}

#[test]
fn what_is_cancelled_is_heard_of_no_more() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &with_token("1", "1"));
    play.client(1, &cancel("1"));
    assert_eq!(play.server_heard(), [cancel(&minted)], "to the byte");
    assert_eq!(play.mux.pending_requests_of(ClientId(1)), 0);

    play.server(&progress(&minted));
    play.server(&result(&minted, "{}"));
    play.nobody_hears();
    assert_eq!(play.notes(), []);

    // The id is free, and the late answer was not its.
    let again = play.asks(1, &call("1", "b"));
    play.server(&result(&minted, "{}"));
    play.nobody_hears();
    play.server(&result(&again, "{}"));
    assert_eq!(play.heard(1), [result("1", "{}")]);
}

#[test]
fn nobody_cancels_what_is_another_clients() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    play.client(2, &cancel("1"));
    play.client(2, &cancel(&minted));
    play.nobody_hears();
    let unknown = |key| Note::Line(LineNote::UnknownCancel(Side::Client(ClientId(2)), key));
    let minted_key = Key::Number(minted.parse().unwrap());
    assert_eq!(play.notes(), [unknown(Key::Number(1)), unknown(minted_key)]);
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("1", "{}")]);
}

#[test]
fn what_a_client_that_leaves_had_in_flight_is_cancelled() {
    let mut play = Play::legacy(2);
    let first = play.asks(1, &call("1", "a"));
    let second = play.asks(1, &call("2", "a"));
    let others = play.asks(2, &call("1", "b"));
    play.leave(1);
    let gone = |id: &str| {
        let params = format!(r#"{{"requestId":{id},"reason":"client_gone"}}"#);
        (
            Lane::Of(ClientId(1)),
            notice("notifications/cancelled", &params),
        )
    };
    assert_eq!(play.server_heard_in_lanes(), [gone(&first), gone(&second)]);
    play.server(&result(&first, "{}"));
    play.nobody_hears();
    play.server(&result(&others, "{}"));
    assert_eq!(play.heard(2), [result("1", "{}")]);
}

#[test]
fn where_it_stands_can_be_asked() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    let minted = play.asks(1, &call(r#""\u0031""#, "a"));
    let one = ClientId(1);
    assert_eq!(play.mux.pending_requests_of(one), 2);
    assert_eq!(
        play.mux.in_flight_of(one),
        [b"1".to_vec(), br#""\u0031""#.to_vec()]
    );
    play.server(&result(&minted, "{}"));
    assert_eq!(play.mux.pending_requests_of(one), 1);
    assert_eq!(play.mux.pending_requests_of(ClientId(2)), 0);
    assert_eq!(play.mux.clients(), 2);
    assert_eq!(play.mux.requests(), 4);
    assert!(play.mux.accepts_clients());
}

#[test]
fn who_waits_for_a_line_that_was_never_written_can_be_asked() {
    let mut play = Play::legacy(2);
    let list = |id: &str| request(id, "tools/list", "{}");
    play.client(1, &list(r#""a""#));
    play.client(2, &list("7"));
    let heard = play.server_heard();
    let both = [
        (ClientId(1), br#""a""#.to_vec()),
        (ClientId(2), b"7".to_vec()),
    ];
    assert_eq!(play.mux.waiters_of_line(heard[0].as_bytes()), both);
    play.client(1, &cancel(r#""a""#));
    assert_eq!(play.mux.waiters_of_line(heard[0].as_bytes()), both[1..]);
    assert!(play.mux.waiters_of_line(cancel("3").as_bytes()).is_empty());
}

#[test]
fn bad_lines_reach_nobody() {
    let mut play = Play::legacy(2);
    for bad in [
        "",
        "Listening...",
        "{",
        "!lost {}",
        "[]",
        "[1]",
        r#"{"jsonrpc":"2.0"}"#,
    ] {
        play.client(1, bad);
        play.server(bad);
        // Its client is told, but for a blank line and one of Kennel's own.
        let told = play.heard(1);
        assert_eq!(
            told.is_empty(),
            bad.is_empty() || bad.starts_with('!'),
            "{bad}"
        );
        for told in told {
            assert_eq!(refusal(&told).0, "null");
        }
        play.nobody_hears();
        assert_eq!(play.notes().len(), 2, "{bad}");
    }
    play.client(9, &call("1", "a"));
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::NotAttached(ClientId(9))]);
}

#[test]
fn a_key_that_decides_and_comes_twice_is_refused() {
    let mut play = Play::legacy(1);
    let twice = r#"{"_meta":{"progressToken":1,"progressToken":2}}"#;
    play.client(1, &request("1", "tools/call", twice));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32600));
    let twice = r#"{"_meta":{},"_meta":{"progressToken":2}}"#;
    play.client(1, &request("1", "tools/call", twice));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32600));
    play.nobody_hears();
    assert!(matches!(
        play.notes()[0],
        Note::Line(LineNote::Malformed(_, Malformed::Shape(_)))
    ));
}

#[test]
fn a_batch_is_taken_apart_and_answered_as_one() {
    let hello = initialize_with("0", "2025-03-26", "{}");
    let mut play = Play::new(class_of(&hello));
    play.join(1);
    let tell = notice("notifications/x", "{}");
    let batch = format!(
        "[{},\t{tell}, {} ,{}]",
        with_token("1", "5"),
        request("2", "ping", "{}"),
        call("3", "a")
    );
    play.client(1, &batch);
    let heard = play.server_heard();
    assert_eq!(heard.len(), 3);
    let (first, third) = (id_of(&heard[0]), id_of(&heard[2]));
    assert_eq!(heard[0], with_token(&first, &first));
    assert_eq!(heard[1], tell);
    play.server(&progress(&first));
    assert_eq!(play.heard(1), [progress("5")]);
    play.server(&result(&third, "3"));
    play.nobody_hears();
    play.server(&result(&first, "1"));
    let answers = [result("2", "{}"), result("3", "3"), result("1", "1")];
    assert_eq!(play.heard(1), [format!("[{}]", answers.join(","))]);

    play.client(1, &format!("[{tell}]"));
    assert_eq!(play.server_heard(), [tell]);
    play.nobody_hears();
}

#[test]
fn what_is_cancelled_of_a_batch_is_not_waited_for() {
    let hello = initialize_with("0", "2025-03-26", "{}");
    let mut play = Play::new(class_of(&hello));
    play.join(1);
    play.client(1, &format!("[{},{}]", call("1", "a"), call("2", "a")));
    let heard = play.server_heard();
    play.server(&result(&id_of(&heard[0]), "{}"));
    play.client(1, &cancel("2"));
    assert_eq!(play.heard(1), [format!("[{}]", result("1", "{}"))]);
}

#[test]
fn a_batch_is_refused_where_the_version_has_none_and_taken_apart_from_the_server() {
    let mut play = Play::legacy(2);
    play.client(1, &format!("[{}]", call("1", "a")));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32600));
    play.nobody_hears();

    let first = play.asks(1, &call("1", "a"));
    let second = play.asks(2, &call("1", "b"));
    play.server(&format!(
        "[{} , {}]",
        result(&second, "2"),
        result(&first, "1")
    ));
    assert_eq!(play.heard(1), [result("1", "1")]);
    assert_eq!(play.heard(2), [result("1", "2")]);
}

#[test]
fn a_client_with_too_many_requests_in_flight_is_refused_and_others_are_not() {
    use kennel_core::session::IN_FLIGHT_LIMIT;
    let mut play = Play::legacy(2);
    let mut first = String::new();
    for id in 0..IN_FLIGHT_LIMIT {
        let minted = play.asks(1, &call(&format!("\"a{id}\""), "a"));
        if id == 0 {
            first = minted;
        }
    }
    play.client(1, &call("\"more\"", "a"));
    let [refused] = &play.heard(1)[..] else {
        panic!("one answer");
    };
    assert!(refused.contains("-32000"), "{refused}");
    play.asks(2, &call("1", "b"));
    play.server(&result(&first, "{}"));
    assert_eq!(play.heard(1), [result("\"a0\"", "{}")]);
    play.asks(1, &call("\"more\"", "a"));
}

#[test]
fn a_progress_token_is_minted_however_its_keys_are_spelled() {
    let mut play = Play::legacy(2);
    for keys in [
        ("_meta", "progressToken"),
        ("_m\\u0065ta", "progressToken"),
        ("_meta", "progressT\\u006fken"),
        ("_m\\u0065ta", "progressT\\u006fken"),
    ] {
        let spelled = |id: &str| {
            let params = format!(r#"{{"{}":{{"{}":"{id}"}}}}"#, keys.0, keys.1);
            request(id, "tools/call", &params)
        };
        play.client(2, &spelled("77"));
        let heard = play.server_heard();
        let minted = id_of(&heard[0]);
        assert_eq!(heard, [spelled(&minted)]);
        play.server(&result(&minted, "{}"));
        play.forget();
    }
}

#[test]
fn a_long_batch_that_is_refused_gets_one_error_while_memory_is_short() {
    let mut play = Play::legacy(1);
    let members: Vec<String> = (0..65).map(|id| call(&id.to_string(), "x")).collect();
    let batch = format!("[{}]", members.join(","));
    play.mux.set_short_of_memory(true);
    play.client(1, &batch);
    let heard = play.heard(1);
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].contains(r#""id":null"#), "{heard:?}");
    play.mux.set_short_of_memory(false);
    play.client(1, &batch);
    assert_eq!(play.heard(1).len(), 65);
}
