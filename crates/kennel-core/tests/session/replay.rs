//! What is asked again of the next upstream, and what is answered instead.

use kennel_core::message::Key;
use kennel_core::session::{Note, REPLAY_LIMIT, Replay, Unsent};

use crate::play::{INITIALIZE, Play, cancel, lost, pong, request, result, unavailable};

/// What does no harm a second time, whoever says so.
const HARMLESS: [&str; 11] = [
    "server/discover",
    "tools/list",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "completion/complete",
    "logging/setLevel",
];

fn call(id: &str, tool: &str) -> String {
    let params = format!(r#"{{"name":"{tool}","arguments":{{}}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)
}

fn listed(id: &str, tools: &[(&str, &str)]) -> String {
    let tools: Vec<String> = tools
        .iter()
        .map(|(name, hints)| format!(r#"{{"name":"{name}","annotations":{{{hints}}}}}"#))
        .collect();
    let tools = tools.join(",");
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{tools}]}}}}"#)
}

fn told(ids: &[Key]) -> Unsent<'_> {
    Unsent::Reported {
        ids,
        received: None,
    }
}

/// Loses the upstream and gives what the next one hears.
fn again(play: &mut Play) -> Vec<String> {
    play.upstream_heard();
    play.lose();
    play.attach();
    play.upstream_heard()
}

#[test]
fn what_does_no_harm_is_asked_again_as_it_was_and_answered_once() {
    let mut play = Play::modern();
    let requests: Vec<String> = (0..)
        .zip(HARMLESS)
        .map(|(id, method)| request(&id.to_string(), method))
        .collect();
    for line in &requests {
        play.app(line);
    }
    play.upstream_heard();
    play.lose();
    play.app(&request("99", "x"));
    assert_eq!(play.app_heard(), [""; 0]);
    assert_eq!(
        play.notes(),
        [Note::Lost {
            again: 11,
            refused: 0
        }]
    );
    assert_eq!(play.session.in_flight(), 12);

    play.attach();
    let mut expected = requests;
    expected.push(request("99", "x"));
    assert_eq!(play.upstream_heard(), expected, "and then what waited");
    play.upstream(&result("3"));
    play.upstream(&result("3"));
    assert_eq!(play.app_heard(), [result("3")]);
}

#[test]
fn rule_5_a_call_is_made_again_only_if_the_server_said_that_it_may() {
    let mut play = Play::modern();
    let tools = [
        ("look", r#""readOnlyHint":true"#),
        ("put", r#""readOnlyHint":false,"idempotentHint":true"#),
        ("pay", r#""readOnlyHint":false,"destructiveHint":false"#),
        ("odd", r#""readOnlyHint":"true""#),
        ("two", r#""readOnlyHint":true"#),
        ("two", ""),
    ];
    let calls = ["look", "put", "pay", "odd", "two", "new"];
    let calls: Vec<String> = (1..)
        .zip(calls)
        .map(|(id, tool)| call(&id.to_string(), tool))
        .collect();
    for line in &calls {
        play.app(line);
    }
    assert_eq!(again(&mut play), [""; 0], "nobody has seen the list");
    assert_eq!(play.app_heard().len(), 6);

    play.app(&request("0", "tools/list"));
    play.upstream(&listed("0", &tools));
    play.app_heard();
    for line in &calls {
        play.app(line);
    }
    assert_eq!(again(&mut play), calls[..2]);
    let refused = [3, 4, 5, 6].map(|id| lost(&id.to_string(), "tools/call"));
    assert_eq!(play.app_heard(), refused);
}

#[test]
fn what_is_known_of_tools_grows_with_the_pages_and_goes_with_the_list() {
    let mut play = Play::modern();
    let page = |id: &str, cursor: &str| {
        let params = format!(r#"{{"cursor":"{cursor}"}}"#);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{params}}}"#)
    };
    let safe = r#""readOnlyHint":true"#;
    play.app(&request("0", "tools/list"));
    play.upstream(&listed("0", &[("a", safe)]));
    play.app(&page("1", "2"));
    play.upstream(&listed("1", &[("b", safe)]));
    for (id, tool) in [("2", "a"), ("3", "b")] {
        play.app(&call(id, tool));
    }
    assert_eq!(again(&mut play), [call("2", "a"), call("3", "b")]);

    // A new first page is a new list.
    play.app(&request("0", "tools/list"));
    play.upstream(&listed("0", &[("b", safe)]));
    assert_eq!(again(&mut play), [call("3", "b")]);

    // And a changed list is none.
    play.app(&call("4", "b"));
    play.upstream(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    play.app_heard();
    assert_eq!(again(&mut play), [""; 0]);
    assert_eq!(play.app_heard()[1..], [lost("4", "tools/call")]);
}

#[test]
fn the_next_step_of_an_exchange_is_not_taken_again() {
    let mut play = Play::modern();
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p","requestState":"s"}}"#;
    play.app(line);
    assert_eq!(again(&mut play), [""; 0]);
    assert_eq!(play.app_heard(), [lost("1", "prompts/get")]);
}

#[test]
fn a_server_that_was_greeted_is_not_asked_what_ends_some_of_them() {
    let mut play = Play::modern();
    play.app(&request("1", "server/discover"));
    play.app(INITIALIZE);
    play.upstream_heard();
    play.lose();
    play.attach();
    assert_eq!(play.upstream_heard(), [INITIALIZE]);
    assert_eq!(play.app_heard(), [lost("1", "server/discover")]);
}

#[test]
fn all_asks_everything_again_and_none_nothing() {
    let lines = [
        request("1", "resources/read"),
        call("2", "pay"),
        request("3", "x"),
    ];
    for (replay, expected) in [(Replay::All, 3), (Replay::None, 0)] {
        let mut play = Play::replaying(replay);
        for line in &lines {
            play.app(line);
        }
        play.app(&cancel("3"));
        play.app(&format!("[{}]", request("4", "initialize")));
        play.app(&request("5", "subscriptions/listen"));
        assert_eq!(play.session.in_flight(), 4);
        let mut heard = again(&mut play);
        assert_eq!(
            heard.pop(),
            Some(request("5", "subscriptions/listen")),
            "state"
        );
        let expected: Vec<&String> = lines.iter().take(expected.min(2)).collect();
        assert_eq!(heard.iter().collect::<Vec<_>>(), expected, "{replay}");
        assert_eq!(play.app_heard().len(), 3 - expected.len(), "{replay}");
    }
}

#[test]
fn what_never_reached_the_server_is_sent_whatever_it_is() {
    for replay in Replay::EACH {
        let mut play = Play::replaying(replay);
        for id in ["1", "\"1\"", "3"] {
            play.app(&call(id, "pay"));
        }
        play.app(&cancel("3"));
        play.upstream_heard();
        let unsent = [Key::Text("1".into()), Key::Number(3), Key::Number(7)];
        play.lose_knowing(told(&unsent));
        play.attach();
        let heard = play.upstream_heard();
        let refused = play.app_heard();
        match replay {
            Replay::All => assert_eq!(heard, [call("1", "pay"), call("\"1\"", "pay")]),
            Replay::Safe | Replay::None => {
                assert_eq!(heard, [call("\"1\"", "pay")]);
                assert_eq!(refused, [lost("1", "tools/call")]);
            }
        }
    }
}

#[test]
fn a_line_counts_as_heard_once_only_its_newline_is_missing() {
    let line = call("2", "pay");
    let length = line.len() + 1;
    for (unwritten, again) in [(1, false), (2, true), (length, true)] {
        let mut play = Play::modern();
        play.app(&call("1", "pay"));
        play.app(&line);
        play.upstream_heard();
        play.lose_knowing(Unsent::LastBytes(unwritten));
        play.attach();
        let expected: &[String] = match again {
            true => std::slice::from_ref(&line),
            false => &[],
        };
        assert_eq!(play.upstream_heard(), expected, "{unwritten} of {length}");
        assert_eq!(play.app_heard()[0], lost("1", "tools/call"));
    }
}

#[test]
fn what_a_daemon_did_not_take_any_more_was_never_asked() {
    let lines: Vec<String> = (1..4).map(|id| call(&id.to_string(), "pay")).collect();
    for (taken, short_of) in [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (2, 2)] {
        let mut play = Play::modern();
        for line in &lines {
            play.app(line);
        }
        play.upstream_heard();
        let bytes: usize = lines[..taken].iter().map(|line| line.len() + 1).sum();
        let heard = Some((bytes - short_of) as u64);
        play.lose_knowing(Unsent::Reported {
            ids: &[],
            received: heard,
        });
        play.attach();
        let again = taken - usize::from(short_of > 1);
        assert_eq!(play.upstream_heard(), lines[again..], "{taken} {short_of}");
        assert_eq!(play.app_heard().len(), again);
        // The next one counts anew.
        play.lose_knowing(Unsent::Reported {
            ids: &[],
            received: Some(0),
        });
        play.attach();
        assert_eq!(play.upstream_heard(), lines[again..]);
    }
}

#[test]
fn what_was_unsent_twice_and_what_was_queued_stay_in_order() {
    let mut play = Play::modern();
    let lines: Vec<String> = (1..5).map(|id| call(&id.to_string(), "pay")).collect();
    for line in &lines[..3] {
        play.app(line);
    }
    let all: Vec<Key> = (1..5).map(Key::Number).collect();
    play.lose_knowing(told(&all));
    play.app(&lines[3]);
    // The next one takes a single line.
    play.session.handle_upstream_attached();
    assert_eq!(
        play.session.poll_to_upstream(),
        Some(lines[0].clone().into())
    );
    play.lose_knowing(told(&all));
    play.upstream_heard();
    play.attach();
    assert_eq!(play.upstream_heard(), lines);
    assert_eq!(play.app_heard(), [""; 0]);
}

#[test]
fn rule_4_what_is_too_long_to_be_kept_is_answered_with_an_error() {
    let long = request("1", &"x".repeat(REPLAY_LIMIT));
    let mut play = Play::replaying(Replay::All);
    play.app(&long);
    play.app(&call("2", "pay"));
    assert_eq!(again(&mut play), [call("2", "pay")], "the others are");
    let error = &play.app_heard()[0];
    assert!(
        error.contains(r#""outcome":"unknown","replayed":false"#),
        "{error}"
    );

    // All of them together have that much room, and it is given back.
    let part = |id: &str| request(id, &"x".repeat(REPLAY_LIMIT / 2 - 100));
    for id in ["3", "4", "5"] {
        play.app(&part(id));
    }
    play.upstream(&result("2"));
    play.upstream(&result("3"));
    play.app(&part("6"));
    play.app_heard();
    assert_eq!(again(&mut play), [part("4"), part("6")]);
    assert_eq!(play.app_heard().len(), 1);

    let mut play = Play::modern();
    play.app(&long);
    play.lose_knowing(told(&[Key::Number(1)]));
    let error = &play.app_heard()[0];
    assert!(
        error.contains(r#""outcome":"unsent","replayed":false"#),
        "{error}"
    );
}

#[test]
fn a_request_that_is_there_whenever_a_server_dies_is_not_asked_for_ever() {
    let mut play = Play::modern();
    let read = request("1", "resources/read");
    let listen = request("2", "subscriptions/listen");
    play.app(&read);
    play.app(&listen);
    for _ in 0..2 {
        assert_eq!(again(&mut play), [&*read, &*listen]);
    }
    assert_eq!(
        again(&mut play),
        [&*listen],
        "a subscription is not to blame"
    );
    let error = play.app_heard().remove(0);
    assert!(
        error.contains(r#""outcome":"unknown","replayed":true"#),
        "{error}"
    );
}

#[test]
fn a_ping_that_was_lost_is_answered_by_the_session() {
    let mut play = Play::replaying(Replay::None);
    play.app(&request("1", "ping"));
    play.lose();
    assert_eq!(play.app_heard(), [pong("1")]);
    assert!(play.session.is_idle());
}

#[test]
fn lesson_37_what_is_cancelled_before_it_is_asked_again_is_not() {
    let mut play = Play::modern();
    for id in ["1", "2"] {
        play.app(&request(id, "resources/read"));
    }
    play.upstream_heard();
    play.lose();
    play.app(&cancel("1"));
    assert_eq!(play.session.in_flight(), 1);
    play.attach();
    assert_eq!(play.upstream_heard(), [request("2", "resources/read")]);
    assert_eq!(play.app_heard(), [""; 0]);
}

#[test]
fn rule_5_of_what_waits_to_be_asked_again_the_outcome_is_unknown_when_nobody_can_be_asked() {
    let mut play = Play::modern();
    play.app(&request("1", "resources/read"));
    play.lose();
    play.app(&request("2", "resources/read"));
    play.give_up();
    let unknown = unavailable("1").replace("unsent", "unknown");
    assert_eq!(play.app_heard(), [unknown, unavailable("2")]);
    assert!(play.session.is_idle());
}

#[test]
fn of_a_lost_batch_the_harmless_ones_are_asked_again_each_by_itself() {
    let mut play = Play::modern();
    let [one, two] = ["1", "2"].map(|id| request(id, "resources/read"));
    play.app(&format!("[{one}, {},{two}]", request("3", "x")));
    assert_eq!(again(&mut play), [one, two]);
    assert_eq!(play.app_heard(), [lost("3", "x")]);
}

#[test]
fn what_waits_to_be_asked_again_does_not_keep_the_app_from_being_heard() {
    let mut play = Play::replaying(Replay::All);
    play.app(&request("1", &"x".repeat(REPLAY_LIMIT - 100)));
    play.lose();
    play.app(&request("2", "x"));
    assert!(!play.session.queue_is_full());
}
