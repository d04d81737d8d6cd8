//! Servers and apps that echo a number as a string, or as `1.0`: the official SDKs accept both.

use kennel_core::message::Key;
use kennel_core::note::LineNote;
use kennel_core::session::{Note, Side};

use crate::play::{INITIALIZE, INITIALIZED, Play, WELCOME, cancel, request, result};

#[test]
fn an_answer_under_a_stringified_id_reaches_the_app_with_its_own_id() {
    let mut play = Play::modern();
    for echoed in [r#""7""#, "7.0", "7e0", "0.7E1", r#"" 7 ""#, r#""\u0037""#] {
        play.app(&request("7", "tools/call"));
        play.upstream(&result(echoed));
        assert_eq!(play.app_heard(), [result("7")], "{echoed}");
    }
    play.app(&request(r#""\u0037""#, "tools/call"));
    play.upstream(&result("7"));
    assert_eq!(play.app_heard(), [result(r#""\u0037""#)]);

    play.app(&request("8", "tools/call"));
    let refused =
        |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"?"}}}}"#);
    play.upstream(&refused(r#""8""#));
    assert_eq!(play.app_heard(), [refused("8")]);
    assert!(play.session.is_idle());
    assert_eq!(play.notes(), []);
}

#[test]
fn a_handshake_answered_under_a_string_is_answered_and_so_is_the_next_one() {
    let mut play = Play::modern();
    let welcome = WELCOME.replace("\"id\":0", "\"id\":\"0\"");
    play.app(INITIALIZE);
    play.upstream(&welcome);
    assert_eq!(play.app_heard(), [WELCOME]);
    play.app(INITIALIZED);
    assert_eq!(play.upstream_heard(), [INITIALIZE, INITIALIZED]);

    play.lose();
    play.attach();
    play.app(&request("1", "tools/list"));
    assert_eq!(play.upstream_heard(), [INITIALIZE]);
    play.upstream(&welcome);
    assert_eq!(
        play.upstream_heard(),
        [INITIALIZED, &request("1", "tools/list")]
    );
    assert_eq!(play.app_heard(), [""; 0]);

    // And where the first server ended before it answered.
    let mut play = Play::modern();
    play.app(INITIALIZE);
    play.lose();
    play.attach();
    play.upstream(&welcome);
    assert_eq!(play.app_heard(), [WELCOME]);
}

#[test]
fn an_exact_match_comes_first_and_two_of_the_same_number_are_ambiguous() {
    let mut play = Play::modern();
    play.app(&request("1", "a"));
    play.app(&request(r#""1""#, "b"));
    play.upstream(&result("1.0"));
    assert_eq!(play.app_heard(), [""; 0]);
    let unknown = Note::Line(LineNote::UnknownAnswer(
        Side::Upstream,
        Some(Key::Odd("1.0".into())),
    ));
    assert_eq!(play.notes(), [unknown]);
    play.upstream(&result(r#""1""#));
    assert_eq!(play.app_heard(), [result(r#""1""#)]);
    play.upstream(&result(r#""1""#));
    assert_eq!(play.app_heard(), [result("1")]);
}

#[test]
fn what_still_waits_for_an_upstream_is_not_answered_by_a_number() {
    let mut play = Play::legacy();
    play.lose();
    play.attach();
    play.app(&request("1", "tools/list"));
    play.upstream(&result(r#""1""#));
    assert_eq!(play.app_heard(), [""; 0]);
    assert_eq!(play.session.in_flight(), 1);
}

#[test]
fn cancellations_may_spell_the_id_otherwise() {
    let mut play = Play::modern();
    play.app(&request("3", "tools/call"));
    play.upstream_heard();
    play.app(&cancel(r#""3""#));
    assert_eq!(play.upstream_heard(), [cancel("3")]);
    assert_eq!(play.session.in_flight(), 0);

    play.upstream(&request("4", "sampling/createMessage"));
    play.app_heard();
    play.upstream(&cancel(r#""4""#));
    assert_eq!(play.app_heard(), [cancel("4")]);

    play.app(&request("5", "subscriptions/listen"));
    play.upstream(&cancel(r#""5""#));
    assert_eq!(play.app_heard(), [cancel("5")]);
    assert_eq!(play.notes(), []);
}

#[test]
fn an_app_may_answer_the_server_under_a_string() {
    let mut play = Play::modern();
    play.upstream(&request("4", "sampling/createMessage"));
    play.app(&result(r#""4""#));
    assert_eq!(play.upstream_heard(), [result("4")]);
    assert!(!play.session.is_quiet() || play.notes().is_empty());
}

#[test]
fn progress_under_a_stringified_token_does_not_go_back_after_a_replay() {
    let mut play = Play::legacy();
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":1}}}"#;
    let progress = |n: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"1","progress":{n}}}}}"#
        )
    };
    play.app(call);
    play.upstream(&progress(3));
    assert_eq!(play.app_heard(), [progress(3)]);
    play.next_server();
    play.upstream(&progress(2));
    assert_eq!(play.app_heard(), [""; 0]);
    play.upstream(&progress(4));
    assert_eq!(play.app_heard(), [progress(4)]);
}
