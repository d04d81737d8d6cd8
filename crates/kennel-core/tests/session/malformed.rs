//! Lines that are no messages: whoever waits for an answer gets one.

use kennel_core::message::BATCH_LIMIT;
use kennel_core::note::LineNote;
use kennel_core::session::{Note, Side, Verdict};

use crate::play::{Play, error, notice, request, result};

/// What the app hears of a line of the upstream's that need not be text.
fn app_hears(play: &mut Play, line: &[u8]) -> String {
    match play.session.handle_upstream_line(line) {
        Verdict::Replace(line) => String::from_utf8(line).expect("text"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_that_is_not_utf8_or_has_control_characters_is_repaired() {
    let mut play = Play::modern();
    for (raw, repaired) in [
        (&b"a\xffb\xe2\x82"[..], "a\u{fffd}b\u{fffd}"),
        (b"\x00\x1b[31m\t", r"\u0000\u001b[31m\u0009"),
    ] {
        play.app(&request("7", "tools/call"));
        let line = [
            br#"{"id":7,"jsonrpc":"2.0", "result":{"x":1.0,"y":""#,
            raw,
            br#""}}"#,
        ]
        .concat();
        let heard = app_hears(&mut play, &line);
        let expected =
            format!(r#"{{"id":7,"jsonrpc":"2.0", "result":{{"x":1.0,"y":"{repaired}"}}}}"#);
        assert_eq!(heard, expected);
        assert!(matches!(
            play.notes()[..],
            [Note::Line(LineNote::Repaired(Side::Upstream, _))]
        ));
    }
    assert!(play.session.is_idle());
    // A notification, too.
    let notice = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":\"\xff\"}}";
    assert!(app_hears(&mut play, notice).contains('\u{fffd}'));
}

#[test]
fn an_answer_beyond_repair_is_an_error_with_the_apps_own_id() {
    let mut play = Play::modern();
    for (own, line) in [
        ("7", r#"{"jsonrpc":"2.0","id":7,"result":{"a":nan}}"#),
        (
            "7",
            r#"{"jsonrpc":"2.0","result":{"id":3,"a":[1NaN]},"id":"7"}"#,
        ),
        ("7", r#"{"jsonrpc":"2.0","id":7,"result":{"a":"cut o"#),
        (
            "7",
            r#"{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1}}"#,
        ),
        ("7", r#"{"jsonrpc":"2.0","id":7}"#),
        (r#""x""#, r#"{"id":"x","result":{}}"#),
    ] {
        play.app(&request(own, "tools/call"));
        play.upstream(line);
        let heard = play.app_heard();
        assert_eq!(heard.len(), 1, "{line}");
        assert_eq!(error(&heard[0]), (own.to_owned(), -32603), "{line}");
        assert!(heard[0].contains("malformed_answer"));
        assert!(play.session.is_idle());
    }
    // Nobody waits for these.
    play.upstream(r#"{"jsonrpc":"2.0","id":99,"result":NaN}"#);
    play.upstream(r#"{"jsonrpc":"2.0","id":9"#);
    play.upstream("Listening on {\"id\":7}");
    assert_eq!(play.app_heard(), [""; 0]);
}

#[test]
fn rule_11_an_answer_with_numbers_that_json_does_not_have_passes_byte_for_byte() {
    let mut play = Play::modern();
    for result in [
        r#"{"a":NaN}"#,
        r#"{"a":[Infinity, -Infinity,NaN],"b":"\"NaN"}"#,
        "NaN",
    ] {
        play.app(&request("7", "tools/call"));
        let line = format!(r#"{{"jsonrpc": "2.0","id":7,"result":{result}}}"#);
        play.upstream(&line);
        assert_eq!(play.app_heard(), [line]);
        assert!(play.session.is_idle());
    }
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":NaN}}"#;
    play.upstream(notice);
    assert_eq!(play.app_heard(), [notice]);
}

#[test]
fn an_answer_with_two_ids_is_an_error_for_all_who_may_be_meant() {
    let mut play = Play::modern();
    let answer = |one: &str, other: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{one},"result":{{}},"id":{other}}}"#)
    };
    for (one, other, answered) in [
        ("7", "7", &["7"][..]),
        ("7", r#""7""#, &["7"]),
        ("7", "99", &["7"]),
        ("7", "8", &["7", "8"]),
        ("true", "7", &["7"]),
    ] {
        for id in answered {
            play.app(&request(id, "tools/call"));
        }
        play.upstream(&answer(one, other));
        let heard = play.app_heard();
        let heard: Vec<_> = heard.iter().map(|line| error(line)).collect();
        let expected = answered.iter().map(|id| ((*id).to_owned(), -32603));
        assert_eq!(heard, expected.collect::<Vec<_>>(), "{one} {other}");
        assert!(play.session.is_idle());
    }
    // The other way round.
    play.upstream(&request("5", "sampling/createMessage"));
    play.app_heard();
    play.app(&answer("5", "5"));
    assert_eq!(
        error(play.upstream_heard().last().unwrap()),
        ("5".into(), -32603)
    );
    assert!(play.session.is_quiet());
}

#[test]
fn a_batch_of_too_many_messages_is_one_error_and_its_answers_are_errors() {
    let mut play = Play::modern();
    let batch = |member: &str, count: usize| format!("[{}]", vec![member; count].join(","));
    let ping = notice("x");
    play.app(&batch(&ping, BATCH_LIMIT));
    assert_eq!(play.upstream_heard().len(), 1);
    for member in [&ping, "1", r#"{"id":1}"#] {
        play.app(&batch(member, BATCH_LIMIT + 1));
        let heard = play.app_heard();
        assert_eq!(heard.len(), 1, "{member}");
        assert_eq!(error(&heard[0]), ("null".into(), -32600));
    }
    assert_eq!(play.upstream_heard(), [""; 0]);

    for id in ["7", "8", "9"] {
        play.app(&request(id, "tools/call"));
    }
    play.upstream_heard();
    let many = batch(&ping, BATCH_LIMIT);
    let answers = [result("7"), result("99"), result("8")].join(",");
    play.upstream(&format!("[{},{answers}]", &many[1..many.len() - 1]));
    let told = play.app_heard();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].matches("malformed_answer").count(), 2, "{told:?}");
    assert_eq!(error(&play.upstream_heard()[0]), ("null".into(), -32600));
    // Also of one that is malformed otherwise.
    play.upstream(&format!("[{},7]", result("9")));
    assert_eq!(play.app_heard()[0].matches("malformed_answer").count(), 1);
    assert!(play.session.is_idle());

    let (one, other) = (result("7"), result("8"));
    for broken in [
        format!(r#"[{one},{{"jsonrpc":"2.0","id":8,"result":NaN}}]"#),
        format!("[{one},{other}"),
        format!(r#"[{one},{{"jsonrpc":"2.0","id":8,"result":"cut o"#),
        format!("[[{one}],{other}]"),
    ] {
        play.app(&request("7", "tools/call"));
        play.app(&request("8", "tools/call"));
        play.upstream(&broken);
        let told = play.app_heard();
        assert_eq!(told.len(), 1, "{broken}");
        assert_eq!(told[0].matches("malformed_answer").count(), 2, "{told:?}");
        assert!(play.session.is_idle());
    }
}

#[test]
fn a_malformed_request_of_the_server_is_refused_and_a_malformed_answer_of_the_app_too() {
    let mut play = Play::modern();
    play.upstream(r#"{"jsonrpc":"2.0","id":4,"method":"sampling/createMessage","params":7}"#);
    assert_eq!(error(&play.upstream_heard()[0]), ("4".into(), -32600));

    play.upstream(&request("5", "sampling/createMessage"));
    play.app_heard();
    play.app(r#"{"jsonrpc":"2.0","id":5,"result":NaN}"#);
    assert_eq!(error(&play.upstream_heard()[0]), ("5".into(), -32603));
    assert_eq!(play.app_heard(), [""; 0]);
    assert!(play.session.is_quiet());
}

#[test]
fn a_malformed_request_of_the_app_gets_an_error() {
    let mut play = Play::modern();
    let call = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#);
    for (line, id, code) in [
        (call("true"), "null", -32600),
        (call("[]"), "null", -32600),
        (call("{}"), "null", -32600),
        (call("7,\"id\":7"), "null", -32600),
        ("[]".to_owned(), "null", -32600),
        ("[1,2,3]".to_owned(), "null", -32600),
        (format!("\u{feff}{}", call("7")), "7", -32700),
        (call("7").replace("\"x\"", "\"\u{1}\""), "7", -32700),
        (call("7").replace("\"x\"", "7"), "7", -32600),
        (call("7").replace("2.0", "1.0"), "7", -32600),
        (format!("[{},1]", call("7")), "7", -32600),
        (
            r#"{"jsonrpc":"2.0","method":"x","id":7,"params":{"#.to_owned(),
            "7",
            -32700,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"x","params":{"#.to_owned(),
            "",
            0,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"x","params":"bad"}"#.to_owned(),
            "",
            0,
        ),
    ] {
        play.app(&line);
        let heard = play.app_heard();
        let expected: &[_] = match code {
            0 => &[],
            _ => &[(id.to_owned(), code)],
        };
        let first: Vec<_> = heard.iter().take(1).map(|line| error(line)).collect();
        assert_eq!(first, expected, "{line}");
    }
    assert_eq!(play.upstream_heard(), [""; 0]);
    let not_utf8 = b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"\xff\"}";
    assert_eq!(play.session.handle_app_line(not_utf8), Verdict::Drop);
    let answer = play.session.poll_to_app().expect("an answer");
    assert_eq!(
        error(&String::from_utf8(answer).unwrap()),
        ("7".into(), -32700)
    );

    // An id that is taken is another request's.
    play.app(&call("7"));
    play.app(&call("7").replace("2.0", "1.0"));
    assert_eq!(error(&play.app_heard()[0]), ("null".into(), -32600));
    play.upstream(&result("7"));
    assert_eq!(play.app_heard(), [result("7")]);
}

#[test]
fn a_request_with_other_bytes_before_it_gets_an_error() {
    let mut play = Play::modern();
    let call = request("7", "tools/call");
    let batch = format!("[{call}]");
    for before in [
        "\u{a0}", "\u{feff}", "\u{200b}", "\u{c}", "x", "hello ", "}", "\"a\"", "!",
    ] {
        for line in [format!("{before}{call}"), format!("{before}{batch}")] {
            play.app(&line);
            let heard = play.app_heard();
            assert_eq!(heard.len(), 1, "{line}");
            assert_eq!(error(&heard[0]), ("7".into(), -32700), "{line}");
        }
        play.app(&format!("{before}{}", notice("x")));
        assert_eq!(play.app_heard(), [""; 0]);
    }
    for (line, code) in [
        ("hello", -32700),
        ("7", -32600),
        ("\"{\"", -32600),
        ("x{", -32700),
    ] {
        play.app(line);
        assert_eq!(error(&play.app_heard()[0]), ("null".into(), code), "{line}");
    }
    for blank in ["", " \t", "\r"] {
        play.app(blank);
        assert_eq!(play.app_heard(), [""; 0]);
    }
    assert_eq!(play.upstream_heard(), [""; 0]);

    // An id that is taken is another request's.
    play.app(&call);
    play.app(&format!("x{call}"));
    assert_eq!(error(&play.app_heard()[0]), ("null".into(), -32700));
    play.upstream(&result("7"));
    assert_eq!(play.app_heard(), [result("7")]);
    play.upstream_heard();

    // What the server waits for is no answer to it.
    play.upstream(&request("5", "sampling/createMessage"));
    play.app_heard();
    play.app(&format!("x{}", result("5")));
    assert_eq!(error(&play.upstream_heard()[0]), ("5".into(), -32603));
    assert_eq!(play.app_heard(), [""; 0]);
    assert!(play.session.is_quiet());
}

#[test]
fn integers_that_no_double_holds_pass_to_the_byte() {
    let mut play = Play::modern();
    for id in [
        "9007199254740992",
        "9007199254740993",
        "-9223372036854775808",
        "123456789012345678901234567890",
    ] {
        play.app(&request(id, "tools/call"));
        assert_eq!(play.upstream_heard(), [request(id, "tools/call")]);
        play.upstream(&result(id));
        assert_eq!(play.app_heard(), [result(id)]);
        play.upstream(&request(id, "sampling/createMessage"));
        assert_eq!(play.app_heard(), [request(id, "sampling/createMessage")]);
        play.app(&result(id));
        assert_eq!(play.upstream_heard(), [result(id)]);
    }
    // A server that reads it as a double answers with the nearest one.
    play.app(&request("9007199254740993", "tools/call"));
    play.upstream(&result("9007199254740992"));
    assert_eq!(play.app_heard(), [result("9007199254740993")]);
    assert!(play.session.is_idle());
    assert_eq!(play.notes(), []);
}
