//! What a session stands on, and the next server is told: level, subscriptions, and how far things have come.

use kennel_core::note::LineNote;
use kennel_core::session::{Note, Side};

use crate::play::{
    INITIALIZE, INITIALIZED, Play, WELCOME, cancel, error, lost, notice, request, result,
};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

fn level(id: &str, level: &str) -> String {
    let params = format!(r#"{{"level":"{level}"}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{params}}}"#)
}

fn resource(id: &str, verb: &str, uri: &str) -> String {
    let params = format!(r#"{{"uri":"{uri}"}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{verb}","params":{params}}}"#)
}

fn refused(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32602,"message":"no"}}}}"#)
}

fn own(number: u64) -> String {
    format!(r#""kennel-{number}""#)
}

fn progress(token: &str, progress: &str) -> String {
    let params = format!(r#"{{"progressToken":{token},"progress":{progress}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
}

fn with_token(id: &str, method: &str, token: &str) -> String {
    let params = format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

fn of_subscription(method: &str, id: &str, more: &str) -> String {
    let params = format!(r#"{{"_meta":{{"{SUBSCRIPTION}":{id}}}{more}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}"#)
}

#[test]
fn level_and_subscriptions_are_said_again_between_the_handshake_and_the_rest() {
    let mut play = Play::legacy();
    let done = |play: &mut Play, line: &str, answer: String| {
        play.app(line);
        play.upstream(&answer);
    };
    done(&mut play, &resource("1", "subscribe", "b:1"), result("1"));
    done(&mut play, &level("2", "info"), result("2"));
    done(&mut play, &resource("3", "subscribe", "a:1"), result("3"));
    done(&mut play, &resource("4", "subscribe", "c:1"), result("4"));
    done(&mut play, &level("5", "debug"), result("5"));
    done(&mut play, &resource("6", "unsubscribe", "c:1"), result("6"));
    done(&mut play, &level("7", "loud"), refused("7"));
    done(&mut play, &resource("8", "subscribe", "d:1"), refused("8"));
    play.app(&resource("9", "subscribe", "e:1"));
    play.app(&request("10", "x"));
    play.app_heard();

    let stand = |first: u64| {
        [
            level(&own(first), "debug"),
            resource(&own(first + 1), "subscribe", "b:1"),
            resource(&own(first + 2), "subscribe", "a:1"),
        ]
    };
    let heard = play.next_server();
    assert_eq!(heard[..3], stand(1));
    assert_eq!(heard[3..], [resource("9", "subscribe", "e:1")]);
    assert_eq!(play.app_heard(), [lost("10", "x")]);
    for id in 1..4 {
        play.upstream(&result(&own(id)));
    }
    assert_eq!(play.app_heard(), [""; 0], "the app has heard that before");
    play.upstream(&result("9"));
    assert_eq!(play.app_heard(), [result("9")]);

    let heard = play.next_server();
    assert_eq!(heard[..3], stand(4));
    assert_eq!(heard[3..], [resource(&own(7), "subscribe", "e:1")]);
    play.upstream(&refused(&own(7)));
    assert_eq!(play.app_heard(), [""; 0]);
    assert!(play.notes().contains(&Note::StateRefused));
}

#[test]
fn an_id_of_the_sessions_own_is_never_the_apps() {
    let mut play = Play::legacy();
    play.app(&level("1", "info"));
    play.upstream(&result("1"));
    play.app(&request(r#""kennel-1""#, "resources/read"));
    assert_eq!(
        play.next_server(),
        [
            level(&own(2), "info"),
            request(r#""kennel-1""#, "resources/read")
        ]
    );
    play.app_heard();
    play.app(&request(r#""kennel-2""#, "x"));
    assert_eq!(error(&play.app_heard()[0]), (own(2), -32600));
    play.upstream(&result(&own(2)));
    play.upstream(&result(&own(1)));
    assert_eq!(play.app_heard(), [result(&own(1))]);
    play.app(&request(r#""kennel-2""#, "x"));
    assert_eq!(play.upstream_heard(), [request(r#""kennel-2""#, "x")]);
}

#[test]
fn a_subscription_of_the_modern_era_is_opened_again_and_acknowledged_once() {
    let mut play = Play::modern();
    let listen = request(r#""l""#, "subscriptions/listen");
    let acknowledged = of_subscription("subscriptions/acknowledged", r#""l""#, "");
    let updated = of_subscription("resources/updated", r#""l""#, r#","uri":"a:1""#);
    play.app(&listen);
    play.lose();
    play.attach();
    assert_eq!(play.upstream_heard(), [&*listen, &*listen]);
    play.upstream(&acknowledged);
    assert_eq!(play.app_heard(), [&*acknowledged], "the first it hears of");
    for _ in 0..4 {
        play.lose();
        play.attach();
        assert_eq!(play.upstream_heard(), [&*listen]);
        play.upstream(&acknowledged);
        play.upstream(&updated);
        assert_eq!(play.app_heard(), [&*updated]);
    }
    // What one server says twice is its own business.
    play.upstream(&acknowledged);
    assert_eq!(play.app_heard(), [&*acknowledged]);
    play.upstream(&of_subscription("subscriptions/acknowledged", "7", ""));
    assert_eq!(play.app_heard().len(), 1, "of nobody we know");

    play.upstream(&cancel(r#""l""#));
    play.lose();
    play.attach();
    assert_eq!(play.upstream_heard(), [""; 0], "it is over");
}

#[test]
fn an_open_subscription_is_no_debt_and_outlives_a_server_that_cannot_be_had() {
    let mut play = Play::modern();
    let [open, asked] = ["1", "2"].map(|id| request(id, "subscriptions/listen"));
    play.app(&open);
    assert_eq!(play.session.pending_requests(), 1, "whether it is open");
    play.upstream(&of_subscription("subscriptions/acknowledged", "1", ""));
    assert_eq!(
        (play.session.pending_requests(), play.session.in_flight()),
        (0, 1)
    );
    play.app(&asked);
    play.app_heard();
    play.give_up();
    let refused = play.app_heard();
    assert_eq!(
        refused.len(),
        1,
        "nobody knows that it is open: {refused:?}"
    );
    assert_eq!(error(&refused[0]), ("2".into(), -32603));
    assert_eq!(
        (play.session.pending_requests(), play.session.in_flight()),
        (0, 1)
    );

    play.session.expect_upstream();
    play.upstream_heard();
    play.app(&request("3", "x"));
    play.attach();
    assert_eq!(play.upstream_heard(), [open, request("3", "x")]);

    // Unless nobody listens: then it ends with its server.
    play.give_up();
    play.app_heard();
    play.session.handle_app_eof();
    let last = play.session.poll_to_app().expect("an error for it");
    assert_eq!(
        error(&String::from_utf8(last).expect("text")),
        ("1".into(), -32603)
    );
    assert!(play.session.is_idle());
}

#[test]
fn after_the_end_of_input_a_subscription_is_not_opened_again() {
    let mut play = Play::modern();
    play.app(&request("1", "subscriptions/listen"));
    play.upstream(&of_subscription("subscriptions/acknowledged", "1", ""));
    play.app(&request("2", "resources/read"));
    play.app_heard();
    play.session.handle_app_eof();
    play.lose();
    assert_eq!(play.app_heard(), [lost("1", "subscriptions/listen")]);
    assert_eq!(
        play.session.in_flight(),
        1,
        "the other one still wants its answer"
    );
}

#[test]
fn progress_goes_on_where_it_was_and_never_back() {
    let mut play = Play::modern();
    play.app(&with_token("1", "resources/read", r#""t""#));
    play.app(&with_token("2", "resources/read", "7"));
    for value in ["1", "2.5", "2.5", "1"] {
        play.upstream(&progress(r#""t""#, value));
    }
    assert_eq!(play.app_heard().len(), 4, "the server's own way to count");
    for round in 0..2 {
        play.lose();
        play.attach();
        for value in ["1", "2.5", "x", "3", "2", "3", "4e0"] {
            play.upstream(&progress(r#""t""#, value));
        }
        let new = [progress(r#""t""#, "3"), progress(r#""t""#, "4e0")];
        assert_eq!(play.app_heard(), new[..2 - 2 * round]);
    }
    // Others are not touched: of the other request, of tasks, of requests to come.
    play.upstream(&progress("7", "1"));
    play.upstream(&progress(r#""8""#, "1"));
    assert_eq!(play.app_heard().len(), 2);
    play.upstream(&result("1"));
    play.app(&with_token("1", "x", r#""t""#));
    play.upstream(&progress(r#""t""#, "1"));
    assert_eq!(play.app_heard(), [result("1"), progress(r#""t""#, "1")]);
}

#[test]
fn the_progress_of_what_the_session_asks_is_nobodys() {
    let mut play = Play::legacy();
    let line = with_token("1", "logging/setLevel", "5");
    play.app(&line);
    play.upstream(&progress("5", "1"));
    play.upstream(&result("1"));
    play.app_heard();
    assert_eq!(
        play.next_server(),
        [with_token(&own(1), "logging/setLevel", "5")]
    );
    play.upstream(&progress("5", "2"));
    assert_eq!(play.app_heard(), [""; 0]);
    play.upstream(&result(&own(1)));
    play.upstream(&progress("5", "2"));
    assert_eq!(play.app_heard(), [progress("5", "2")], "of a task, perhaps");
}

#[test]
fn the_handshake_comes_first_whatever_stands() {
    let mut play = Play::legacy();
    play.app(&level("1", "info"));
    play.upstream(&result("1"));
    play.app(&request("2", "resources/read"));
    play.upstream_heard();
    play.lose();
    play.app(&notice("n"));
    play.attach();
    assert_eq!(play.upstream_heard(), [INITIALIZE]);
    // Lost again before it answered: nothing of it is said to the wrong one.
    play.lose();
    play.attach();
    play.upstream(WELCOME);
    let rest = [
        INITIALIZE,
        INITIALIZED,
        &level(&own(1), "info"),
        &request("2", "resources/read"),
        &notice("n"),
    ];
    assert_eq!(play.upstream_heard(), rest);
    play.app_heard();
    play.upstream(&cancel(&own(1)));
    assert!(matches!(
        play.notes()[..],
        [.., Note::Line(LineNote::UnknownCancel(Side::Upstream, _))]
    ));
}
