//! What a client's lines open or mean, and when it is finished.

use kennel_core::engine::daemon::Action;
use kennel_core::hello::{Control, Shares};
use kennel_core::lifetime::Liveness;
use kennel_core::message::{INITIALIZE_LIMIT, Key};

use super::*;

#[test]
fn clients_of_one_class_share_a_slot_and_private_ones_do_not() {
    let mut stage = Stage::new();
    let (_, shared) = stage.served("one");
    let other = stage.client("other");
    let joins = stage.say(other, INITIALIZE);
    assert_eq!(stage.daemon.slot_of(other), Some(shared), "{joins:?}");
    for session in ["private", "private too"] {
        let private = stage.client_with(Introduction {
            shares: Shares {
                legacy: false,
                modern: false,
            },
            ..introduction(session)
        });
        let opened = slot(&stage.say(private, INITIALIZE));
        assert_ne!(opened, shared);
    }
    assert_eq!(stage.daemon.slots().count(), 3);
}

#[test]
fn a_ping_before_the_first_request_is_answered_without_a_server() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    let actions = stage.say(client, r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
    assert_eq!(lines(&actions, client), [answer]);
    assert_eq!(stage.daemon.slots().count(), 0);
}

#[test]
fn notifications_and_responses_open_nothing() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    for line in [INITIALIZED, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#] {
        let actions = stage.say(client, line);
        assert!(actions.is_empty(), "{actions:?}");
    }
    assert!(stage.daemon.is_opening(client));
}

#[test]
fn a_malformed_line_before_the_first_request_is_refused_without_a_server() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    let twice = r#"{"jsonrpc":"2.0","method":"echo","id":1,"id":1}"#;
    for (line, id) in [("text", "null"), (twice, "null"), ("{\"id\":7,", "7")] {
        let actions = stage.say(client, line);
        let answers = lines(&actions, client);
        let is_error = |it: &String| it.contains("error") && it.contains(&format!("\"id\":{id}"));
        assert!(answers.len() == 1 && is_error(&answers[0]), "{answers:?}");
    }
    // A message of a later shim, and a blank line.
    for line in ["!later {}", "  "] {
        assert!(stage.say(client, line).is_empty(), "{line}");
    }
    assert!(stage.daemon.is_opening(client));
    assert_eq!(stage.daemon.slots().count(), 0);
}

#[test]
fn a_slot_is_looked_at_again_whenever_a_client_joins_or_leaves() {
    let mut stage = Stage::new();
    let (_, legacy) = stage.served("one");
    assert_eq!(std::mem::take(&mut stage.changed), [legacy]);
    let other = stage.client("other");
    let modern = slot(&stage.say(other, DISCOVER));
    assert_eq!(std::mem::take(&mut stage.changed), [modern]);
    // It moves from one slot to the other.
    stage.say(other, INITIALIZE);
    assert_eq!(stage.daemon.slot_of(other), Some(legacy));
    assert_eq!(std::mem::take(&mut stage.changed), [modern, legacy]);
    stage.gone(other);
    assert_eq!(std::mem::take(&mut stage.changed), [legacy]);
    stage.lose(legacy);
    assert_eq!(std::mem::take(&mut stage.changed), [legacy]);
}

#[test]
fn an_initialize_that_is_too_long_is_refused() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    let long = INITIALIZE.replace("app", &"a".repeat(INITIALIZE_LIMIT));
    let actions = stage.say(client, &long);
    let answers = lines(&actions, client);
    assert!(answers[0].contains("error"), "{answers:?}");
    assert_eq!(stage.daemon.slots().count(), 0);
}

#[test]
fn control_messages_mean_nothing_of_a_client_without_a_hello() {
    let mut stage = Stage::new();
    let bare = Introduction {
        bare: true,
        ..introduction("bare")
    };
    let bare = stage.client_with(bare);
    let hello = stage.client("with a hello");
    assert!(stage.say(bare, "!ping").is_empty());
    let actions = stage.say(hello, "!ping");
    assert_eq!(told(&actions, hello), [&Control::Pong]);
    let actions = stage.say(hello, "!pipes");
    assert!(matches!(&actions[..], [Action::UsePipes { client }] if *client == hello));
}

#[test]
fn a_session_that_attaches_again_replaces_its_older_connection_only() {
    let mut stage = Stage::new();
    let older = stage.client("one");
    stage.client("other");
    stage.client("one");
    let actions = stage.actions();
    assert!(
        matches!(&actions[..], [Action::Disconnect { client }] if *client == older),
        "{actions:?}"
    );
}

#[test]
fn rule_5_what_a_client_sends_after_a_loss_is_for_the_lost_server_until_it_begins_again() {
    let mut stage = Stage::new();
    let (client, first) = stage.served("one");
    let heard = INITIALIZE.len() + INITIALIZED.len() + 2;
    let actions = stage.lose(first);
    assert_eq!(lost(&actions, client).received, Some(heard as u64));
    assert!(stage.say(client, &call(1)).is_empty(), "for the lost one");
    assert!(stage.say(client, "!again").is_empty());
    let second = slot(&stage.say(client, INITIALIZE));
    assert_ne!(first, second);
    let actions = stage.lose(second);
    let lost = lost(&actions, client);
    assert_eq!(lost.received, Some(INITIALIZE.len() as u64 + 1));
    assert_eq!(lost.unsent, [Key::Number(0)], "it was never started");
}

#[test]
fn after_a_skipped_line_nobody_knows_how_much_was_heard() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.daemon.handle_skipped_line(client);
    stage.say(client, &call(1));
    let actions = stage.lose(slot);
    assert_eq!(lost(&actions, client).received, None);
}

#[test]
fn a_half_closed_client_is_finished_when_its_last_answer_is_there() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.say(client, &call(1));
    stage.daemon.handle_client_eof(client, stage.now);
    let actions = stage.actions();
    assert!(!finishes(&actions, client), "{actions:?}");
    let answer = r#"{"jsonrpc":"2.0","id":2,"result":{}}"#;
    let actions = stage.server_says(slot, answer);
    assert_eq!(lines(&actions, client).len(), 1);
    let last = actions.last();
    assert!(matches!(last, Some(Action::Finish { .. })), "{actions:?}");
}

#[test]
fn a_half_closed_client_without_a_pending_request_is_finished_at_once() {
    let mut stage = Stage::new();
    let (client, _) = stage.served("one");
    let idle = stage.client("idle");
    for client in [client, idle] {
        stage.daemon.handle_client_eof(client, stage.now);
        assert!(finishes(&stage.actions(), client));
    }
}

#[test]
fn to_a_half_closed_client_the_loss_of_its_server_is_the_end() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.say(client, &call(1));
    stage.daemon.handle_client_eof(client, stage.now);
    stage.actions();
    let actions = stage.lose(slot);
    assert!(told(&actions, client).is_empty());
    assert!(finishes(&actions, client));
}

#[test]
fn a_probe_is_answered_for_servers_that_are_known_to_be_legacy() {
    let mut stage = Stage::new();
    let first = stage.client("one");
    let opened = slot(&stage.say(first, DISCOVER));
    stage.start(opened);
    let refused = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#;
    stage.server_says(opened, refused);
    assert_eq!(stage.daemon.known_modern(), Some(false));
    // The client turns out to be a legacy one: it leaves for another server.
    let legacy = slot(&stage.say(first, INITIALIZE));
    assert_ne!(opened, legacy);
    let second = stage.client("two");
    let actions = stage.say(second, DISCOVER);
    assert!(lines(&actions, second)[0].contains("-32601"));
    assert!(stage.daemon.is_opening(second));
}

#[test]
fn a_client_that_is_refused_before_a_start_goes_dedicated_and_nothing_was_sent() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    let opened = slot(&stage.say(client, INITIALIZE));
    stage
        .daemon
        .handle_client_refused(client, "it is confined", stage.now);
    let actions = stage.actions();
    match &told(&actions, client)[..] {
        [Control::Solo(solo)] => {
            assert_eq!(solo.why, "it is confined");
            assert_eq!(solo.unsent, [Key::Number(0)]);
        }
        other => panic!("{other:?}"),
    }
    assert!(finishes(&actions, client) && stops(&actions, opened));
}

#[test]
fn the_name_of_a_client_is_known_from_its_first_request() {
    let mut stage = Stage::new();
    let (client, _) = stage.served("one");
    assert_eq!(stage.daemon.client_name(client), Some("app"));
    let silent = stage
        .daemon
        .handle_client_arrived(Liveness::Watchable, stage.now);
    assert_eq!(stage.daemon.client_name(silent), None);
}
