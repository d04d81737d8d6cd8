//! Which lines are messages, and of what kind.

use kennel_core::message::{Malformed, Message, Outcome, splice_id};

fn parsed(line: &str) -> Message<'_> {
    Message::parse(line.as_bytes()).unwrap_or_else(|why| panic!("{line}: {why}"))
}

fn refused(line: &[u8]) -> Malformed {
    match Message::parse(line) {
        Err(why) => why,
        Ok(message) => panic!("{} is {message:?}", String::from_utf8_lossy(line)),
    }
}

#[test]
fn a_request_has_an_id_and_a_method() {
    let line = r#" {"params" : {"a":1} ,"method":"tools/call","id":"7","jsonrpc":"2.0"} "#;
    let Message::Request(request) = parsed(line) else {
        panic!("a request")
    };
    assert_eq!(request.id.raw(), br#""7""#);
    assert_eq!(&line[request.id.part().range()], r#""7""#);
    assert_eq!(request.method.name(), "tools/call");
    assert_eq!(&line[request.method.part().range()], r#""tools/call""#);
    let params = request.params.expect("params");
    assert_eq!(params.bytes(), br#"{"a":1}"#);
    assert_eq!(&line[params.range()], r#"{"a":1}"#);
}

#[test]
fn a_notification_has_a_method_and_no_id() {
    for line in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":null}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":[]}"#,
    ] {
        let Message::Notification(notification) = parsed(line) else {
            panic!("{line}")
        };
        assert!(notification.method.is("notifications/initialized"));
    }
}

#[test]
fn a_response_has_a_result_or_an_error() {
    for (line, expected) in [
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{"x":[]}}"#,
            r#"{"x":[]}"#,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"result":null}"#, "null"),
        // Some servers write both, one of them empty.
        (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":null}"#, "{}"),
        (
            r#"{"jsonrpc":"2.0","id":1,"error":null,"result":null}"#,
            "null",
        ),
    ] {
        let Message::Response(response) = parsed(line) else {
            panic!("{line}")
        };
        let Outcome::Result(result) = response.outcome else {
            panic!("{line}")
        };
        assert_eq!(result.bytes(), expected.as_bytes());
        assert_eq!(&line[result.range()], expected);
    }
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":""}}"#,
    ] {
        let Message::Response(response) = parsed(line) else {
            panic!("{line}")
        };
        assert!(matches!(response.outcome, Outcome::Error(_)), "{line}");
    }
}

#[test]
fn a_batch_has_members_with_places_in_the_whole_line() {
    let line = r#" [ {"jsonrpc":"2.0","id":1,"method":"a"}, {"jsonrpc":"2.0","method":"b"} ,{"jsonrpc":"2.0","id":"x","result":0} ]"#;
    let Message::Batch(batch) = parsed(line) else {
        panic!("a batch")
    };
    assert_eq!(batch.members.len(), 3);
    for member in &batch.members {
        assert!(line[member.whole.range()].starts_with("{\"jsonrpc\""));
        assert_eq!(line[member.whole.range()].as_bytes(), member.whole.bytes());
    }
    let last = batch.members[2].message.id().expect("an id");
    assert_eq!(&line[last.part().range()], r#""x""#);
}

#[test]
fn keys_and_names_are_known_however_they_are_spelled() {
    let line = r#"{"\u006asonrpc":"\u0032.0","\u0069d":1,"method":"tools\/call"}"#;
    let Message::Request(request) = parsed(line) else {
        panic!("a request")
    };
    assert!(request.method.is("tools/call"));
    assert_eq!(request.id.raw(), b"1");
    assert_eq!(
        splice_id(line.as_bytes(), &request.id, b"2"),
        br#"{"\u006asonrpc":"\u0032.0","\u0069d":2,"method":"tools\/call"}"#
    );

    let Message::Request(request) = parsed(r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#) else {
        panic!("a request")
    };
    assert_eq!(request.method.name(), r"\ud800");
}

#[test]
fn a_line_may_end_in_a_carriage_return() {
    let line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r";
    let id = parsed(line).id().expect("an id");
    assert_eq!(
        splice_id(line.as_bytes(), &id, b"22"),
        b"{\"jsonrpc\":\"2.0\",\"id\":22,\"method\":\"ping\"}\r"
    );
}

#[test]
fn what_is_not_one_line_of_json_is_no_message() {
    for (line, expected) in [
        (&b""[..], Malformed::NotJson { at: 0 }),
        (b"   ", Malformed::NotJson { at: 3 }),
        (b"{", Malformed::NotJson { at: 1 }),
        (b"hello", Malformed::NotJson { at: 1 }),
        (b"!hello {}", Malformed::Reserved),
        (b"{\"jsonrpc\":\n\"2.0\"}", Malformed::Newline),
        (b"{\"a\":\"\xff\"}", Malformed::NotText { at: 6 }),
        (b"\xef\xbb\xbf{}", Malformed::NotJson { at: 1 }),
        (b"[{},]", Malformed::Shape("its jsonrpc is not \"2.0\"")),
    ] {
        assert_eq!(refused(line), expected, "{}", String::from_utf8_lossy(line));
    }
    // What is wrong may stand in a value nobody looks at.
    for rest in [
        r#""x":01"#,
        r#""x":1."#,
        r#""x":+1"#,
        r#""x":.5"#,
        r#""x":NaN"#,
        r#""x":tru"#,
        r#""x":'a'"#,
        r#""x":"\x""#,
        r#""x":"\u12g4""#,
        "\"x\":\"\t\"",
        "\"x\":\"\0\"",
        r#""x":"a"#,
        r#""x":[1,]"#,
        r#""x":{"a"}"#,
        r#""x":{"a":1,}"#,
        r#""x":{1:1}"#,
        r#""x":[}"#,
        r#""x":1 2"#,
        r#""x""#,
        "",
    ] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a",{rest}}}"#);
        assert!(
            matches!(refused(line.as_bytes()), Malformed::NotJson { .. }),
            "{line}"
        );
    }
    let two = br#"{"jsonrpc":"2.0","id":1,"method":"a"}{"jsonrpc":"2.0","id":1,"method":"a"}"#;
    assert!(matches!(refused(two), Malformed::NotJson { .. }));
}

#[test]
fn what_is_not_json_rpc_is_no_message() {
    for line in [
        "1",
        "null",
        r#""text""#,
        "true",
        "{}",
        "[]",
        "[[]]",
        "[1]",
        r#"{"id":1,"method":"a"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#,
        r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#,
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":true,"method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":[1],"result":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","result":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":null}"#,
        r#"{"jsonrpc":"2.0","result":1}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"a"},1]"#,
        r#"[[{"jsonrpc":"2.0","id":1,"method":"a"}]]"#,
    ] {
        assert!(
            matches!(refused(line.as_bytes()), Malformed::Shape(_)),
            "{line}"
        );
    }
}

#[test]
fn an_envelope_key_that_comes_twice_is_refused_and_any_other_is_not() {
    for key in ["jsonrpc", "id", "method", "params", r"\u0069d"] {
        let value = if key == "params" { "{}" } else { r#""2.0""# };
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":"1","method":"a","params":{{}},"{key}":{value}}}"#);
        let expected = Malformed::Shape("an envelope key occurs twice");
        assert_eq!(refused(line.as_bytes()), expected, "{line}");
    }
    for key in ["result", "error"] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"{key}":{{}},"{key}":{{}}}}"#);
        let expected = Malformed::Shape("an envelope key occurs twice");
        assert_eq!(refused(line.as_bytes()), expected, "{line}");
    }
    parsed(r#"{"jsonrpc":"2.0","id":1,"method":"a","x":1,"x":2,"params":{"id":1,"id":2}}"#);
}

#[test]
fn a_cancellation_names_its_request() {
    for (params, named) in [
        (r#"{"requestId":7,"reason":"r"}"#, Some("7")),
        (r#"{"reason":"r","request\u0049d" : "a" }"#, Some(r#""a""#)),
        (r#"{"reason":"r"}"#, None),
        ("[7]", None),
        ("null", None),
    ] {
        let line =
            format!(r#"{{"jsonrpc":"2.0","params":{params},"method":"notifications/cancelled"}}"#);
        let Message::Notification(notification) = parsed(&line) else {
            panic!("{line}")
        };
        let id = notification.cancelled().expect("well-formed");
        assert_eq!(id.map(|id| &line[id.part().range()]), named, "{line}");
    }
    for params in [r#"{"requestId":7,"requestId":8}"#, r#"{"requestId":{}}"#] {
        let line =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
        let Message::Notification(notification) = parsed(&line) else {
            panic!("{line}")
        };
        assert!(notification.cancelled().is_err(), "{line}");
    }
    let Message::Notification(other) =
        parsed(r#"{"jsonrpc":"2.0","method":"a","params":{"requestId":7}}"#)
    else {
        panic!("a notification")
    };
    assert_eq!(other.cancelled(), Ok(None));
}

#[test]
fn a_million_brackets_need_no_stack() {
    let deep = 1_000_000;
    let nested = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    for key in ["params", "x"] {
        let line = format!(r#"{{"jsonrpc":"2.0","{key}":{nested},"id":1,"method":"a"}}"#);
        assert_eq!(parsed(&line).id().map(|id| id.raw()), Some(&b"1"[..]));
    }
    let objects = format!("{}1{}", r#"{"":"#.repeat(deep), "}".repeat(deep));
    let line = format!(r#"{{"jsonrpc":"2.0","result":{objects},"id":1}}"#);
    assert!(matches!(parsed(&line), Message::Response(_)));

    refused(nested.as_bytes());
    refused("[".repeat(deep).as_bytes());
    refused(r#"{"":"#.repeat(deep).as_bytes());
    let cancel = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"x":{nested},"requestId":1}}}}"#
    );
    let Message::Notification(cancel) = parsed(&cancel) else {
        panic!("a notification")
    };
    assert!(cancel.cancelled().is_ok_and(|id| id.is_some()));
}
