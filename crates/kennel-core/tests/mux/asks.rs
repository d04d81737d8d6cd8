//! What the server asks: the one client it can be for, or nobody.

use std::time::Duration;

use kennel_core::message::Key;
use kennel_core::mux::{ClientId, Lane, Note, Side, Unaddressed};
use kennel_core::note::LineNote;

use crate::play::{
    INITIALIZED, Play, WELCOME, call, cancel, error, initialize, notice, progress, reason, refusal,
    request, result,
};

fn sample(id: &str) -> String {
    request(id, "sampling/createMessage", r#"{"x":1.0}"#)
}

#[track_caller]
fn is_ambiguous(play: &mut Play, id: &str) {
    let heard = play.server_heard_in_lanes();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!(heard[0].0, Lane::Own);
    assert_eq!(refusal(&heard[0].1), (id.into(), -32603));
    assert_eq!(reason(&heard[0].1), "ambiguous_client");
    play.nobody_hears();
    assert!(!play.mux.accepts_clients());
    assert_eq!(play.mux.ambiguous(), Some("sampling/createMessage"));
}

#[test]
fn the_only_client_with_a_call_in_flight_is_asked() {
    let mut play = Play::legacy(2);
    play.asks(2, &call("1", "a"));
    play.server(&sample("0"));
    let heard = play.heard(2);
    let shown = crate::play::id_of(&heard[0]);
    assert_eq!(heard, [sample(&shown)]);
    play.nobody_hears();

    // The other one cannot answer for it, and nobody twice.
    play.client(1, &result(&shown, "{}"));
    play.nobody_hears();
    let unknown =
        |client, key| Note::Line(LineNote::UnknownAnswer(Side::Client(ClientId(client)), key));
    let key = Some(Key::Number(shown.parse().unwrap()));
    assert_eq!(play.notes(), [unknown(1, key.clone())]);
    play.client(2, &result(&shown, r#"{"ok":1.0}"#));
    let answer = (Lane::Of(ClientId(2)), result("0", r#"{"ok":1.0}"#));
    assert_eq!(play.server_heard_in_lanes(), [answer]);
    play.client(2, &result(&shown, "{}"));
    play.nobody_hears();
    assert_eq!(play.notes(), [unknown(2, key)]);
    assert!(play.mux.accepts_clients());
}

#[test]
fn nobody_tells_the_server_of_the_progress_of_what_another_was_asked() {
    let mut play = Play::legacy(2);
    play.asks(2, &call("1", "a"));
    let params = r#"{"_meta":{"progressToken":41}}"#;
    play.server(&request("0", "sampling/createMessage", params));
    play.is_asked(2);
    for token in ["41", "42", r#""41""#, r#"[41]"#] {
        play.client(1, &progress(token));
        play.nobody_hears();
        assert_eq!(
            play.notes(),
            [Note::UnknownProgress(ClientId(1))],
            "{token}"
        );
    }
    play.client(2, &progress("41"));
    assert_eq!(play.server_heard(), [progress("41")]);
    play.client(2, &progress("42"));
    play.nobody_hears();
}

#[test]
fn two_clients_with_calls_in_flight_are_ambiguous() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.asks(2, &call("1", "b"));
    play.server(&sample("7"));
    is_ambiguous(&mut play, "7");
    assert_eq!(play.notes(), [Note::Ambiguous]);
}

#[test]
fn nothing_in_flight_is_ambiguous_unless_there_was_only_ever_one() {
    let mut play = Play::legacy(1);
    play.server(&sample("0"));
    play.is_asked(1);
    play.enter(2);
    play.forget();
    play.leave(2);
    play.server(&sample("7"));
    is_ambiguous(&mut play, "7");
}

#[test]
fn what_another_cancelled_may_still_be_what_it_is_about() {
    let mut play = Play::legacy(2);
    let ghost = play.asks(1, &call("1", "a"));
    play.client(1, &cancel("1"));
    play.client(2, &call("1", "b"));
    play.forget();
    play.server(&result(&ghost, "{}"));
    play.server(&sample("0"));
    play.is_asked(2);

    play.client(1, &call("1", "a"));
    play.client(1, &cancel("1"));
    play.forget();
    play.server(&sample("7"));
    is_ambiguous(&mut play, "7");
}

#[test]
fn what_somebody_left_behind_is_nobody_elses() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.leave(1);
    play.forget();
    play.server(&sample("0"));
    let heard = play.server_heard();
    assert_eq!(refusal(&heard[0]), ("0".into(), -32603));
    assert_eq!(reason(&heard[0]), "client_gone");
    play.nobody_hears();
    assert!(play.mux.accepts_clients(), "it is clear whose it was");

    play.asks(2, &call("1", "b"));
    play.server(&sample("7"));
    is_ambiguous(&mut play, "7");
}

#[test]
fn a_session_that_comes_back_is_asked_about_what_it_left() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.leave(1);
    play.mux.join(ClientId(3), "session 1");
    play.client(3, &initialize("0"));
    play.client(3, INITIALIZED);
    play.forget();
    play.server(&sample("0"));
    play.is_asked(3);
    play.nobody_hears();
}

#[test]
fn a_list_that_two_wait_for_is_both_of_theirs() {
    let mut play = Play::legacy(2);
    play.client(1, &request("1", "tools/list", "{}"));
    play.client(2, &request("1", "tools/list", "{}"));
    play.forget();
    play.server(&sample("7"));
    is_ambiguous(&mut play, "7");
}

#[test]
fn while_the_handshake_is_under_way_who_began_it_is_asked() {
    let mut play = Play::greeting();
    play.join(1);
    play.join(2);
    play.client(2, &initialize("0"));
    play.client(1, &initialize("0"));
    play.forget();
    play.server(&sample("0"));
    play.is_asked(2);
    play.nobody_hears();
    play.leave(2);
    assert_eq!(reason(&play.server_heard()[0]), "client_gone");
    play.server(&sample("1"));
    assert_eq!(reason(&play.server_heard()[0]), "client_gone");
    play.server(&result("1", WELCOME));
    assert_eq!(play.heard(1), [result("0", WELCOME)]);
}

#[test]
fn what_a_client_that_leaves_was_asked_is_answered_for_it() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.server(&request("\"e\"", "elicitation/create", "{}"));
    play.is_asked(1);
    play.leave(1);
    let heard = play.server_heard();
    assert_eq!(refusal(&heard[1]), ("\"e\"".into(), -32603));
    assert_eq!(reason(&heard[1]), "client_gone");
    play.nobody_hears();
}

#[test]
fn who_says_nothing_more_is_asked_nothing_and_has_its_answers() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    play.server(&sample("0"));
    play.server(&request("1", "roots/list", "{}"));
    play.forget();
    play.mux.handle_client_eof(ClientId(1), play.now);
    play.client(2, INITIALIZED);
    let heard = play.server_heard();
    let reasons: Vec<_> = heard.iter().map(|line| reason(line)).collect();
    assert_eq!(reasons, ["client_gone"; 2], "another's roots are not its");
    play.nobody_hears();
    play.server(&sample("2"));
    assert_eq!(reason(&play.server_heard()[0]), "client_gone");
    play.nobody_hears();
    assert_eq!(play.mux.pending_requests_of(ClientId(1)), 1);
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("1", "{}")]);
}

#[test]
fn what_the_server_cancels_is_cancelled_for_who_was_asked() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.server(&sample("3"));
    let shown = play.is_asked(1);
    play.server(&cancel("3"));
    assert_eq!(play.heard(1), [cancel(&shown)]);
    play.client(1, &result(&shown, "{}"));
    play.server(&cancel("3"));
    play.nobody_hears();
    assert_eq!(play.notes().len(), 2);

    // The id is free again, and known by another here.
    play.server(&sample("3"));
    assert_ne!(play.is_asked(1), shown);
}

#[test]
fn a_servers_ids_are_judged_as_a_clients() {
    let mut play = Play::legacy(1);
    play.server(&sample("null"));
    assert_eq!(refusal(&play.server_heard()[0]), ("null".into(), -32600));
    play.server(&sample("3"));
    play.is_asked(1);
    play.server(&sample("3"));
    assert_eq!(refusal(&play.server_heard()[0]), ("3".into(), -32600));
    play.nobody_hears();
}

#[test]
fn a_clients_error_is_an_answer_and_progress_for_the_server_passes() {
    let mut play = Play::legacy(1);
    play.server(&request("0", "x/y", r#"{"_meta":{"progressToken":0}}"#));
    let heard = play.heard(1);
    let shown = crate::play::id_of(&heard[0]);
    assert_eq!(
        heard,
        [request(&shown, "x/y", r#"{"_meta":{"progressToken":0}}"#)]
    );
    let progress = notice(
        "notifications/progress",
        r#"{"progressToken":0,"progress":1.0}"#,
    );
    play.client(1, &progress);
    play.client(1, &error(&shown, -1));
    assert_eq!(play.server_heard(), [progress, error("0", -1)]);
}

#[test]
fn what_a_client_works_on_for_the_server_is_asked_of_it() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.server(&sample("0"));
    let shown = play.is_asked(1);
    play.client(
        1,
        &result(&shown, r#"{"task":{"taskId":"t","status":"working"}}"#),
    );
    play.client(2, &call("1", "b"));
    play.forget();
    play.server(&request("1", "tasks/get", r#"{"taskId":"t"}"#));
    play.is_asked(1);
    play.nobody_hears();
}

#[test]
fn that_an_elicitation_is_complete_is_told_to_who_was_asked() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    let params = r#"{"mode":"url","elicitationId":"e"}"#;
    play.server(&request("0", "elicitation/create", params));
    play.is_asked(1);
    let complete = notice(
        "notifications/elicitation/complete",
        r#"{"elicitationId":"e"}"#,
    );
    play.server(&complete);
    assert_eq!(play.heard(1), [&complete[..]]);
    play.nobody_hears();
}

#[test]
fn that_an_elicitation_of_an_error_is_complete_is_told_to_who_got_the_error() {
    let complete = |id: &str| {
        let params = format!(r#"{{"elicitationId":"{id}"}}"#);
        notice("notifications/elicitation/complete", &params)
    };
    let needs = |id: &str, code: i64| {
        let data = r#"{"elicitations":[{"elicitationId":"e"},3,{"elicitationId":"f","url":"x"}]}"#;
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"?","data":{data}}}}}"#
        )
    };
    let mut play = Play::legacy(2);
    for (code, is_told) in [(-32000, false), (-32042, true)] {
        let minted = play.asks(1, &call("1", "a"));
        play.server(&needs(&minted, code));
        assert_eq!(play.heard(1), [needs("1", code)]);
        for id in ["e", "f"] {
            play.server(&complete(id));
            assert_eq!(play.heard(1).len(), usize::from(is_told));
            play.nobody_hears();
        }
    }
    play.notes();
    play.server(&complete("who?"));
    play.nobody_hears();
    let note = Note::Unaddressed(Unaddressed::Elicitation);
    assert_eq!(play.notes(), [note]);

    // One that is the only session there ever was hears of all.
    let mut play = Play::legacy(1);
    play.server(&complete("who?"));
    assert_eq!(play.heard(1), [complete("who?")]);
}

/// The shortest time that a server's questions take while this many calls are in flight.
#[expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it measures how long the mux takes"
)]
fn time_of_questions(calls: usize) -> Duration {
    let once = || {
        let mut play = Play::legacy(2);
        for id in 0..calls {
            play.client(1, &request(&id.to_string(), "tools/call", "{}"));
        }
        play.forget();
        let start = std::time::Instant::now();
        for id in 0..500 {
            let id = format!("\"question {id}\"");
            play.server(&request(&id, "sampling/createMessage", "{}"));
        }
        start.elapsed()
    };
    (0..3).map(|_| once()).min().expect("three times")
}

#[test]
fn a_question_of_a_server_takes_no_longer_while_many_calls_are_in_flight() {
    let (few, many) = (time_of_questions(20), time_of_questions(8_000));
    // 400 times as many calls: a look at each would take about 400 times as long.
    assert!(many < 30 * few, "{many:?}, {few:?} with few");
}
