//! Lists: asked once for all who could not tell, and kept as long as the protocol says.

use kennel_core::mux::{ClientId, Lane, Mux, MuxPolicy};

use crate::play::{Play, cancel, class_of, error, initialize, notice, request, result};

const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

fn tools(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#)
}

#[test]
fn who_asks_the_same_waits_for_the_same() {
    let mut play = Play::legacy(3);
    let minted = play.asks(1, &tools("1"));
    play.client(2, &request("1", "tools/list", "{}"));
    play.client(3, &request("9", "tools/list", r#"{"_meta":{}}"#));
    play.nobody_hears();
    assert_eq!(play.mux.pending_requests_of(ClientId(3)), 1);

    play.server(&result(&minted, r#"{"tools":[1.0]}"#));
    assert_eq!(play.heard(1), [result("1", r#"{"tools":[1.0]}"#)]);
    assert_eq!(play.heard(2), [result("1", r#"{"tools":[1.0]}"#)]);
    assert_eq!(play.heard(3), [result("9", r#"{"tools":[1.0]}"#)]);
}

/// Else it could have as many copies of a long answer as it has short lines.
#[test]
fn a_client_waits_with_others_once_and_asks_by_itself_then() {
    let mut play = Play::legacy(2);
    let first = play.asks(1, &tools("1"));
    play.client(2, &tools("1"));
    play.nobody_hears();
    let second = play.asks(1, &tools("2"));
    let third = play.asks(2, &tools("2"));
    play.server(&result(&first, r#"{"tools":[1]}"#));
    assert_eq!(play.heard(1), [result("1", r#"{"tools":[1]}"#)]);
    assert_eq!(play.heard(2), [result("1", r#"{"tools":[1]}"#)]);
    play.server(&result(&second, r#"{"tools":[2]}"#));
    play.server(&result(&third, r#"{"tools":[3]}"#));
    assert_eq!(play.heard(1), [result("2", r#"{"tools":[2]}"#)]);
    assert_eq!(play.heard(2), [result("2", r#"{"tools":[3]}"#)]);
}

#[test]
fn of_a_very_long_list_few_copies_are_made_and_the_others_ask_by_themselves() {
    let long = format!(r#"{{"tools":["{}"]}}"#, "x".repeat(9 << 20));
    for answer in [
        |id: &str, long: &str| result(id, long),
        |id: &str, long: &str| {
            let error = format!(r#"{{"code":-1,"message":"","data":{long}}}"#);
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
        },
    ] {
        let mut play = Play::legacy(3);
        let minted = play.asks(1, &tools("1"));
        play.client(2, &tools("2"));
        play.client(3, &tools("3"));
        play.nobody_hears();
        play.server(&answer(&minted, &long));
        assert!(play.heard(1) == [answer("1", &long)]);
        let asked = play.server_heard_in_lanes();
        let lanes: Vec<Lane> = asked.iter().map(|(lane, _)| *lane).collect();
        assert_eq!(lanes, [Lane::Of(ClientId(2)), Lane::Of(ClientId(3))]);
        play.server(&answer(&crate::play::id_of(&asked[1].1), &long));
        assert!(play.heard(3) == [answer("3", &long)]);
    }
}

#[test]
fn copies_of_several_long_answers_in_one_batch_are_bounded_together() {
    let mut play = Play::legacy(3);
    let long = format!(r#"{{"x":["{}"]}}"#, "x".repeat(3 << 20));
    let mut answers = Vec::new();
    for method in ["tools/list", "prompts/list", "resources/list"] {
        let asked = |id: &str| request(id, method, "{}");
        let id = format!("\"{method}\"");
        answers.push(result(&play.asks(1, &asked(&id)), &long));
        play.client(2, &asked(&id));
        play.client(3, &asked(&id));
    }
    play.nobody_hears();
    play.server(&format!("[{}]", answers.join(",")));
    let heard: Vec<usize> = (1..=3).map(|client| play.heard(client).len()).collect();
    // One of each, and four more copies: 12 MiB.
    assert_eq!(heard, [3, 2, 2]);
    assert_eq!(play.server_heard().len(), 2);
}

#[test]
fn a_long_answer_that_several_wait_for_is_copied_for_some_and_the_others_may_ask_again() {
    let mut play = Play::greeting();
    (1..=3).for_each(|client| play.join(client));
    let minted = play.asks(1, &initialize("0"));
    play.client(2, &initialize("0"));
    play.client(3, &initialize("0"));
    let long = "x".repeat(7 << 20);
    play.server(&format!(
        r#"{{"jsonrpc":"2.0","id":{minted},"error":{{"code":-1,"message":"{long}"}}}}"#
    ));
    let lengths = (1..=3).map(|client| play.heard(client)[0].len());
    let copies = lengths.filter(|length| *length > long.len()).count();
    assert_eq!(copies, 2);
    let minted = play.asks(3, &initialize("1"));
    play.server(&result(&minted, crate::play::WELCOME));
    assert_eq!(play.heard(3), [result("1", crate::play::WELCOME)]);
}

#[test]
fn a_long_list_that_is_kept_is_not_copied_while_memory_is_short() {
    let mut play = Play::legacy(2);
    let long = format!(r#"{{"tools":["{}"]}}"#, "x".repeat(64 * 1024));
    for (list, is_asked) in [(r#"{"tools":[]}"#, false), (&long[..], true)] {
        let minted = play.asks(1, &tools("1"));
        play.server(&result(&minted, list));
        play.heard(1);
        play.mux.set_short_of_memory(true);
        play.client(2, &tools("2"));
        assert_eq!(play.server_heard().len(), usize::from(is_asked));
        assert_eq!(play.heard(2).len(), usize::from(!is_asked));
        play.mux.set_short_of_memory(false);
        play.client(2, &tools("3"));
        assert_eq!(play.heard(2), [result("3", list)]);
        play.server(CHANGED);
        play.forget();
    }
}

#[test]
fn what_is_one_of_its_kind_is_asked_by_itself() {
    for params in [
        r#"{"cursor":"x"}"#,
        r#"{"_meta":{"progressToken":1}}"#,
        r#"{"_meta":{"traceparent":"x"}}"#,
        r#"{"x":1}"#,
        "[]",
    ] {
        let mut play = Play::legacy(2);
        let first = play.asks(1, &request("1", "tools/list", params));
        let second = play.asks(2, &request("1", "tools/list", params));
        play.server(&result(&first, r#"{"tools":[]}"#));
        play.asks(1, &request("2", "tools/list", params));
        play.server(&result(&second, r#"{"tools":[]}"#));
        assert_eq!((play.heard(1).len(), play.heard(2).len()), (1, 1));
    }
}

#[test]
fn a_list_is_kept_until_the_server_says_that_it_changed() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &tools("1"));
    play.server(&result(&minted, r#"{"tools":[]}"#));
    play.forget();
    play.client(2, &tools("4"));
    assert_eq!(play.heard(2), [result("4", r#"{"tools":[]}"#)]);
    play.nobody_hears();

    play.server(CHANGED);
    play.forget();
    play.asks(2, &tools("5"));
}

#[test]
fn a_list_whose_changes_are_not_told_is_not_kept() {
    let mut play = Play::legacy(2);
    for method in ["prompts/list", "resources/list", "resources/templates/list"] {
        let minted = play.asks(1, &request("1", method, "{}"));
        play.server(&result(&minted, "{}"));
        let minted = play.asks(2, &request("1", method, "{}"));
        play.server(&result(&minted, "{}"));
    }
}

#[test]
fn what_was_asked_before_a_change_is_neither_kept_nor_waited_for() {
    let mut play = Play::legacy(2);
    let before = play.asks(1, &tools("1"));
    play.server(CHANGED);
    play.forget();
    let after = play.asks(2, &tools("1"));
    play.server(&result(&after, "2"));
    play.server(&result(&before, "1"));
    assert_eq!(play.heard(1), [result("1", "1")]);
    assert_eq!(play.heard(2), [result("1", "2")]);
    play.client(1, &tools("2"));
    assert_eq!(play.heard(1), [result("2", "2")]);
}

#[test]
fn who_asked_first_may_cancel_or_leave_and_the_others_have_theirs() {
    let mut play = Play::legacy(3);
    let minted = play.asks(1, &tools("1"));
    play.client(2, &tools("1"));
    play.client(3, &tools("1"));
    play.client(1, &cancel("1"));
    play.leave(2);
    play.nobody_hears();
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(3), [result("1", "{}")]);
    play.nobody_hears();
}

#[test]
fn the_last_who_waits_cancels_and_the_next_asks_anew() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &tools("1"));
    play.client(2, &tools("5"));
    play.client(1, &cancel("1"));
    play.client(2, &cancel("5"));
    assert_eq!(play.server_heard_in_lanes(), [(Lane::Own, cancel(&minted))]);
    assert_ne!(play.asks(1, &tools("1")), minted);
    play.server(&result(&minted, "{}"));
    play.nobody_hears();
}

#[test]
fn an_error_is_everybodys_and_is_not_kept() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &tools("1"));
    play.client(2, &tools("2"));
    play.server(&error(&minted, -32603));
    assert_eq!(play.heard(1), [error("1", -32603)]);
    assert_eq!(play.heard(2), [error("2", -32603)]);
    play.asks(2, &tools("3"));
}

#[test]
fn a_cursor_is_given_to_one_and_the_others_get_their_own() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &tools("1"));
    play.client(2, &request("1", "tools/list", "{ }"));
    play.server(&result(&minted, r#"{"tools":[],"nextCursor":"one"}"#));
    assert_eq!(
        play.heard(1),
        [result("1", r#"{"tools":[],"nextCursor":"one"}"#)]
    );
    let heard = play.server_heard_in_lanes();
    let (lane, line) = &heard[0];
    assert_eq!(*lane, Lane::Of(ClientId(2)));
    let again = crate::play::id_of(line);
    assert_eq!(*line, request(&again, "tools/list", "{ }"));
    play.server(&result(&again, r#"{"tools":[],"nextCursor":"two"}"#));
    assert_eq!(
        play.heard(2),
        [result("1", r#"{"tools":[],"nextCursor":"two"}"#)]
    );
    play.asks(1, &tools("2"));
}

#[test]
fn what_is_too_long_is_not_kept() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &tools("1"));
    let long = format!(r#"{{"tools":["{}"]}}"#, "x".repeat(9 << 20));
    play.server(&result(&minted, &long));
    assert_eq!(play.heard(1).len(), 1);
    play.asks(2, &tools("1"));
}

#[test]
fn without_the_cache_everybody_asks() {
    let mut play = Play::legacy(0);
    play.mux = Mux::new(
        class_of(&initialize("0")),
        MuxPolicy {
            cache: false,
            ..MuxPolicy::default()
        },
    );
    play.enter(1);
    play.enter(2);
    play.forget();
    let first = play.asks(1, &tools("1"));
    play.asks(2, &tools("1"));
    play.server(&result(&first, "{}"));
    play.asks(1, &tools("2"));
}

#[test]
fn a_change_is_told_to_all() {
    let mut play = Play::legacy(2);
    let line = notice("notifications/resources/list_changed", "{}");
    play.server(&line);
    assert_eq!(play.heard(1), [&line[..]]);
    assert_eq!(play.heard(2), [&line[..]]);
}

#[test]
fn kept_lists_are_counted_and_freed_when_memory_is_short() {
    let mut play = Play::legacy(1);
    let before = play.mux.kept_bytes();
    let minted = play.asks(1, &tools("1"));
    let long = format!(r#"{{"tools":["{}"]}}"#, "x".repeat(64 * 1024));
    play.server(&result(&minted, &long));
    play.heard(1);
    assert!(play.mux.kept_bytes() > before + 64 * 1024);
    play.mux.drop_cached_lists();
    assert_eq!(play.mux.kept_bytes(), before);
    play.client(1, &tools("2"));
    assert_eq!(play.server_heard().len(), 1, "the server is asked again");
}
