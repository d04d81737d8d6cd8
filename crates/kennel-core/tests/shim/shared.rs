//! Sessions that share a server behind a daemon.

use kennel_core::election::Activity;
use kennel_core::engine::shim::{
    Action, Elected, Event, Listing, Purpose, Settings, SharingSettings,
};
use kennel_core::hello::{Control, Lost, Solo};
use kennel_core::session::Verdict;

use super::{SECOND, Stage, call, sharing};

const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"an app","version":"1"}}}"#;

fn lost() -> Lost {
    Lost {
        reason: "server_restarted".to_owned(),
        detail: "why".to_owned(),
        is_final: false,
        exit: None,
        unsent: Vec::new(),
        received: None,
        shortage: false,
        ended: None,
        retry_after: None,
    }
}

/// What the session goes dedicated with.
fn dedicated_for_now(actions: &[Action]) -> bool {
    let is_warning = |action: &Action| matches!(action, Action::Warn(_));
    actions.iter().any(is_warning) && actions.contains(&Action::StartServer)
}

#[test]
fn a_session_elects_and_uses_the_connection_that_it_gets() {
    let mut stage = Stage::shared();
    assert_eq!(stage.advance(), [Action::Elect(Purpose::Attach)]);
    assert_eq!(stage.ask(1), Verdict::Drop);
    assert_eq!(stage.connected(), [Action::UseConnection]);
    assert_eq!(stage.lines_for_upstream(), [call(1)]);
}

#[test]
fn a_greeting_that_went_with_the_hello_is_not_sent_twice() {
    let mut stage = Stage::shared();
    let _ = stage.shim.handle_app_line(INITIALIZE, stage.now);
    stage.advance();
    let handshake = Some(INITIALIZE.to_vec());
    stage.handle(Event::Elected(Elected::Connected { handshake }));
    assert_eq!(stage.lines_for_upstream(), Vec::<Vec<u8>>::new());
    assert_eq!(stage.shim.client_name(), Some("an app"));
}

const CLOSED: Event = Event::DaemonClosed { unwritten: 0 };

#[test]
fn a_request_that_was_not_written_when_the_daemon_closed_is_sent_to_the_next() {
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    assert_eq!(stage.ask(2), Verdict::Forward);
    let unwritten = call(2).len() + 1;
    stage.handle(Event::DaemonClosed { unwritten });
    stage.connected();
    // The outcome of the first is unknown.
    let refused = stage.lines_for_app();
    assert_eq!(refused.len(), 1);
    assert!(refused[0].contains("outcome unknown"));
    assert_eq!(stage.lines_for_upstream(), [call(2)]);
}

#[test]
fn a_lost_daemon_is_replaced_by_another_election() {
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    stage.answer(1);
    let again = [Action::Disconnect, Action::Elect(Purpose::Attach)];
    assert_eq!(stage.handle(CLOSED), again);
}

#[test]
fn the_word_that_the_session_begins_again_precedes_its_next_line() {
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    let given_up = Lost {
        is_final: true,
        retry_after: Some(500),
        ..lost()
    };
    assert_eq!(stage.control(&Control::Lost(given_up)), []);
    // Too early: the daemon would not start a server either.
    assert_eq!(stage.ask(2), Verdict::Drop);
    assert_eq!(stage.advance(), []);
    let refusals = stage.lines_for_app();
    assert!(
        refusals[1].contains(r#""retryAfterMs":500"#),
        "{refusals:?}"
    );
    stage.now = stage.now + SECOND;
    assert_eq!(stage.ask(3), Verdict::Forward);
    assert_eq!(stage.actions(), [Action::Send(Control::Again)]);
}

#[test]
fn a_session_that_cannot_share_gets_its_own_server_for_good() {
    let mut stage = Stage::attached();
    let solo = Solo {
        why: "its roots differ".to_owned(),
        ..Solo::default()
    };
    let actions = stage.control(&Control::Solo(solo));
    assert_eq!(actions, [Action::Disconnect, Action::StartServer]);
    assert_eq!(stage.shim.why_dedicated(), Some("its roots differ"));
    assert_eq!(stage.shim.next_timeout(), None);
}

#[test]
fn without_a_daemon_a_session_has_its_own_server_and_returns_at_a_quiet_moment() {
    let mut stage = Stage::shared();
    stage.advance();
    let why = "no room".to_owned();
    let actions = stage.handle(Event::Elected(Elected::NoDaemon { why: why.clone() }));
    assert!(dedicated_for_now(&actions), "{actions:?}");
    assert_eq!(stage.ask(1), Verdict::Forward);
    // Not while a request is pending.
    assert!(
        !stage
            .pass(9 * SECOND)
            .contains(&Action::Elect(Purpose::Return))
    );
    stage.answer(1);
    assert!(stage.pass(SECOND).contains(&Action::Elect(Purpose::Return)));
    // The next attempt comes after twice as long.
    stage.handle(Event::Elected(Elected::NoDaemon { why }));
    assert!(!stage.pass(SECOND).contains(&Action::Elect(Purpose::Return)));
    assert!(stage.pass(SECOND).contains(&Action::Elect(Purpose::Return)));
    let actions = stage.connected();
    assert!(actions.contains(&Action::StopServer), "{actions:?}");
    assert!(!actions.contains(&Action::UseConnection), "{actions:?}");
    // Nothing is left of its own server: only now.
    assert_eq!(
        stage.handle(Event::ServerTreeEmpty),
        [Action::UseConnection]
    );
    assert_eq!(stage.shim.why_dedicated(), None);
}

#[test]
fn a_connection_that_comes_while_a_request_is_pending_is_dropped() {
    let mut stage = Stage::shared();
    stage.advance();
    let why = "no room".to_owned();
    stage.handle(Event::Elected(Elected::NoDaemon { why }));
    assert!(stage.pass(SECOND).contains(&Action::Elect(Purpose::Return)));
    assert_eq!(stage.ask(1), Verdict::Forward);
    assert!(stage.connected().contains(&Action::DropConnection));
    assert!(stage.shim.has_server());
}

#[test]
fn a_daemon_that_lacks_descriptors_is_left_alone_for_a_minute() {
    let mut stage = Stage::attached();
    let shortage = Lost {
        shortage: true,
        ..lost()
    };
    let actions = stage.control(&Control::Lost(shortage));
    assert!(dedicated_for_now(&actions), "{actions:?}");
    assert!(
        !stage
            .pass(59 * SECOND)
            .contains(&Action::Elect(Purpose::Return))
    );
    assert!(stage.pass(SECOND).contains(&Action::Elect(Purpose::Return)));
}

#[test]
fn a_hibernating_server_costs_no_timer_and_the_next_request_elects() {
    let mut stage = Stage::attached();
    let actions = stage.control(&Control::Resting);
    assert_eq!(
        actions,
        [Action::Disconnect, Action::List(Listing::Nothing)]
    );
    assert_eq!(stage.shim.next_timeout(), None);
    assert_eq!(stage.ask(1), Verdict::Drop);
    let woken = [
        Action::List(Listing::Nothing),
        Action::Elect(Purpose::Attach),
    ];
    assert_eq!(stage.advance(), woken);
}

#[test]
fn what_a_hibernating_server_never_read_is_sent_again() {
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    stage.control(&Control::Resting);
    stage.connected();
    assert_eq!(stage.lines_for_upstream(), [call(1)]);
    assert_eq!(stage.lines_for_app(), Vec::<String>::new());
}

#[test]
fn a_silent_daemon_is_asked_then_checked_then_suspected() {
    let stopped = Some(Activity { state: 'T', cpu: 7 });
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    stage.advance();
    assert_eq!(stage.pass(SECOND), [Action::Send(Control::Ping)]);
    let mut elected = Vec::new();
    for _ in 0..8 {
        assert_eq!(stage.pass(SECOND / 4), [Action::CheckDaemon]);
        elected = stage.handle(Event::DaemonChecked(stopped));
        if !elected.is_empty() {
            break;
        }
    }
    assert_eq!(elected, [Action::Elect(Purpose::CheckSuspect)]);
    assert_eq!(stage.shim.next_timeout(), None);
    // It answers after all: the session stays with it.
    assert_eq!(stage.handle(Event::Elected(Elected::NotStuck)), []);
    stage.answer(1);
}

#[test]
fn a_daemon_that_speaks_is_not_checked() {
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    for _ in 0..100 {
        assert_eq!(stage.pass(SECOND / 2), []);
        stage.shim.handle_upstream_bytes();
    }
}

#[test]
fn the_election_about_a_suspect_finds_the_next_daemon() {
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    stage.advance();
    stage.pass(SECOND);
    while stage.actions().is_empty() {
        stage.pass(SECOND / 4);
        let stopped = Some(Activity { state: 'T', cpu: 7 });
        stage.shim.handle(Event::DaemonChecked(stopped), stage.now);
    }
    // It was ended as stuck: the election goes on, and no second one begins.
    assert_eq!(stage.handle(CLOSED), [Action::Disconnect]);
    assert_eq!(stage.connected(), [Action::UseConnection]);
}

#[test]
fn a_daemon_that_moved_is_left_when_nothing_is_owed() {
    let mut stage = Stage::attached();
    assert_eq!(stage.ask(1), Verdict::Forward);
    assert_eq!(stage.control(&Control::Moved), []);
    stage.answer(1);
    let leaves = [Action::Disconnect, Action::Elect(Purpose::Attach)];
    assert_eq!(stage.advance(), leaves);
}

#[test]
fn where_only_the_modern_era_shares_the_first_request_decides() {
    let modern_only = || {
        let sharing = sharing().sharing.map(|it| SharingSettings {
            modern_only: true,
            ..it
        });
        Settings {
            sharing,
            ..super::settings()
        }
    };
    let mut stage = Stage::new(modern_only());
    assert_eq!(stage.advance(), []);
    assert_eq!(stage.shim.next_timeout(), None);
    let _ = stage.shim.handle_app_line(INITIALIZE, stage.now);
    assert_eq!(stage.advance(), [Action::StartServer]);
    assert_eq!(
        stage.shim.why_dedicated(),
        Some("only the modern era shares")
    );

    let mut stage = Stage::new(modern_only());
    stage.advance();
    let discover = br#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let _ = stage.shim.handle_app_line(discover, stage.now);
    assert_eq!(stage.advance(), [Action::Elect(Purpose::Attach)]);
}

#[test]
fn a_person_who_stops_the_server_of_a_session_dedicated_for_now_leaves_the_session() {
    let mut stage = Stage::shared();
    stage.advance();
    let why = "no room".to_owned();
    stage.handle(Event::Elected(Elected::NoDaemon { why }));
    assert!(stage.shim.is_dedicated_for_now());
    assert_eq!(stage.ask(1), Verdict::Forward);
    stage.answer(1);
    assert!(stage.pass(SECOND).contains(&Action::Elect(Purpose::Return)));
    let actions = stage.handle(Event::StopRequested { unread: 0 });
    assert!(actions.contains(&Action::AbandonElection), "{actions:?}");
    assert!(actions.contains(&Action::StopServer), "{actions:?}");
    assert_eq!(stage.handle(Event::ServerTreeEmpty), []);
    assert!(stage.shim.hibernates() && stage.shim.next_timeout().is_none());
    assert_eq!(stage.ask(2), Verdict::Drop);
    assert!(stage.advance().contains(&Action::Elect(Purpose::Attach)));
    stage.connected();
    assert_eq!(stage.lines_for_upstream(), [call(2)]);
}
