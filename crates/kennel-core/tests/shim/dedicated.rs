//! Sessions with a server of their own.

use std::time::Duration;

use kennel_core::engine::shim::{Action, Event, Listing, Settings};
use kennel_core::session::{ServerExit, Verdict};

use super::{SECOND, Stage, call, settings};

/// A dedicated session whose server has answered once.
fn serving(settings: Settings) -> Stage {
    let mut stage = Stage::new(settings);
    assert_eq!(stage.advance(), [Action::StartServer]);
    stage.handle(Event::ServerStarted);
    assert_eq!(stage.ask(1), Verdict::Forward);
    stage.answer(1);
    stage
}

#[test]
fn the_next_server_starts_when_nothing_is_left_of_the_lost_one() {
    let mut stage = serving(settings());
    assert_eq!(stage.lose_server(), []);
    assert_eq!(stage.pass(60 * SECOND), []);
    let restarted = [Action::List(Listing::Restarted), Action::StartServer];
    assert_eq!(stage.handle(Event::ServerTreeEmpty), restarted);
    assert!(stage.shim.has_server());
}

#[test]
fn requests_that_come_between_two_servers_are_sent_to_the_next() {
    let mut stage = serving(settings());
    stage.lose_server();
    assert_eq!(stage.ask(2), Verdict::Drop);
    assert_eq!(stage.lines_for_upstream(), Vec::<Vec<u8>>::new());
    stage.handle(Event::ServerTreeEmpty);
    assert_eq!(stage.lines_for_upstream(), [call(2)]);
}

#[test]
fn a_server_that_never_answered_is_started_again_only_by_a_request_and_not_too_early() {
    let mut stage = Stage::dedicated();
    stage.advance();
    stage.lose_server();
    assert_eq!(stage.handle(Event::ServerTreeEmpty), []);
    // The first attempt after a loss does not wait.
    assert_eq!(stage.ask(1), Verdict::Drop);
    assert_eq!(stage.advance(), [Action::StartServer]);
    stage.lose_server();
    stage.handle(Event::ServerTreeEmpty);
    assert_eq!(stage.lines_for_app().len(), 1);
    // The second waits 100 ms: a request before that is refused, and told when to try again.
    assert_eq!(stage.ask(2), Verdict::Drop);
    assert_eq!(stage.advance(), []);
    let refusal = stage.lines_for_app().remove(0);
    assert!(refusal.contains(r#""retryAfterMs":100"#), "{refusal}");
    stage.now = stage.now + SECOND;
    assert_eq!(stage.ask(3), Verdict::Drop);
    assert_eq!(stage.advance(), [Action::StartServer]);
}

#[test]
fn a_server_that_is_killed_before_its_first_answer_is_started_again_as_any_other() {
    let mut stage = Stage::dedicated();
    assert_eq!(stage.advance(), [Action::StartServer]);
    assert_eq!(stage.ask(1), Verdict::Forward);
    let unread = call(1).len() + 1;
    for wait in [0, 100, 200, 400, 800] {
        stage.handle(Event::ServerLost {
            unread,
            ending: Some(ServerExit::Signal(9)),
            stderr: String::new(),
        });
        let restarted = Action::List(Listing::Restarted);
        let mut actions = stage.handle(Event::ServerTreeEmpty);
        assert_eq!(actions.remove(0), restarted);
        if wait > 0 {
            assert_eq!(actions, []);
            assert_eq!(stage.pass(Duration::from_millis(wait - 1)), []);
            actions = stage.pass(Duration::from_millis(1));
        }
        assert_eq!(actions, [Action::StartServer]);
        assert_eq!(stage.lines_for_upstream(), [call(1)]);
        assert_eq!(stage.lines_for_app(), Vec::<String>::new());
    }
    // The sixth in a row.
    stage.handle(Event::ServerLost {
        unread,
        ending: Some(ServerExit::Signal(9)),
        stderr: String::new(),
    });
    let refusal = stage.lines_for_app().remove(0);
    assert!(refusal.contains("server_unavailable"), "{refusal}");
}

#[test]
fn an_idle_server_hibernates_and_the_next_request_starts_it_when_nothing_is_left_of_it() {
    let mut stage = serving(Settings {
        hibernate: Some(60 * SECOND),
        ..settings()
    });
    assert_eq!(stage.pass(59 * SECOND), []);
    let hibernates = [Action::StopServer, Action::List(Listing::Hibernating)];
    assert_eq!(stage.pass(SECOND), hibernates);
    assert!(stage.shim.hibernates() && stage.shim.next_timeout().is_none());
    // While it still ends.
    assert_eq!(stage.ask(2), Verdict::Drop);
    assert_eq!(stage.advance(), [Action::List(Listing::Nothing)]);
    let restarted = [Action::List(Listing::Restarted), Action::StartServer];
    assert_eq!(stage.handle(Event::ServerTreeEmpty), restarted);
    assert_eq!(stage.lines_for_upstream(), [call(2)]);
}

#[test]
fn a_pending_request_and_a_ping_keep_a_server_from_hibernating_and_from_being_woken() {
    let mut stage = serving(Settings {
        hibernate: Some(60 * SECOND),
        ..settings()
    });
    assert_eq!(stage.ask(2), Verdict::Forward);
    stage.pass(SECOND);
    let stops = |action: &Action| *action == Action::StopServer;
    assert!(!stage.pass(3600 * SECOND).iter().any(stops));
    stage.answer(2);
    assert!(!stage.pass(59 * SECOND).iter().any(stops));
    assert!(stage.pass(SECOND).iter().any(stops));
    stage.handle(Event::ServerTreeEmpty);
    let ping = br#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#;
    let _ = stage.shim.handle_app_line(ping, stage.now);
    assert_eq!(stage.advance(), []);
    assert_eq!(stage.lines_for_app().len(), 1);
}

#[test]
fn a_server_whose_files_changed_is_replaced_only_when_nobody_waits_for_it() {
    let mut stage = serving(settings());
    assert_eq!(stage.ask(2), Verdict::Forward);
    assert!(!stage.shim.may_replace_server());
    assert_eq!(stage.handle(Event::ServerOutdated), []);
    stage.answer(2);
    assert!(stage.shim.may_replace_server());
    assert_eq!(stage.handle(Event::ServerOutdated), [Action::StopServer]);
    let restarted = [Action::List(Listing::Restarted), Action::StartServer];
    assert_eq!(stage.handle(Event::ServerTreeEmpty), restarted);
}

#[test]
fn a_server_that_cannot_be_started_is_told_to_the_request_that_waits() {
    let mut stage = Stage::dedicated();
    assert_eq!(stage.ask(1), Verdict::Drop);
    stage.advance();
    let why = "no memory".to_owned();
    assert_eq!(stage.handle(Event::ServerNotStarted { why }), []);
    let refusal = stage.lines_for_app().remove(0);
    assert!(
        refusal.contains("the server cannot be started: no memory"),
        "{refusal}"
    );
}

#[test]
fn a_crashed_server_is_lost_though_a_helper_holds_its_stdout() {
    let crashed = |stdin_closed| Event::ServerExited {
        ending: ServerExit::Signal(11),
        stdin_closed,
    };
    // Nobody is left who could read a request: at once.
    let mut stage = serving(settings());
    assert_eq!(stage.ask(2), Verdict::Forward);
    assert_eq!(stage.handle(crashed(true)), [Action::DeclareServerLost]);
    // Somebody could be the real server: when it owes an answer for 10 s.
    let mut stage = serving(settings());
    assert_eq!(stage.handle(crashed(false)), []);
    assert_eq!(stage.pass(3600 * SECOND), []);
    assert_eq!(stage.ask(2), Verdict::Forward);
    stage.advance();
    let loses = |actions: Vec<Action>| actions.contains(&Action::DeclareServerLost);
    assert!(!loses(stage.pass(9 * SECOND)));
    assert!(loses(stage.pass(SECOND)));
    stage.lose_server();
    let restarted = [Action::List(Listing::Restarted), Action::StartServer];
    assert_eq!(stage.handle(Event::ServerTreeEmpty), restarted);
    // The next one is another server.
    assert_eq!(stage.ask(3), Verdict::Forward);
    stage.advance();
    assert!(!loses(stage.pass(60 * SECOND)));
}

#[test]
fn a_silent_server_behind_a_launcher_that_exited_with_0_is_lost_after_5_min() {
    let mut stage = serving(settings());
    stage.handle(Event::ServerExited {
        ending: ServerExit::Code(0),
        stdin_closed: false,
    });
    assert_eq!(stage.ask(2), Verdict::Forward);
    stage.advance();
    assert!(
        !stage
            .pass(299 * SECOND)
            .contains(&Action::DeclareServerLost)
    );
    assert!(stage.pass(2 * SECOND).contains(&Action::DeclareServerLost));
}
