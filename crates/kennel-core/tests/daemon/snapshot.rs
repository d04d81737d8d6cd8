//! What a newer build goes on with.

use kennel_core::engine::daemon::{
    ClientPlace, ClientSnapshot, Daemon, HandoverWait, SlotSnapshot,
};
use kennel_core::lifetime::{Liveness, Owner};
use kennel_core::message::Key;

use super::*;

/// What comes back of a value that is written down.
fn through_text<T: serde::de::DeserializeOwned>(value: &impl serde::Serialize) -> T {
    let text = serde_json::to_string(value).expect("it has a text");
    serde_json::from_str(&text).expect("it can be read")
}

/// The same daemon in another build.
fn restored(stage: &Stage, sessions: &[(ClientId, &str)]) -> Stage {
    restored_after(stage, sessions, None)
}

/// The same, where the first process of its servers has ended like this.
fn restored_after(
    stage: &Stage,
    sessions: &[(ClientId, &str)],
    first_process: Option<ServerExit>,
) -> Stage {
    let mut daemon = Daemon::new(&settings(Owner::None), stage.now);
    let state = stage.daemon.snapshot();
    daemon.restore(state.next_client, state.modern);
    for slot in stage.daemon.slots() {
        let slot = slot.snapshot();
        let snapshot = SlotSnapshot {
            mux: through_text(slot.mux),
            lanes: through_text(slot.lanes),
            running: true,
            writing: false,
            start_at: slot.start_at,
            empty_since: slot.empty_since,
            first_process,
        };
        daemon.restore_slot(snapshot, sessions[0].1, stage.now);
    }
    for (client, session) in sessions {
        let snapshot = stage.daemon.client_snapshot(*client);
        let snapshot = through_text(&snapshot.expect("it is there"));
        let introduction = Some(introduction(session));
        daemon
            .restore_client(
                *client,
                snapshot,
                introduction,
                Liveness::Watchable,
                stage.now,
            )
            .expect("its slot is there");
    }
    Stage {
        daemon,
        now: stage.now,
        written: Vec::new(),
        changed: Vec::new(),
    }
}

#[test]
fn a_newer_build_answers_what_was_asked_before_and_counts_on() {
    let mut stage = Stage::new();
    let (client, _) = stage.served("one");
    stage.say(client, &call(1));
    let mut stage = restored(&stage, &[(client, "one")]);
    let slot = stage.daemon.slot_of(client).unwrap();
    let actions = stage.server_says(slot, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    assert_eq!(lines(&actions, client).len(), 1);
    assert_eq!(stage.daemon.client_name(client), Some("app"));
    let heard = INITIALIZE.len() + INITIALIZED.len() + call(1).len() + 3;
    let actions = stage.lose(slot);
    assert_eq!(lost(&actions, client).received, Some(heard as u64));
    let next = stage
        .daemon
        .handle_client_arrived(Liveness::Watchable, stage.now);
    assert!(next > client);
}

#[test]
fn a_half_closed_client_is_finished_by_the_newer_build() {
    let mut stage = Stage::new();
    let (client, _) = stage.served("one");
    stage.say(client, &call(1));
    stage.daemon.handle_client_eof(client, stage.now);
    stage.actions();
    let mut stage = restored(&stage, &[(client, "one")]);
    let slot = stage.daemon.slot_of(client).unwrap();
    let actions = stage.server_says(slot, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    assert!(finishes(&actions, client), "{actions:?}");
}

#[test]
fn survivors_of_a_crash_that_do_not_answer_are_lost_in_the_newer_build() {
    let mut stage = Stage::new();
    let (client, _) = stage.served("one");
    stage.say(client, &call(1));
    for (ending, is_lost) in [(ServerExit::Code(3), true), (ServerExit::Code(0), false)] {
        let mut stage = restored_after(&stage, &[(client, "one")], Some(ending));
        let slot = stage.daemon.slot_of(client).unwrap();
        let mut actions = Vec::new();
        for _ in 0..12 {
            stage.now = stage.now + SECOND;
            stage.daemon.advance_slot(slot, stage.now);
            actions.extend(stage.actions());
        }
        let lose =
            |it: &Action| matches!(it, Action::DeclareServerLost { slot: it } if *it == slot);
        assert_eq!(actions.iter().any(lose), is_lost, "{ending:?}");
    }
}

#[test]
fn lines_that_waited_are_unsent_in_the_newer_build() {
    let mut stage = Stage::new();
    let (client, slot) = stage.served("one");
    stage.daemon.set_writing(slot, true);
    stage.say(client, &call(1));
    let mut stage = restored(&stage, &[(client, "one")]);
    let slot = stage.daemon.slot_of(client).unwrap();
    let actions = stage.lose(slot);
    assert_eq!(lost(&actions, client).unsent, [Key::Number(1)]);
}

#[test]
fn a_snapshot_of_a_client_has_the_fields_of_the_released_format() {
    let snapshot = ClientSnapshot {
        place: ClientPlace::InSlot(0),
        half_closed: false,
        received: Some(7),
        name: None,
    };
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(
        text,
        r#"{"place":{"At":0},"half_closed":false,"heard":7,"name":null}"#
    );
    let older = r#"{"place":"Lost","half_closed":true,"heard":null}"#;
    let older: ClientSnapshot = serde_json::from_str(older).unwrap();
    assert_eq!((older.place, older.name), (ClientPlace::Lost, None));
}

#[test]
fn a_handover_waits_two_seconds_for_silence_and_a_minute_for_memory() {
    let mut stage = Stage::new();
    let (client, _) = stage.served("one");
    let wait = HandoverWait::new(stage.now);
    assert!(wait.is_quiet(&stage.daemon, stage.now));
    stage.say(client, &call(1));
    assert!(!wait.is_quiet(&stage.daemon, stage.now));
    assert_eq!(wait.next_timeout(stage.now), Some(stage.now + 2 * SECOND));
    assert!(wait.is_quiet(&stage.daemon, stage.now + 2 * SECOND));
    let max_line = 64 << 20;
    assert_eq!(wait.max_bytes(max_line, stage.now), 4 << 20);
    assert_eq!(wait.max_bytes(max_line, stage.now + 60 * SECOND), 32 << 20);
}

#[test]
fn what_a_daemon_holds_is_counted_rarely_before_it_hands_over() {
    let start = Moment::START;
    let mut wait = HandoverWait::new(start);
    assert!(wait.is_due(start));
    wait.not_yet(Duration::ZERO, start);
    assert_eq!(wait.next_timeout(start), Some(start + SECOND));
    assert!(!wait.is_due(start) && wait.is_due(start + SECOND));
    // A count that takes long is repeated later, and after a minute at the latest.
    for (took, next) in [(100, 5), (3_600_000, 60)] {
        let mut wait = wait;
        wait.not_yet(Duration::from_millis(took), start);
        assert_eq!(wait.next_timeout(start), Some(start + next * SECOND));
    }
    wait.shortage(start);
    assert!(!wait.is_due(start + 9 * SECOND) && wait.is_due(start + 10 * SECOND));
}

#[test]
fn half_lines_that_stand_still_do_not_prevent_an_upgrade_for_ever() {
    let start = Moment::START;
    let wait = HandoverWait::new(start + 60 * SECOND);
    let at = |seconds| start + seconds * SECOND;
    assert_eq!(wait.next_timeout(at(125)), Some(at(180)));
    assert!(!wait.drops_half_line(start, at(179)));
    assert!(wait.drops_half_line(start, at(180)));
    assert!(wait.drops_half_line(at(120), at(180)));
    assert!(
        !wait.drops_half_line(at(121), at(180)),
        "it may be sent just now"
    );
}
