//! While an upstream is there: what passes, what is refused, what is dropped.

use kennel_core::message::{Key, Malformed};
use kennel_core::note::LineNote;
use kennel_core::session::{Note, Side};

use crate::play::{INITIALIZE, INITIALIZED, Play, WELCOME, cancel, error, notice, request, result};

#[test]
fn rule_11_lines_pass_as_they_are_both_ways() {
    let mut play = Play::legacy();
    let call = "{\"params\" : {\"a\":1.0,\"a\":1e400},\"method\":\"tools\\/call\" ,\"id\":\"\\u0031\",\"jsonrpc\":\"2.0\"}\r";
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"1","progress":0.10}}"#;
    let answer = r#"{"result":{"big":12345678901234567890},"jsonrpc":"2.0","id":"1" }"#;

    play.app(call);
    play.upstream(progress);
    play.upstream(answer);
    play.app(progress);

    assert_eq!(play.upstream_heard(), [call, progress]);
    assert_eq!(play.app_heard(), [progress, answer]);
    assert_eq!(play.notes(), []);
}

#[test]
fn an_answer_is_known_by_what_its_id_means_and_not_by_its_spelling() {
    let mut play = Play::modern();
    play.app(&request(r#""a\/\u00e9""#, "x"));
    play.app(&request("1", "x"));
    play.app(&request(r#""1""#, "x"));

    for id in [r#""a/é""#, r#""1""#, "1"] {
        play.upstream(&result(id));
        assert_eq!(play.app_heard(), [result(id)]);
    }
    assert!(play.session.is_idle());
}

#[test]
fn rule_4_a_second_answer_and_an_answer_to_nothing_are_dropped() {
    let mut play = Play::legacy();
    play.app(&request("1", "x"));
    play.upstream(&result("1"));
    assert_eq!(play.app_heard(), [result("1")]);

    play.upstream(&result("1"));
    play.upstream(&result(r#""1""#));
    play.upstream(WELCOME);
    play.upstream(&result("null"));

    assert_eq!(play.app_heard(), [""; 0]);
    let unknown = |key| Note::Line(LineNote::UnknownAnswer(Side::Upstream, key));
    assert_eq!(
        play.notes(),
        [
            unknown(Some(Key::Number(1))),
            unknown(Some(Key::Text("1".into()))),
            unknown(Some(Key::Number(0))),
            unknown(Some(Key::Odd("null".into()))),
        ]
    );
}

#[test]
fn rule_11_an_error_without_an_id_passes_unchanged_and_answers_no_request() {
    for in_flight in [0, 1] {
        let mut play = Play::legacy();
        if in_flight > 0 {
            play.app(&request("1", "x"));
        }
        for error in [
            r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"?"}}"#,
            r#"{"jsonrpc":"2.0", "id" : null,"error":{"code":-32700,"message":"?"}}"#,
            r#"[{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"?"}}]"#,
        ] {
            play.upstream(error);
            assert_eq!(play.app_heard(), [error]);
            assert_eq!(play.session.in_flight(), in_flight);
        }
        if in_flight > 0 {
            play.upstream(&result("1"));
            assert_eq!(play.app_heard(), [result("1")]);
        }
        assert_eq!(play.notes(), []);
    }
}

#[test]
fn ids_that_some_sdk_drops_are_refused() {
    let mut play = Play::modern();
    for id in ["null", "1.5", "1e3"] {
        play.app(&request(id, "x"));
        let [answer] = &play.app_heard()[..] else {
            panic!("one answer")
        };
        assert!(answer.contains(&format!("\"id\":{id},")), "{answer}");
        assert!(answer.contains("-32600"), "{answer}");
    }
    assert_eq!(play.upstream_heard(), [""; 0]);
    assert_eq!(play.session.in_flight(), 0);
}

#[test]
fn an_id_in_flight_is_refused_a_second_time_and_free_when_answered() {
    let mut play = Play::modern();
    play.app(&request("7", "first"));
    play.app(&request("7", "second"));
    assert_eq!(play.upstream_heard(), [request("7", "first")]);
    assert_eq!(error(&play.app_heard()[0]), ("7".into(), -32600));
    let note = Note::Line(LineNote::DuplicateId(Side::App, Key::Number(7)));
    assert_eq!(play.notes(), [note]);

    play.upstream(&result("7"));
    play.app(&request("7", "third"));
    assert_eq!(play.upstream_heard(), [request("7", "third")]);
}

#[test]
fn a_second_initialize_is_refused_unless_the_first_one_failed() {
    let mut play = Play::legacy();
    let second = INITIALIZE.replace("\"id\":0", "\"id\":1");
    play.app(&second);
    assert_eq!(play.upstream_heard(), [""; 0]);
    assert_eq!(error(&play.app_heard()[0]), ("1".into(), -32600));
    assert_eq!(play.notes(), [Note::SecondInitialize]);

    let mut play = Play::modern();
    play.app(INITIALIZE);
    let sorry = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}"#;
    play.upstream(sorry);
    play.app(&second);
    assert_eq!(play.app_heard(), [sorry]);
    assert_eq!(play.upstream_heard(), [INITIALIZE, &second]);
}

#[test]
fn bad_lines_reach_neither_side() {
    let mut play = Play::legacy();
    for bad in ["", "hello", "  \t", "!ping", "{", "{}", "[]"] {
        play.app(bad);
        play.upstream(bad);
        let notes = play.notes();
        assert!(
            matches!(
                notes[..],
                [
                    Note::Line(LineNote::Malformed(Side::App, _)),
                    Note::Line(LineNote::Malformed(Side::Upstream, _))
                ]
            ),
            "{bad}: {notes:?}"
        );
    }
    play.app("!hello {}");
    let reserved = Note::Line(LineNote::Malformed(Side::App, Malformed::Reserved));
    assert_eq!(play.notes(), [reserved]);
    assert_eq!(play.upstream_heard(), [""; 0]);
    // Of all but the blank ones, the app is told.
    let told: Vec<_> = play.app_heard().iter().map(|line| error(line)).collect();
    let expected = [
        ("null", -32700),
        ("null", -32700),
        ("null", -32700),
        ("null", -32600),
        ("null", -32600),
        ("null", -32700),
    ];
    assert_eq!(told, expected.map(|(id, code)| (id.to_owned(), code)));
}

#[test]
fn a_cancelled_request_is_not_waited_for_but_a_late_answer_passes_once() {
    let mut play = Play::modern();
    play.app(&request("1", "slow"));
    assert_eq!(play.session.in_flight(), 1);
    play.app(&cancel("1"));
    assert_eq!(play.upstream_heard(), [request("1", "slow"), cancel("1")]);
    assert!(play.session.is_idle());

    // Its id stays taken until then: the answer must not pass for another's (rule 4).
    play.app(&request("1", "other"));
    assert_eq!(error(&play.app_heard()[0]), ("1".into(), -32600));

    play.upstream(&result("1"));
    play.upstream(&result("1"));
    assert_eq!(play.app_heard(), [result("1")]);
}

#[test]
fn a_cancellation_of_nothing_or_of_initialize_goes_nowhere() {
    let mut play = Play::modern();
    play.app(INITIALIZE);
    play.app(&cancel("0"));
    play.app(&cancel("5"));
    assert_eq!(play.upstream_heard(), [INITIALIZE]);
    let unknown = Note::Line(LineNote::UnknownCancel(Side::App, Key::Number(5)));
    assert_eq!(play.notes(), [Note::InitializeCancelled, unknown]);

    // One that names no request is a notification like others.
    let of_a_task = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}"#;
    play.app(of_a_task);
    play.upstream(of_a_task);
    assert_eq!(play.upstream_heard(), [of_a_task]);
    assert_eq!(play.app_heard(), [of_a_task]);
}

#[test]
fn a_modern_server_may_end_a_request_of_the_app_by_cancelling_it() {
    let mut play = Play::modern();
    play.app(&request("4", "subscriptions/listen"));
    play.upstream(&cancel("4"));
    assert_eq!(play.app_heard(), [cancel("4")]);
    assert!(play.session.is_idle());
    play.upstream(&result("4"));
    assert_eq!(play.app_heard(), [result("4")]);
}

#[test]
fn a_batch_passes_whole_and_each_of_its_requests_is_answered() {
    let mut play = Play::modern();
    let [one, two, three] = ["1", "2", "3"].map(|id| request(id, "x"));
    let batch = format!(" [{one} , {},{two},\t{three}]", notice("n"));
    play.app(&batch);
    assert_eq!(play.upstream_heard(), [batch]);
    assert_eq!(play.session.in_flight(), 3);

    let answers = format!("[ {},{} ]", result("3"), result("1"));
    play.upstream(&answers);
    play.upstream(&result("2"));
    assert_eq!(play.app_heard(), [answers, result("2")]);
    assert!(play.session.is_idle());
}

#[test]
fn members_of_a_batch_that_are_no_good_are_left_out() {
    let mut play = Play::modern();
    let [one, two] = ["1", "2"].map(|id| request(id, "x"));
    play.app(&format!("[{one},{two},{one},{}]", request("null", "x")));
    assert_eq!(play.upstream_heard(), [format!("[{one},{two}]")]);
    let refused: Vec<_> = play.app_heard().iter().map(|line| error(line)).collect();
    assert_eq!(refused, [("1".into(), -32600), ("null".into(), -32600)]);

    play.upstream(&format!(
        "[{},{},{}]",
        result("9"),
        result("1"),
        result("1")
    ));
    play.upstream(&format!("[{}]", result("1")));
    play.upstream(&format!("[{}]", result("2")));
    assert_eq!(
        play.app_heard(),
        [format!("[{}]", result("1")), format!("[{}]", result("2"))]
    );
}

#[test]
fn after_the_end_of_input_the_session_is_over_when_all_is_answered() {
    let mut play = Play::detached();
    play.app(INITIALIZE);
    play.app(INITIALIZED);
    play.app(&request("1", "slow"));
    play.app(&request("2", "fast"));
    play.session.handle_app_eof();
    assert!(play.session.app_is_done() && !play.session.is_idle());
    assert!(!play.session.all_is_sent());

    play.attach();
    assert_eq!(play.upstream_heard(), [INITIALIZE]);
    assert!(!play.session.all_is_sent(), "initialized is owed still");
    play.upstream(WELCOME);
    assert_eq!(
        play.upstream_heard(),
        [INITIALIZED, &request("1", "slow"), &request("2", "fast")]
    );
    assert!(play.session.all_is_sent() && !play.session.is_idle());

    play.upstream(&result("2"));
    assert_eq!(play.session.in_flight(), 1);
    play.upstream(&result("1"));
    assert!(play.session.is_idle());
    assert_eq!(play.app_heard(), [WELCOME, &result("2"), &result("1")]);
}

#[test]
fn rule_4_what_was_meant_as_a_request_is_refused_under_its_id_unless_that_is_taken() {
    let mut play = Play::legacy();
    for line in [
        r#"{"jsonrpc":"2.0","id":5,"method":"echo","params":1}"#,
        r#"{"id":5,"method":"echo"}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":7}"#,
    ] {
        play.app(line);
        let heard = play.app_heard();
        assert_eq!(heard.len(), 1, "{line}");
        assert!(
            heard[0].contains(r#""id":5,"error":{"code":-32600"#),
            "{heard:?}"
        );
    }
    play.app(&request("5", "slow"));
    for line in [
        r#"{"jsonrpc":"2.0","id":5,"method":"echo","params":1}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"method":"echo","params":1}"#,
    ] {
        play.app(line);
        assert_eq!(error(&play.app_heard()[0]), ("null".into(), -32600));
    }
    play.app(r#"{"jsonrpc":"2.0","method":"echo","params":1}"#);
    assert_eq!(play.app_heard(), [""; 0], "nobody waits");
}
