//! One handshake for the server, and one for each client.

use kennel_core::mux::{ClientId, Lane, Note};

use crate::play::{
    INITIALIZED, Play, WELCOME, call, cancel, error, id_of, initialize, initialize_with, modern,
    notice, refusal, request, result,
};

#[test]
fn the_server_is_initialised_once_and_every_client_has_its_own_answer() {
    let mut play = Play::greeting();
    play.join(1);
    play.join(2);
    play.client(1, &initialize("0"));
    play.client(2, &initialize(r#""x""#));
    let heard = play.server_heard_in_lanes();
    assert_eq!(heard, [(Lane::Front, initialize("1"))]);

    play.server(&result("1", WELCOME));
    assert_eq!(play.heard(1), [result("0", WELCOME)]);
    assert_eq!(play.heard(2), [result(r#""x""#, WELCOME)]);

    play.join(3);
    play.client(3, &initialize("7"));
    assert_eq!(play.heard(3), [result("7", WELCOME)]);
    play.nobody_hears();

    play.client(2, INITIALIZED);
    assert_eq!(
        play.server_heard_in_lanes(),
        [(Lane::Front, INITIALIZED.to_owned())]
    );
    play.client(1, INITIALIZED);
    play.client(3, INITIALIZED);
    play.nobody_hears();
}

#[test]
fn a_handshake_that_fails_answers_all_who_wait_and_may_be_tried_again() {
    let mut play = Play::greeting();
    play.join(1);
    play.join(2);
    play.client(1, &initialize("0"));
    play.client(2, &initialize("5"));
    play.forget();
    play.server(&error("1", -32602));
    assert_eq!(play.heard(1), [error("0", -32602)]);
    assert_eq!(play.heard(2), [error("5", -32602)]);

    play.client(2, &initialize("6"));
    let again = play.server_heard();
    assert_eq!(again.len(), 1);
    play.server(&result(&id_of(&again[0]), WELCOME));
    assert_eq!(play.heard(2), [result("6", WELCOME)]);
    play.client(1, &initialize("1"));
    assert_eq!(play.heard(1), [result("1", WELCOME)]);
}

#[test]
fn an_initialized_that_confirms_nothing_does_not_stand_for_the_one_that_does() {
    let mut play = Play::greeting();
    play.join(1);
    play.client(1, &initialize("0"));
    play.client(1, INITIALIZED);
    play.server(&error("1", -32602));
    play.client(1, INITIALIZED);
    play.forget();
    let again = play.asks(1, &initialize("0"));
    play.server(&result(&again, WELCOME));
    play.client(1, INITIALIZED);
    let confirmed = (Lane::Front, INITIALIZED.to_owned());
    assert_eq!(play.server_heard_in_lanes(), [confirmed]);
}

#[test]
fn who_began_the_handshake_may_leave_and_its_answer_is_kept() {
    let mut play = Play::greeting();
    play.join(1);
    play.client(1, &initialize("0"));
    play.leave(1);
    assert_eq!(play.server_heard(), [initialize("1")], "and no cancel");
    play.join(2);
    play.client(2, &initialize("0"));
    play.server(&result("1", WELCOME));
    assert_eq!(play.heard(2), [result("0", WELCOME)]);
    play.join(3);
    play.client(3, &initialize("0"));
    assert_eq!(play.heard(3), [result("0", WELCOME)]);
    play.nobody_hears();
}

#[test]
fn a_second_initialize_of_one_client_is_refused_and_none_can_be_cancelled() {
    let mut play = Play::greeting();
    play.join(1);
    play.client(1, &initialize("0"));
    play.client(1, &cancel("0"));
    play.client(1, &initialize("1"));
    assert_eq!(play.server_heard(), [initialize("1")]);
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32600));
    let client = ClientId(1);
    assert_eq!(
        play.notes(),
        [
            Note::InitializeCancelled(client),
            Note::SecondInitialize(client)
        ]
    );
    play.server(&result("1", WELCOME));
    assert_eq!(play.heard(1), [result("0", WELCOME)]);
}

#[test]
fn a_handshake_of_another_class_is_not_answered_from_memory() {
    let mut play = Play::legacy(1);
    play.join(2);
    play.client(2, &initialize_with("0", "2025-11-25", "{}"));
    assert_eq!(play.dismissed, [2]);
    play.nobody_hears();
    assert_eq!(play.mux.clients(), 1);
}

#[test]
fn requests_before_initialized_pass_behind_the_handshake() {
    let mut play = Play::greeting();
    play.join(1);
    play.client(1, &initialize("0"));
    play.client(1, &call("1", "a"));
    let lanes: Vec<_> = play
        .server_heard_in_lanes()
        .into_iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(lanes, [Lane::Front, Lane::Of(ClientId(1))]);
}

#[test]
fn a_legacy_server_never_hears_of_the_modern_era() {
    let mut play = Play::legacy(1);
    play.client(1, &modern("1", "server/discover", ""));
    play.client(1, &modern("2", "tools/list", ""));
    let heard = play.heard(1);
    assert_eq!(refusal(&heard[0]), ("1".into(), -32601));
    assert_eq!(refusal(&heard[1]), ("2".into(), -32600));
    play.nobody_hears();
    assert_eq!(play.mux.pending_requests_of(ClientId(1)), 0);
}

#[test]
fn who_has_not_said_initialized_does_not_hear_what_is_for_all() {
    let mut play = Play::legacy(1);
    play.join(2);
    play.client(2, &initialize("0"));
    play.forget();
    for method in ["notifications/tools/list_changed", "notifications/x/y"] {
        let line = notice(method, r#"{"a":1.0}"#);
        play.server(&line);
        assert_eq!(play.heard(1), [&line[..]]);
        assert_eq!(play.heard(2), [""; 0]);
    }
    play.client(2, INITIALIZED);
    let line = notice("notifications/prompts/list_changed", "{}");
    play.server(&line);
    assert_eq!(
        (play.heard(1), play.heard(2)),
        (vec![line.clone()], vec![line])
    );
}

#[test]
fn before_anybody_said_initialized_the_server_speaks_to_who_began() {
    let mut play = Play::greeting();
    play.join(1);
    play.join(2);
    play.client(2, &initialize("0"));
    play.client(1, &initialize("0"));
    play.forget();
    let line = notice("notifications/message", r#"{"level":"debug","data":1}"#);
    play.server(&line);
    assert_eq!(play.heard(2), [line]);
    play.nobody_hears();
}

#[test]
fn pings_are_answered_here_both_ways() {
    let mut play = Play::legacy(2);
    play.client(1, &request(r#""p""#, "ping", "{}"));
    assert_eq!(play.heard(1), [result(r#""p""#, "{}")]);
    play.server(&request("0", "ping", "{}"));
    assert_eq!(
        play.server_heard_in_lanes(),
        [(Lane::Own, result("0", "{}"))]
    );
    play.nobody_hears();
    assert_eq!(play.mux.requests(), 2, "the handshakes");
}
