//! Servers and clients that echo a number as a string, or as `1.0`: the official SDKs accept both.

use kennel_core::message::Key;
use kennel_core::mux::{Note, Side};
use kennel_core::note::LineNote;

use crate::play::{Play, call, cancel, error, modern, notice, progress, request, result};

/// How peers spell the id 7.
fn spellings(id: &str) -> [String; 4] {
    [
        format!("\"{id}\""),
        format!("{id}.0"),
        format!("{id}e0"),
        format!("\" {id} \""),
    ]
}

#[test]
fn a_minted_id_echoed_as_a_string_or_float_reaches_its_client_with_its_own_id() {
    let mut play = Play::legacy(2);
    for nth in 0..4 {
        let minted = play.asks(1, &call(r#""\u0061""#, "a"));
        let echoed = &spellings(&minted)[nth];
        play.server(&result(echoed, r#"{"x":1.0}"#));
        assert_eq!(play.heard(1), [result(r#""\u0061""#, r#"{"x":1.0}"#)]);

        let minted = play.asks(2, &call("9", "a"));
        let echoed = &spellings(&minted)[nth];
        play.server(&error(echoed, -32000));
        assert_eq!(play.heard(2), [error("9", -32000)]);
    }
    play.nobody_hears();
    assert_eq!(play.notes(), []);
}

#[test]
fn a_handshake_answered_under_a_string_is_answered() {
    let mut play = Play::greeting();
    play.join(1);
    let minted = play.asks(1, &crate::play::initialize("0"));
    play.server(&result(&format!("\"{minted}\""), crate::play::WELCOME));
    assert_eq!(play.heard(1), [result("0", crate::play::WELCOME)]);
}

#[test]
fn an_id_that_is_no_pending_number_is_still_dropped() {
    let mut play = Play::legacy(1);
    play.asks(1, &call("1", "a"));
    for unknown in [r#""99""#, r#""""#, r#""x""#, "1.5", "null"] {
        play.server(&result(unknown, "{}"));
        assert_eq!(play.heard(1), [""; 0], "{unknown}");
        let notes = play.notes();
        let is_unknown = |note: &Note| {
            matches!(
                note,
                Note::Line(LineNote::UnknownAnswer(Side::Server, Some(_)))
            )
        };
        assert!(notes.iter().all(is_unknown) && notes.len() == 1);
    }
}

#[test]
fn progress_under_a_stringified_token_reaches_its_client() {
    let mut play = Play::legacy(1);
    let with_token = |id, token| {
        let params = format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#);
        request(id, "tools/call", &params)
    };
    let minted = play.asks(1, &with_token("1", "5"));
    play.server(&progress(&format!("\"{minted}\"")));
    assert_eq!(play.heard(1), [progress("5")]);
    play.server(&progress(&minted));
    assert_eq!(play.heard(1), [progress("5")]);
}

#[test]
fn a_string_token_reaches_the_server_as_a_string() {
    let mut play = Play::legacy(1);
    let with_token = |id: &str, token: &str| {
        let params = format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#);
        request(id, "tools/call", &params)
    };
    play.client(1, &with_token("1", r#""abc""#));
    let heard = play.server_heard();
    let minted = crate::play::id_of(&heard[0]);
    let quoted = format!("\"{minted}\"");
    assert_eq!(heard, [with_token(&minted, &quoted)]);
    for token in [&quoted, &minted] {
        play.server(&progress(token));
        assert_eq!(play.heard(1), [progress(r#""abc""#)]);
    }
    play.client(1, &with_token("2", "5"));
    let heard = play.server_heard();
    let minted = crate::play::id_of(&heard[0]);
    assert_eq!(heard, [with_token(&minted, &minted)]);
}

#[test]
fn a_cancellation_may_spell_the_id_otherwise() {
    let mut play = Play::legacy(1);
    let minted = play.asks(1, &call("3", "a"));
    play.client(1, &cancel(r#""3""#));
    assert_eq!(play.server_heard(), [cancel(&minted)]);

    // Two requests are the same number: nobody knows which is meant.
    play.client(1, &call("4", "a"));
    play.client(1, &call(r#""4""#, "a"));
    play.forget();
    play.client(1, &cancel("4.0"));
    play.nobody_hears();
    let unknown = Note::Line(LineNote::UnknownCancel(
        Side::Client(kennel_core::mux::ClientId(1)),
        Key::Odd("4.0".into()),
    ));
    assert_eq!(play.notes(), [unknown]);
}

#[test]
fn a_client_may_answer_the_server_under_a_string() {
    let mut play = Play::legacy(1);
    play.asks(1, &call("1", "a"));
    let sample = |id: &str| request(id, "sampling/createMessage", "{}");
    play.server(&sample("50"));
    let shown = play.is_asked(1);
    play.client(1, &result(&format!("\"{shown}\""), "{}"));
    assert_eq!(play.server_heard(), [result("50", "{}")]);

    play.server(&sample("51"));
    let shown = play.is_asked(1);
    play.server(&cancel(r#""51""#));
    assert_eq!(play.heard(1), [cancel(&shown)]);
}

#[test]
fn a_subscription_that_the_server_names_by_a_string_is_heard_as_without_kennel() {
    let acknowledged = |id: &str| {
        let params = format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#);
        notice("notifications/subscriptions/acknowledged", &params)
    };
    let ended = |id: &str, name: &str| {
        let named = format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{name}}}}}"#);
        result(id, &named)
    };
    for (own, heard_as) in [("5", r#""5""#), (r#""abc""#, r#""abc""#)] {
        let mut play = Play::modern(2);
        let minted = play.asks(1, &modern(own, "subscriptions/listen", ""));
        let quoted = format!("\"{minted}\"");
        play.server(&acknowledged(&quoted));
        assert_eq!(play.heard(1), [acknowledged(heard_as)]);
        play.server(&acknowledged(&minted));
        assert_eq!(play.heard(1), [acknowledged(own)]);
        play.server(&ended(&minted, &quoted));
        assert_eq!(play.heard(1), [ended(own, heard_as)]);

        let minted = play.asks(1, &modern(own, "subscriptions/listen", ""));
        play.server(&cancel(&format!("\"{minted}\"")));
        assert_eq!(play.heard(1), [cancel(own)]);
        play.nobody_hears();
    }
}
