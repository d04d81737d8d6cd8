//! What a server asks the app, over several servers.

use kennel_core::message::Key;
use kennel_core::note::LineNote;
use kennel_core::session::{Note, Side};

use crate::play::{Play, WELCOME, cancel, error, lost, request, result, withdrawn};

const FIRST_MINTED: &str = "1073741824";
const SECOND_MINTED: &str = "1073741825";

#[test]
fn rule_11_the_first_servers_requests_pass_as_they_are() {
    let mut play = Play::legacy();
    for id in ["0", r#""\u0061""#] {
        play.upstream(&request(id, "roots/list"));
        assert_eq!(play.app_heard(), [request(id, "roots/list")]);
    }
    // The two directions have ids of their own.
    play.app(&request("0", "tools/list"));
    play.app(&result("0"));
    play.app(&result(r#""a""#));
    assert_eq!(
        play.upstream_heard(),
        [request("0", "tools/list"), result("0"), result(r#""a""#)]
    );
    assert_eq!(play.notes(), []);
}

#[test]
fn a_late_answer_to_a_dead_servers_request_does_not_answer_the_new_ones() {
    let mut play = Play::legacy();
    play.upstream(&request("7", "elicitation/create"));
    play.lose();
    play.attach();
    play.upstream(WELCOME);
    play.upstream_heard();
    assert_eq!(
        play.app_heard(),
        [request("7", "elicitation/create"), withdrawn("7")]
    );

    play.upstream(&request("7", "elicitation/create"));
    assert_eq!(
        play.app_heard(),
        [request(FIRST_MINTED, "elicitation/create")]
    );
    play.app(&result("7"));
    assert_eq!(play.upstream_heard(), [""; 0]);
    let late = Note::Line(LineNote::UnknownAnswer(Side::App, Some(Key::Number(7))));
    assert_eq!(play.notes(), [late]);

    play.app(&result(FIRST_MINTED));
    assert_eq!(play.upstream_heard(), [result("7")]);
    play.app(&result(FIRST_MINTED));
    assert_eq!(play.upstream_heard(), [""; 0], "no second answer");
}

#[test]
fn what_a_lost_server_asked_is_withdrawn_under_the_id_the_app_knows() {
    let mut play = Play::modern();
    play.lose();
    play.attach();
    play.upstream(&request("\"q\"", "roots/list"));
    play.upstream(&request("5", "roots/list"));
    play.app(&result(FIRST_MINTED));
    play.app_heard();
    play.lose();
    assert_eq!(play.app_heard(), [withdrawn(SECOND_MINTED)]);
}

#[test]
fn a_server_that_cancels_its_own_request_names_it_as_the_app_knows_it() {
    let mut play = Play::modern();
    play.upstream(&request("3", "roots/list"));
    play.upstream(&cancel("3"));
    assert_eq!(play.app_heard(), [request("3", "roots/list"), cancel("3")]);

    play.lose();
    assert_eq!(play.app_heard(), [""; 0]);
    play.attach();
    play.upstream(&request("3", "roots/list"));
    play.upstream(&cancel("3"));
    assert_eq!(
        play.app_heard(),
        [request(FIRST_MINTED, "roots/list"), cancel(FIRST_MINTED)]
    );
    play.notes();
    play.upstream(&cancel("3"));
    let unknown = Note::Line(LineNote::UnknownCancel(Side::Upstream, Key::Number(3)));
    assert_eq!(play.notes(), [unknown]);
    assert_eq!(play.app_heard(), [""; 0]);
}

#[test]
fn a_server_that_cancels_what_was_just_answered_does_not_cancel_the_apps_request() {
    let mut play = Play::modern();
    play.app(&request("3", "tools/call"));
    play.upstream(&request("3", "roots/list"));
    play.app(&result("3"));
    play.app_heard();
    play.upstream(&cancel("3"));
    assert_eq!(play.app_heard(), [""; 0]);
    assert_eq!(play.session.in_flight(), 1);
    play.lose();
    assert_eq!(play.app_heard(), [lost("3", "tools/call")]);
}

#[test]
fn an_id_from_where_ids_are_minted_is_minted_anew() {
    let mut play = Play::modern();
    play.upstream(&request(SECOND_MINTED, "roots/list"));
    assert_eq!(play.app_heard(), [request(FIRST_MINTED, "roots/list")]);
    play.app(&result(FIRST_MINTED));
    assert_eq!(play.upstream_heard(), [result(SECOND_MINTED)]);
}

#[test]
fn a_servers_odd_or_open_ids_are_refused() {
    let mut play = Play::modern();
    for id in ["1.5", "null"] {
        play.upstream(&request(id, "roots/list"));
        assert_eq!(error(&play.upstream_heard()[0]), (id.into(), -32600));
    }
    assert_eq!(play.app_heard(), [""; 0]);

    for upstream in ["first", "second"] {
        play.upstream(&request("1", "roots/list"));
        play.upstream(&request("1", "sampling/createMessage"));
        assert_eq!(play.app_heard().len(), 1, "{upstream}");
        assert_eq!(error(&play.upstream_heard()[0]), ("1".into(), -32600));
        play.lose();
        play.attach();
        play.app_heard();
    }
}

#[test]
fn a_server_is_answered_even_before_it_has_answered_the_handshake() {
    let mut play = Play::legacy();
    play.lose();
    play.attach();
    play.app(&request("1", "x"));
    play.upstream_heard();
    play.upstream(&request("1", "ping"));
    play.app(&result(FIRST_MINTED));
    assert_eq!(play.upstream_heard(), [result("1")]);

    // In a batch with what has to wait, too.
    play.upstream(&request("2", "ping"));
    let both = format!("[{},{}]", request("2", "x"), result(SECOND_MINTED));
    play.app(&both);
    assert_eq!(play.upstream_heard(), [format!("[{}]", result("2"))]);
    play.upstream(WELCOME);
    let waited = &play.upstream_heard()[1..];
    assert_eq!(
        waited,
        [request("1", "x"), format!("[{}]", request("2", "x"))]
    );
}

#[test]
fn ids_in_a_batch_are_rewritten_in_place() {
    let mut play = Play::modern();
    play.lose();
    play.attach();
    let [one, two] = ["1", "2"].map(|id| request(id, "roots/list"));
    play.upstream(&format!("[{one}, {two}]"));
    let [first, second] = [FIRST_MINTED, SECOND_MINTED].map(|id| request(id, "roots/list"));
    assert_eq!(play.app_heard(), [format!("[{first},{second}]")]);
    play.app(&format!(
        "[{}, {}]",
        result(SECOND_MINTED),
        result(FIRST_MINTED)
    ));
    assert_eq!(
        play.upstream_heard(),
        [format!("[{},{}]", result("2"), result("1"))]
    );
}
