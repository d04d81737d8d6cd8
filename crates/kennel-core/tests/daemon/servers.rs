//! When servers start, stop, hibernate and are replaced.

use kennel_core::engine::daemon::{Report, StartFailure};
use kennel_core::hello::Control;
use kennel_core::message::Key;

use super::*;

#[test]
fn the_successor_of_a_server_waits_until_nothing_is_left_of_it() {
    let mut stage = Stage::new();
    let (client, first) = stage.served("one");
    stage.lose(first);
    stage.say(client, "!again");
    let actions = stage.say(client, INITIALIZE);
    let second = slot(&actions);
    assert!(!starts(&actions, second));
    let actions = stage.pass(SECOND);
    assert!(!starts(&actions, second), "{actions:?}");
    let actions = stage.end_slot(first);
    assert!(starts(&actions, second), "{actions:?}");
}

#[test]
fn a_server_that_never_answers_is_started_again_on_request_only() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    let mut opened = slot(&stage.say(client, INITIALIZE));
    for _ in 0..100 {
        stage.start(opened);
        let actions = stage.lose(opened);
        let lost = lost(&actions, client);
        stage.end_slot(opened);
        if lost.is_final {
            assert!(lost.retry_after.is_some());
            let [Report::ServerLost { restarts, .. }] = reports(&actions)[..] else {
                panic!("{actions:?}");
            };
            assert!(!restarts);
            return;
        }
        stage.say(client, "!again");
        opened = slot(&stage.say(client, INITIALIZE));
        stage.pass(60 * SECOND / 100);
    }
    panic!("it is started for ever");
}

#[test]
fn what_waits_for_a_lost_server_is_named_as_unsent() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.say(client, &call(1));
    stage.daemon.set_writing(slot, true);
    stage.say(client, &call(2));
    let actions = stage.lose(slot);
    assert_eq!(lost(&actions, client).unsent, [Key::Number(2)]);
    assert!(stops(&actions, slot));
}

#[test]
fn a_line_that_was_not_written_to_its_end_is_unsent() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.say(client, &call(1));
    let (_, line) = stage.written.pop().unwrap();
    let cut_off = [line.as_bytes()].into_iter();
    let now = stage.now;
    let daemon = &mut stage.daemon;
    daemon.handle_server_lost(slot, Some(ServerExit::Code(1)), String::new(), cut_off, now);
    let actions = stage.actions();
    let lost = lost(&actions, client);
    assert_eq!(lost.unsent, [Key::Number(1)]);
    assert_eq!(lost.ended, Some(ServerExit::Code(1)));
}

#[test]
fn what_a_lost_server_says_reaches_nobody() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.say(client, &call(1));
    stage.lose(slot);
    let late = r#"{"jsonrpc":"2.0","id":2,"result":{}}"#;
    let actions = stage.server_says(slot, late);
    assert!(lines(&actions, client).is_empty(), "{actions:?}");
}

#[test]
fn a_start_that_fails_is_told_to_the_clients_of_that_slot() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    let opened = slot(&stage.say(client, INITIALIZE));
    let failure = StartFailure {
        detail: "sh: not found".to_owned(),
        exit: Some(127),
        shortage: false,
    };
    stage
        .daemon
        .handle_start_failure(opened, failure, stage.now);
    let actions = stage.actions();
    let lost = lost(&actions, client);
    assert!(lost.is_final && !lost.shortage);
    assert_eq!(lost.exit, Some(127));
    assert_eq!(lost.unsent, [Key::Number(0)]);
    assert!(stops(&actions, opened));
}

#[test]
fn a_server_outlives_its_last_client_by_linger() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.gone(client);
    let actions = stage.pass(LINGER - SECOND);
    assert!(!stops(&actions, slot), "{actions:?}");
    let actions = stage.pass(SECOND);
    assert!(stops(&actions, slot), "{actions:?}");
}

#[test]
fn of_many_servers_without_clients_the_first_ones_do_not_linger() {
    let mut stage = Stage::new();
    let mut opened = Vec::new();
    let mut stopped = Vec::new();
    for version in 0..12 {
        let client = stage.client("one");
        let other = INITIALIZE.replace("2025-06-18", &format!("2025-06-{}", 10 + version));
        let actions = stage.say(client, &other);
        stopped.extend(opened.iter().copied().filter(|it| stops(&actions, *it)));
        let slot = slot(&actions);
        stage.start(slot);
        stage.server_says(slot, &initialized(1));
        opened.push(slot);
        stage.pass(SECOND);
        stage.gone(client);
    }
    assert_eq!(stopped, opened[..3]);
}

#[test]
fn an_idle_server_hibernates_if_all_its_clients_allow_it() {
    let mut stage = Stage::new();
    let mut clients = ["one", "two"].map(|session| {
        let mut introduction = introduction(session);
        introduction.hibernate_after = Some(10 * SECOND);
        stage.client_with(introduction)
    });
    let opened = slot(&stage.say(clients[0], INITIALIZE));
    stage.start(opened);
    stage.server_says(opened, &initialized(1));
    stage.say(clients[1], INITIALIZE);
    let other = stage.client("never");
    stage.say(other, INITIALIZE);
    let actions = stage.pass(20 * SECOND);
    assert!(!stops(&actions, opened), "{actions:?}");
    stage.gone(other);
    let actions = stage.pass(SECOND);
    assert!(stops(&actions, opened), "{actions:?}");
    clients.sort_unstable();
    for client in clients {
        assert_eq!(told(&actions, client), [&Control::Resting]);
        assert!(finishes(&actions, client));
    }
}

#[test]
fn a_server_with_a_pending_request_does_not_hibernate() {
    let mut stage = Stage::new();
    let client = stage.client_with(Introduction {
        hibernate_after: Some(SECOND),
        ..introduction("one")
    });
    let opened = slot(&stage.say(client, INITIALIZE));
    stage.start(opened);
    let actions = stage.pass(30 * SECOND);
    assert!(!stops(&actions, opened), "{actions:?}");
}

#[test]
fn an_outdated_server_is_replaced_when_its_last_answer_is_there() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.say(client, &call(1));
    stage.daemon.handle_files_changed(slot);
    let actions = stage.actions();
    assert_eq!(reports(&actions), [&Report::Outdated]);
    let actions = stage.server_says(slot, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    assert_eq!(lines(&actions, client).len(), 1);
    let lost = lost(&actions, client);
    assert_eq!(lost.reason, "replaced");
    assert!(stops(&actions, slot));
}

#[test]
fn a_client_that_comes_gets_no_outdated_server() {
    let mut stage = Stage::new();
    let (former, outdated) = stage.served("one");
    stage.daemon.handle_files_changed(outdated);
    let client = stage.client("two");
    let actions = stage.say(client, INITIALIZE);
    assert_ne!(slot(&actions), outdated);
    assert_eq!(lost(&actions, former).reason, "replaced");
}

#[test]
fn two_servers_that_exit_on_discover_do_not_know_it_and_one_or_a_killed_one_shows_nothing() {
    for (endings, modern) in [
        (&[ServerExit::Code(1)][..], None),
        (&[ServerExit::Code(1), ServerExit::Code(1)], Some(false)),
        (&[ServerExit::Signal(9), ServerExit::Signal(9)], None),
        (&[ServerExit::Code(137), ServerExit::Code(137)], None),
    ] {
        let mut stage = Stage::new();
        let client = stage.client("one");
        for &ending in endings {
            let opened = slot(&stage.say(client, DISCOVER));
            stage.start(opened);
            stage.end(opened, ending);
            stage.say(client, "!again");
        }
        assert_eq!(stage.daemon.known_modern(), modern, "{endings:?}");
    }
}

#[test]
fn what_an_older_server_showed_is_forgotten_when_its_files_changed() {
    let mut stage = Stage::new();
    let client = stage.client("one");
    for _ in 0..2 {
        let opened = slot(&stage.say(client, DISCOVER));
        stage.start(opened);
        stage.end(opened, ServerExit::Code(1));
        stage.say(client, "!again");
    }
    assert_eq!(stage.daemon.known_modern(), Some(false));
    let (_, outdated) = stage.served("two");
    stage.daemon.handle_files_changed(outdated);
    stage.say(client, INITIALIZE);
    assert_eq!(stage.daemon.known_modern(), None);
}
