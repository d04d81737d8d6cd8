//! Lines that are no messages: whoever waits for an answer gets one.

use kennel_core::message::BATCH_LIMIT;
use kennel_core::mux::{Note, Side};
use kennel_core::note::LineNote;

use crate::play::{Play, call, reason, refusal, request, result};

#[test]
fn an_answer_that_is_not_utf8_or_has_control_characters_is_repaired() {
    let mut play = Play::legacy(2);
    for (raw, repaired) in [(&b"a\xffb"[..], "a\u{fffd}b"), (b"\x1b\t", r"\u001b\u0009")] {
        let minted = play.asks(2, &call(r#""x""#, "a"));
        let line = format!(r#"{{"jsonrpc":"2.0","id":{minted},"result":{{"y":""#);
        let line = [line.as_bytes(), raw, br#""}}"#].concat();
        play.server_bytes(&line);
        let expected = result(r#""x""#, &format!(r#"{{"y":"{repaired}"}}"#));
        assert_eq!(play.heard(2), [expected]);
        assert!(matches!(
            play.notes()[..],
            [Note::Line(LineNote::Repaired(Side::Server, _))]
        ));
    }
    play.nobody_hears();
}

#[test]
fn an_answer_beyond_repair_is_an_error_with_the_clients_own_id() {
    let mut play = Play::legacy(2);
    for broken in [
        r#"{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}"#,
        r#"{"jsonrpc":"2.0","id":"7","result":{"a":"cut o"#,
        r#"{"jsonrpc":"2.0","id":7}"#,
    ] {
        let minted = play.asks(1, &call(r#""x""#, "a"));
        play.server(&broken.replace('7', &minted));
        let heard = play.heard(1);
        assert_eq!(refusal(&heard[0]), (r#""x""#.into(), -32603), "{broken}");
        assert_eq!(reason(&heard[0]), "malformed_answer");
        assert_eq!(heard.len(), 1);
    }
    play.nobody_hears();
}

#[test]
fn an_answer_with_two_ids_and_a_batch_that_is_malformed_or_too_long_leave_nobody_waiting() {
    let mut play = Play::legacy(2);
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    let many = vec![notice; BATCH_LIMIT].join(",");
    for broken in [
        r#"{"jsonrpc":"2.0","id":7,"result":{},"id":7}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":7,"result":{},"id":999}"#.to_owned(),
        r#"[{"jsonrpc":"2.0","id":7,"result":{}},7]"#.to_owned(),
        r#"[{"jsonrpc":"2.0","id":99,"result":0},{"jsonrpc":"2.0","id":7,"result":NaN}]"#
            .to_owned(),
        r#"[{"jsonrpc":"2.0","id":7,"result":{}}"#.to_owned(),
        r#"[[{"jsonrpc":"2.0","id":7,"result":{}}]]"#.to_owned(),
        format!(r#"[{many},{{"jsonrpc":"2.0","id":7,"result":{{}}}}]"#),
    ] {
        let minted = play.asks(1, &call(r#""x""#, "a"));
        play.server(&broken.replace(r#""id":7"#, &format!(r#""id":{minted}"#)));
        let heard = play.heard(1);
        assert_eq!(heard.len(), 1);
        assert_eq!(refusal(&heard[0]), (r#""x""#.into(), -32603));
        assert_eq!(reason(&heard[0]), "malformed_answer");
    }
    // The server is told of its long batch, once.
    let told = play.server_heard();
    assert_eq!(told.len(), 1);
    assert_eq!(refusal(&told[0]), ("null".into(), -32600));
    play.nobody_hears();

    play.client(1, &format!("[{many},{notice}]"));
    let heard = play.heard(1);
    assert_eq!(heard.len(), 1);
    assert_eq!(refusal(&heard[0]), ("null".into(), -32600));
    play.nobody_hears();
}

#[test]
fn a_malformed_request_of_the_server_is_refused() {
    let mut play = Play::legacy(1);
    play.server(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list","params":7}"#);
    assert_eq!(refusal(&play.server_heard()[0]), ("4".into(), -32600));
    play.nobody_hears();
}

#[test]
fn a_request_with_other_bytes_before_it_gets_an_error() {
    let mut play = Play::legacy(2);
    for before in ["\u{a0}", "\u{feff}", "x", "hello ", "}"] {
        play.client(1, &format!("{before}{}", call("7", "a")));
        let heard = play.heard(1);
        assert_eq!(heard.len(), 1, "{before}");
        assert_eq!(refusal(&heard[0]), ("7".into(), -32700), "{before}");
        play.nobody_hears();
    }
    play.client(1, "hello");
    assert_eq!(refusal(&play.heard(1)[0]), ("null".into(), -32700));
    play.nobody_hears();
}

#[test]
fn integers_that_no_double_holds_are_answered() {
    let mut play = Play::legacy(2);
    for id in ["9007199254740993", "123456789012345678901234567890"] {
        let minted = play.asks(1, &call(id, "a"));
        play.server(&request(id, "sampling/createMessage", "{}"));
        let shown = play.is_asked(1);
        play.client(1, &result(&shown, "{}"));
        assert_eq!(play.server_heard(), [result(id, "{}")]);
        play.server(&result(&minted, "{}"));
        assert_eq!(play.heard(1), [result(id, "{}")]);
    }
}
