//! How sessions end.

use kennel_core::engine::shim::{Action, End, Event, Settings};
use kennel_core::hello::{Control, Lost};
use kennel_core::session::{ServerExit, Verdict};

use super::{SECOND, Stage, settings};

fn unwatched() -> Settings {
    Settings {
        app_is_watched: false,
        ..settings()
    }
}

#[test]
fn a_dedicated_session_waits_for_the_exit_of_its_server_and_takes_its_exit_code() {
    let mut stage = Stage::dedicated();
    stage.advance();
    stage.handle(Event::AppClosed);
    assert_eq!(stage.end(), None);
    stage.handle(Event::ServerExited {
        ending: ServerExit::Code(3),
        stdin_closed: true,
    });
    assert_eq!(stage.end(), Some(End::AppDone(Some(ServerExit::Code(3)))));
    assert_eq!(stage.shim.end(|| true, stage.now), None);
}

#[test]
fn a_server_that_does_not_exit_is_not_waited_for_longer_than_its_ladder() {
    let mut stage = Stage::dedicated();
    stage.advance();
    stage.handle(Event::AppClosed);
    assert_eq!(stage.end(), None);
    stage.pass(2 * SECOND);
    assert_eq!(stage.end(), Some(End::AppDone(None)));
}

#[test]
fn after_eof_answers_of_a_shared_server_are_waited_for_12_s_from_the_last_one() {
    let mut stage = Stage::attached();
    for id in [1, 2, 3] {
        assert_eq!(stage.ask(id), Verdict::Forward);
    }
    stage.answer(1);
    stage.handle(Event::AppClosed);
    stage.pass(11 * SECOND);
    stage.answer(2);
    stage.pass(11 * SECOND);
    assert_eq!(stage.end(), None);
    stage.pass(12 * SECOND);
    let error = stage.lines_for_app().remove(0);
    assert!(error.contains("did not answer in time"), "{error}");
    assert_eq!(stage.end(), Some(End::AppDone(None)));
}

#[test]
fn an_app_that_closed_its_input_and_does_not_read_is_waited_for_12_s_if_it_is_not_watched() {
    let mut stage = Stage::new(unwatched());
    stage.advance();
    stage.handle(Event::AppClosed);
    let unread = |stage: &mut Stage, progress| {
        stage
            .shim
            .handle_output_written(10, false, progress, stage.now);
        stage.shim.end(|| false, stage.now)
    };
    assert_eq!(unread(&mut stage, false), None);
    stage.pass(11 * SECOND);
    // It took some: the time begins anew.
    assert_eq!(unread(&mut stage, true), None);
    stage.pass(11 * SECOND);
    assert_eq!(unread(&mut stage, false), None);
    stage.pass(SECOND);
    assert_eq!(unread(&mut stage, false), Some(End::Unread));
}

#[test]
fn an_app_that_is_watched_may_read_its_answers_as_late_as_it_likes() {
    for mut stage in [Stage::dedicated(), Stage::attached()] {
        stage.advance();
        for id in [1, 2] {
            assert_eq!(stage.ask(id), Verdict::Forward);
        }
        stage.answer(1);
        stage.handle(Event::AppClosed);
        // Nothing is read of the server meanwhile, so its second answer cannot be late.
        let full = |stage: &mut Stage| {
            stage
                .shim
                .handle_output_written(2 << 20, true, false, stage.now);
            assert_eq!(stage.shim.end(|| false, stage.now), None);
        };
        full(&mut stage);
        for _ in 0..100 {
            stage.pass(60 * SECOND);
            full(&mut stage);
        }
        stage.shim.handle_output_written(10, false, true, stage.now);
        stage.pass(SECOND);
        stage.answer(2);
        assert_eq!(stage.lines_for_app(), Vec::<String>::new());
        assert_eq!(stage.shim.end(|| false, stage.now), None);
        stage.pass(60 * SECOND);
        assert_eq!(stage.shim.end(|| false, stage.now), None);
        stage.end();
        stage.pass(2 * SECOND);
        assert_eq!(stage.end(), Some(End::AppDone(None)));
    }
}

#[test]
fn while_the_output_is_full_the_input_of_an_unwatched_app_is_checked_every_second() {
    let mut stage = Stage::new(unwatched());
    stage.advance();
    let full = |stage: &mut Stage| {
        stage
            .shim
            .handle_output_written(2 << 20, true, false, stage.now);
        stage.actions()
    };
    assert_eq!(full(&mut stage), [Action::CheckInput]);
    stage.handle(Event::InputChecked { closed: false });
    assert_eq!(full(&mut stage), []);
    stage.pass(SECOND);
    assert_eq!(full(&mut stage), [Action::CheckInput]);
    stage.handle(Event::InputChecked { closed: true });
    full(&mut stage);
    stage.pass(12 * SECOND);
    full(&mut stage);
    assert_eq!(stage.shim.end(|| false, stage.now), Some(End::Unread));
}

#[test]
fn a_shared_server_that_cannot_be_started_ends_the_session_like_a_shell_would() {
    let mut stage = Stage::attached();
    stage.control(&Control::Lost(Lost {
        reason: "server_unavailable".to_owned(),
        detail: "command not found".to_owned(),
        is_final: true,
        exit: Some(127),
        unsent: Vec::new(),
        received: None,
        shortage: false,
        ended: None,
        retry_after: None,
    }));
    let why = Some("command not found".to_owned());
    assert_eq!(stage.end(), Some(End::Refused { code: 127, why }));
}
