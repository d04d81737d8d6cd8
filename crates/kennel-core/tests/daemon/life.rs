//! When the daemon ends.

use kennel_core::engine::daemon::{Action, ExitAttempt, Report};
use kennel_core::hello::Control;
use kennel_core::lifetime::{Liveness, Owner};

use super::*;

fn tries_to_leave(actions: &[Action]) -> bool {
    actions.iter().any(|it| matches!(it, Action::TryToExit))
}

fn leaves(actions: &[Action]) -> bool {
    actions.iter().any(|it| matches!(it, Action::Exit))
}

#[test]
fn a_daemon_without_clients_leaves_after_linger_and_tries_again_while_somebody_has_the_lock() {
    let mut stage = Stage::new();
    assert!(!tries_to_leave(&stage.pass(LINGER - SECOND)));
    let actions = stage.pass(SECOND);
    assert!(tries_to_leave(&actions), "{actions:?}");
    stage
        .daemon
        .handle_exit_attempt(ExitAttempt::LockHeld, stage.now);
    assert!(!tries_to_leave(&stage.pass(SECOND / 20)));
    assert!(tries_to_leave(&stage.pass(SECOND / 20)));
    stage
        .daemon
        .handle_exit_attempt(ExitAttempt::Exited, stage.now);
    assert_eq!(stage.daemon.next_timeout(stage.now), None);
    assert!(stage.daemon.is_closed());
}

#[test]
fn an_arrival_cancels_the_end() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.gone(client);
    let actions = stage.pass(LINGER);
    assert!(stops(&actions, slot) && !tries_to_leave(&actions));
    let late = stage.client("late");
    let actions = stage.pass(SECOND);
    let is_calm = |it: &Action| matches!(it, Action::DisarmWatchdog);
    assert!(actions.iter().any(is_calm), "{actions:?}");
    let actions = stage.say(late, INITIALIZE);
    let next = super::slot(&actions);
    assert!(!starts(&actions, next), "the former server is not gone");
    assert!(starts(&stage.end_slot(slot), next));
    assert!(!tries_to_leave(&stage.pass(2 * LINGER)));
}

#[test]
fn who_waits_while_the_daemon_leaves_is_let_in() {
    let mut stage = Stage::new();
    assert!(tries_to_leave(&stage.pass(LINGER)));
    stage.client("late");
    stage
        .daemon
        .handle_exit_attempt(ExitAttempt::ClientsArrived, stage.now);
    let actions = stage.pass(SECOND);
    assert!(!tries_to_leave(&actions) && !leaves(&actions));
    assert!(!stage.daemon.is_closed());
}

#[test]
fn asked_to_stop_it_tells_all_gives_them_a_second_and_leaves() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.daemon.handle_stop(stage.now);
    stage.daemon.advance(stage.now);
    let actions = stage.actions();
    assert_eq!(told(&actions, client), [&Control::Stopped]);
    assert!(finishes(&actions, client) && !stops(&actions, slot));
    assert!(stage.daemon.is_closed() && !stage.daemon.may_hand_over());
    let actions = stage.pass(SECOND);
    let cut = |it: &Action| matches!(it, Action::Disconnect { client: it } if *it == client);
    assert!(actions.iter().any(cut) && stops(&actions, slot));
    stage.gone(client);
    stage.end_slot(slot);
    assert!(leaves(&stage.pass(Duration::ZERO)));
}

#[test]
fn no_arrival_cancels_a_stop() {
    let mut stage = Stage::new();
    stage.daemon.handle_stop(stage.now);
    stage
        .daemon
        .handle_client_arrived(Liveness::Watchable, stage.now);
    stage.daemon.advance(stage.now);
    assert!(!stage.daemon.may_hand_over());
    assert!(stage.daemon.is_closed());
}

#[test]
fn without_its_owner_it_outlives_its_last_client_by_the_grace_only() {
    let mut stage = Stage::owned(Owner::Watched);
    let (client, slot) = stage.served("one");
    stage.daemon.handle_owner_gone(stage.now);
    assert!(reports(&stage.pass(LINGER)).is_empty());
    stage.gone(client);
    stage.end_slot(slot);
    assert!(!tries_to_leave(&stage.pass(4 * SECOND)));
    let actions = stage.pass(SECOND);
    assert!(matches!(reports(&actions)[..], [Report::Ending(_)]));
    assert!(tries_to_leave(&actions));
}

#[test]
fn a_daemon_whose_runtime_directory_is_gone_serves_the_clients_it_has() {
    let mut stage = Stage::new();
    let (client, served) = stage.served("one");
    let (gone, deserted) = {
        let private = stage.client_with(Introduction {
            policy: mux::MuxPolicy::default(),
            ..introduction("other")
        });
        let modern = slot(&stage.say(private, DISCOVER));
        stage.start(modern);
        (private, modern)
    };
    stage.gone(gone);
    assert!(stage.daemon.handle_runtime_dir_lost());
    assert!(!stage.daemon.handle_runtime_dir_lost(), "that is no news");
    let actions = stage.actions();
    assert_eq!(told(&actions, client), [&Control::Moved]);
    assert!(!stops(&actions, served));
    let is_closing = |id| stage.daemon.slot(id).unwrap().is_closing();
    assert!(is_closing(deserted) && !is_closing(served));
    assert!(stage.daemon.is_closed() && !stage.daemon.may_hand_over());
    // Who was let in before that hears of it, too.
    let late = stage.client("late");
    let actions = stage.actions();
    assert_eq!(told(&actions, late), [&Control::Moved]);
    stage.gone(late);
    stage.gone(client);
    stage.end_slot(deserted);
    stage.end_slot(served);
    assert!(leaves(&stage.pass(Duration::ZERO)), "without linger");
}
