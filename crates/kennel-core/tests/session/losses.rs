//! While no upstream is there, and when the next one comes.

use kennel_core::session::{Note, SERVER_RESTARTED, ServerExit, Unsent, Verdict};

use crate::play::{
    INITIALIZE, INITIALIZED, Play, WELCOME, cancel, error, lost, notice, pong, request, result,
    unavailable,
};

const SORRY: &str = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}"#;

#[test]
fn lesson_37_the_handshake_is_said_again_and_its_answer_swallowed() {
    let mut play = Play::legacy();
    play.lose();
    play.attach();
    assert_eq!(play.upstream_heard(), [INITIALIZE]);
    play.app(&request("1", "x"));
    assert_eq!(play.upstream_heard(), [""; 0], "it waits for the answer");

    play.upstream(WELCOME);
    assert_eq!(play.upstream_heard(), [INITIALIZED, &request("1", "x")]);
    assert_eq!(play.app_heard(), [""; 0]);
    play.upstream(&result("1"));
    assert_eq!(play.app_heard(), [result("1")]);
}

#[test]
fn the_greeting_is_what_every_upstream_hears_first() {
    let mut play = Play::detached();
    assert_eq!(play.session.handshake_request(), None);
    play.app(&request("1", "x"));
    assert_eq!(play.session.handshake_request(), None);
    play.app(INITIALIZE);
    for _ in 0..2 {
        assert_eq!(
            play.session.handshake_request(),
            Some(INITIALIZE.as_bytes())
        );
        play.session.handle_upstream_attached();
        let first = play.session.poll_to_upstream();
        assert_eq!(first.as_deref(), play.session.handshake_request());
        play.lose();
    }
    play.give_up();
    assert_eq!(play.session.handshake_request(), None);
}

#[test]
fn an_initialized_that_the_app_did_not_send_is_not_sent_for_it() {
    let mut play = Play::modern();
    play.app(INITIALIZE);
    play.upstream(WELCOME);
    play.lose();
    play.attach();
    play.upstream(WELCOME);
    assert_eq!(play.upstream_heard(), [INITIALIZE, INITIALIZE]);
    play.app(INITIALIZED);
    assert_eq!(play.upstream_heard(), [INITIALIZED]);
    assert_eq!(play.app_heard(), [WELCOME]);
}

#[test]
fn rule_4_an_initialize_cut_off_is_answered_by_the_next_upstream_and_once() {
    let mut play = Play::modern();
    play.app(INITIALIZE);
    play.lose();
    play.attach();
    play.lose();
    assert_eq!(play.app_heard(), [""; 0]);
    assert_eq!(play.session.in_flight(), 1);

    play.attach();
    play.upstream(WELCOME);
    play.app(INITIALIZED);
    assert_eq!(play.app_heard(), [WELCOME]);
    assert_eq!(
        play.upstream_heard(),
        [INITIALIZE, INITIALIZE, INITIALIZE, INITIALIZED]
    );
}

#[test]
fn an_upstream_that_refuses_the_handshake_of_a_running_session_is_abandoned() {
    let mut play = Play::legacy();
    play.lose();
    play.app(&request("1", "x"));
    play.attach();
    assert!(play.upstream(SORRY));
    assert!(!play.session.is_attached());
    assert_eq!(play.notes(), [Note::HandshakeRefused]);
    assert_eq!(play.app_heard(), [""; 0]);

    // What it says afterwards is nobody's; the next one is greeted as ever.
    play.upstream_heard();
    play.upstream(WELCOME);
    assert_eq!(play.notes(), [Note::Stale]);
    play.attach();
    play.upstream(WELCOME);
    assert_eq!(
        play.upstream_heard(),
        [INITIALIZE, INITIALIZED, &request("1", "x")]
    );
}

#[test]
fn a_refusal_is_the_apps_answer_if_it_has_none_yet() {
    let mut play = Play::detached();
    play.app(INITIALIZE);
    play.app(INITIALIZED);
    play.attach();
    assert!(!play.upstream(SORRY));
    assert_eq!(play.app_heard(), [SORRY]);
    assert_eq!(play.upstream_heard(), [INITIALIZE]);

    play.app(INITIALIZE);
    assert_eq!(play.upstream_heard(), [INITIALIZE], "it may try again");
}

#[test]
fn rule_4_what_was_in_flight_is_answered_with_an_error_that_says_so() {
    let mut play = Play::legacy();
    play.app(&request("9", "tools/call"));
    play.app(&request(r#""\u0061""#, "tasks/cancel"));
    play.app(&request("1", "prompts/get"));
    play.upstream(&result("1"));
    play.app_heard();
    play.lose();
    assert_eq!(
        play.app_heard(),
        [lost("9", "tools/call"), lost(r#""\u0061""#, "tasks/cancel")]
    );
    assert_eq!(play.session.in_flight(), 0);

    play.lose();
    play.attach();
    play.upstream(WELCOME);
    play.upstream(&result("9"));
    assert_eq!(play.app_heard(), [""; 0], "no second answer");
}

#[test]
fn rule_5_nothing_but_the_handshake_is_sent_twice() {
    let mut play = Play::legacy();
    play.app(&request("1", "x"));
    play.app(&notice("n"));
    play.upstream_heard();
    play.lose();
    play.attach();
    play.upstream(WELCOME);
    assert_eq!(play.upstream_heard(), [INITIALIZE, INITIALIZED]);
}

#[test]
fn lesson_37_a_cancelled_request_does_not_come_back_and_is_not_answered() {
    let mut play = Play::modern();
    play.app(&request("1", "x"));
    play.app(&cancel("1"));
    play.lose();
    assert_eq!(play.app_heard(), [""; 0]);

    // Not when it waits, either.
    play.upstream_heard();
    play.app(&request("2", "x"));
    play.app(&request("3", "x"));
    play.app(&cancel("2"));
    assert_eq!(play.session.in_flight(), 1);
    play.attach();
    assert_eq!(play.upstream_heard(), [request("3", "x")]);
    assert_eq!(play.app_heard(), [""; 0]);
}

#[test]
fn while_there_is_no_upstream_lines_wait_in_order_and_pings_are_answered() {
    let mut play = Play::detached();
    play.app(&request("1", "a"));
    play.app(&notice("b"));
    play.app(&request("2", "ping"));
    play.app(&request("3", "c"));
    assert_eq!(play.app_heard(), [pong("2")]);
    assert_eq!(play.session.in_flight(), 2);

    play.app(&request("1", "a"));
    assert_eq!(error(&play.app_heard()[0]), ("1".into(), -32600));

    play.attach();
    play.app(&request("4", "ping"));
    assert_eq!(
        play.upstream_heard(),
        [
            request("1", "a"),
            notice("b"),
            request("3", "c"),
            request("4", "ping")
        ]
    );
}

#[test]
fn what_was_not_polled_was_not_sent() {
    let mut play = Play::detached();
    for id in ["1", "2", "3"] {
        play.app(&request(id, "x"));
    }
    // The first upstream takes one line, and is lost.
    let session = &mut play.session;
    session.handle_upstream_attached();
    assert_eq!(session.poll_to_upstream(), Some(request("1", "x").into()));
    assert_eq!(
        session.handle_app_line(request("4", "x").as_bytes()),
        Verdict::Drop
    );
    assert_eq!(
        session.handle_app_line(cancel("3").as_bytes()),
        Verdict::Drop
    );
    session.handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
    assert_eq!(session.poll_to_app(), Some(lost("1", "x").into()));
    assert_eq!(session.poll_to_app(), None);

    play.attach();
    assert_eq!(
        play.upstream_heard(),
        [request("2", "x"), request("4", "x")]
    );
}

#[test]
fn an_answer_to_what_was_not_asked_yet_is_dropped() {
    let mut play = Play::legacy();
    play.lose();
    play.app(&request("1", "x"));
    play.attach();
    play.upstream(&result("1"));
    assert_eq!(play.app_heard(), [""; 0]);
    play.upstream(WELCOME);
    play.upstream(&result("1"));
    assert_eq!(play.app_heard(), [result("1")]);
}

#[test]
fn a_batch_that_waits_loses_the_members_that_are_cancelled() {
    let mut play = Play::detached();
    let [one, two, three] = ["1", "2", "3"].map(|id| request(id, "x"));
    play.app(&format!("[{one},{two},{},{three}]", cancel("1")));
    play.app(&cancel("3"));
    play.app(&format!("[{}]", request("4", "x")));
    play.app(&cancel("4"));
    assert_eq!(play.session.in_flight(), 1);
    play.attach();
    assert_eq!(play.upstream_heard(), [format!("[{two}]")]);

    play.lose();
    assert_eq!(play.app_heard(), [lost("2", "x")]);

    let [first, second] = ["first", "second"].map(|method| request("5", method));
    play.app(&format!("[{first},{},{second}]", cancel("5")));
    play.attach();
    assert_eq!(play.upstream_heard(), [format!("[{second}]")]);
}

#[test]
fn rule_4_each_request_of_a_lost_batch_gets_its_own_error() {
    let mut play = Play::modern();
    play.app(&format!("[{},{}]", request("1", "a"), request("2", "b")));
    play.lose();
    assert_eq!(play.app_heard(), [lost("1", "a"), lost("2", "b")]);
}

#[test]
fn having_given_up_it_refuses_what_waits_and_what_comes() {
    let mut play = Play::detached();
    play.app(INITIALIZE);
    play.app(&request("1", "x"));
    play.app(&notice("n"));
    play.give_up();
    assert_eq!(play.app_heard(), [unavailable("0"), unavailable("1")]);
    assert!(play.session.is_idle());

    play.app(&request("2", "x"));
    play.app(&request("3", "ping"));
    play.app(&notice("n"));
    assert_eq!(play.app_heard(), [unavailable("2"), pong("3")]);
    assert_eq!(play.notes(), [Note::NotificationLost]);

    play.attach();
    assert_eq!(play.upstream_heard(), [""; 0], "all of it is forgotten");
    play.app(INITIALIZE);
    assert_eq!(play.upstream_heard(), [INITIALIZE]);
}

#[test]
fn giving_up_a_running_session_keeps_its_handshake() {
    let mut play = Play::legacy();
    play.app(&request("1", "x"));
    play.upstream_heard();
    play.give_up();
    let answer = &play.app_heard()[0];
    assert!(answer.contains(r#""outcome":"unknown""#), "{answer}");

    play.session.expect_upstream();
    play.app(&request("2", "x"));
    assert_eq!(play.app_heard(), [""; 0], "it waits again");
    play.attach();
    play.upstream(WELCOME);
    assert_eq!(
        play.upstream_heard(),
        [INITIALIZE, INITIALIZED, &request("2", "x")]
    );
}

#[test]
fn a_session_that_owes_nothing_may_end_while_its_upstream_is_greeted() {
    let mut play = Play::legacy();
    play.lose();
    play.session.handle_app_eof();
    assert!(play.session.is_idle());
    play.session.handle_upstream_attached();
    assert!(play.session.is_idle());
}

#[test]
fn errors_say_how_the_server_ended_and_when_the_next_may_start() {
    let mut play = Play::modern();
    play.app(&request("1", "tools/call"));
    play.session.set_server_exit(Some(ServerExit::Signal(9)));
    play.lose();
    let lost = play.app_heard().remove(0);
    assert!(
        lost.contains(r#""replayed":false,"signal":"SIGKILL"}"#),
        "{lost}"
    );
    assert!(lost.contains("possibly out of memory"), "{lost}");

    play.session.set_server_exit(Some(ServerExit::Code(3)));
    play.session.set_retry_after(Some(1600));
    play.session.give_up("it ended", "");
    play.app(&request("2", "tools/call"));
    let refused = play.app_heard().remove(0);
    let data = r#""detail":"exited with code 3","outcome":"unsent","replayed":false,"exitCode":3,"retryAfterMs":1600}"#;
    assert!(refused.contains(data), "{refused}");
    play.session.set_retry_after(None);
    play.app(&request("3", "tools/call"));
    assert!(!play.app_heard()[0].contains("retryAfterMs"));

    // The next one is another story.
    play.attach();
    play.app(&request("4", "tools/call"));
    play.lose();
    assert!(!play.app_heard()[0].contains("SIGKILL"));
}

#[test]
fn past_the_limit_a_request_is_refused_and_an_answer_makes_room() {
    use kennel_core::session::IN_FLIGHT_LIMIT;
    let mut play = Play::legacy();
    for id in 1..=IN_FLIGHT_LIMIT {
        play.app(&request(&id.to_string(), "x"));
    }
    assert_eq!(play.upstream_heard().len(), IN_FLIGHT_LIMIT);
    play.app(&request("\"more\"", "x"));
    assert_eq!(play.upstream_heard(), [""; 0]);
    let [refused] = &play.app_heard()[..] else {
        panic!("one answer");
    };
    assert!(refused.contains("-32000") && refused.contains("too_many_requests"));
    play.upstream(&result("1"));
    assert_eq!(play.app_heard(), [result("1")]);
    play.app(&request("\"more\"", "x"));
    assert_eq!(play.upstream_heard(), [request("\"more\"", "x")]);
}

#[test]
fn an_initialize_that_is_too_long_is_refused() {
    let mut play = Play::detached();
    let text = "x".repeat(1 << 20);
    let long = INITIALIZE.replacen(
        "\"params\":{",
        &format!("\"params\":{{\"x\":\"{text}\","),
        1,
    );
    play.app(&long);
    assert_eq!(play.session.handshake_request(), None);
    assert!(play.app_heard()[0].contains("initialize is longer than"));
}
