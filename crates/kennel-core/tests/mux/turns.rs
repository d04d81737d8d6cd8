//! Servers that mix up what they do at once are asked for one thing after the other.

use kennel_core::mux::{Mux, MuxPolicy};

use crate::play::{Play, call, cancel, class_of, id_of, initialize, request, result};

fn in_turn(clients: u64) -> Play {
    let mut play = Play::legacy(0);
    let policy = MuxPolicy {
        in_turn: true,
        ..MuxPolicy::default()
    };
    play.mux = Mux::new(class_of(&initialize("0")), policy);
    (1..=clients).for_each(|client| play.enter(client));
    play.forget();
    play
}

/// The one call the server hears of.
#[track_caller]
fn next(play: &mut Play, tool: &str) -> String {
    let heard = play.server_heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].contains(tool), "{heard:?}");
    id_of(&heard[0])
}

#[test]
fn calls_take_turns_and_so_do_clients_and_nothing_else_waits() {
    let mut play = in_turn(2);
    for (client, id, tool) in [(1, "1", "a"), (1, "2", "b"), (1, "3", "c"), (2, "1", "d")] {
        play.client(client, &call(id, tool));
    }
    for tool in ["a", "d", "b", "c"] {
        let minted = next(&mut play, tool);
        play.asks(2, &request("9", "prompts/get", "{}"));
        play.client(2, &cancel("9"));
        play.server_heard();
        play.server(&result(&minted, "{}"));
    }
    assert_eq!(play.heard(1).len(), 3);
    assert_eq!(play.heard(2).len(), 1);
    play.nobody_hears();
}

#[test]
fn a_call_that_is_cancelled_before_its_turn_is_never_heard_of_and_one_that_runs_makes_way() {
    let mut play = in_turn(2);
    play.client(1, &call("1", "a"));
    play.client(1, &call("2", "b"));
    play.client(2, &call("1", "c"));
    let running = next(&mut play, "a");
    play.client(1, &cancel("2"));
    play.nobody_hears();
    play.client(1, &cancel("1"));
    let heard = play.server_heard();
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(heard[0].contains("notifications/cancelled") && heard[0].contains(&running));
    assert!(heard[1].contains("\"c\""), "{heard:?}");
    assert_eq!(
        play.mux.in_flight_of(kennel_core::mux::ClientId(1)).len(),
        0
    );
}

#[test]
fn who_leaves_takes_what_waits_along_and_makes_way() {
    let mut play = in_turn(2);
    play.client(1, &call("1", "a"));
    play.client(1, &call("2", "b"));
    play.client(2, &call("1", "c"));
    let _ = next(&mut play, "a");
    play.leave(1);
    let heard = play.server_heard();
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(heard.iter().any(|line| line.contains("\"c\"")), "{heard:?}");
    assert!(
        !heard.iter().any(|line| line.contains("\"b\"")),
        "{heard:?}"
    );
}

#[test]
fn a_server_that_ends_on_a_probe_does_not_know_it_and_who_asked_is_told_so() {
    let mut play = Play::modern(2);
    let meta = format!("{{\"_meta\":{{{}}}}}", crate::play::ENVELOPE);
    play.client(1, &request("7", "server/discover", &meta));
    play.client(2, &request("8", "tools/list", &meta));
    play.forget();
    assert_eq!(play.mux.knows_discover(), None);
    play.mux.handle_server_exit();
    play.server("nobody says this");
    let heard = play.heard(1);
    assert!(heard.len() == 1 && heard[0].contains("-32601"), "{heard:?}");
    assert_eq!(play.heard(2), [""; 0]);
    assert_eq!(play.mux.knows_discover(), Some(false));
}

#[test]
fn a_server_that_has_answered_and_ends_during_a_probe_may_know_it() {
    let mut play = Play::modern(1);
    let meta = format!("{{\"_meta\":{{{}}}}}", crate::play::ENVELOPE);
    let minted = play.asks(1, &request("6", "tools/call", &meta));
    play.server(&crate::play::result(&minted, "{}"));
    play.asks(1, &request("7", "server/discover", &meta));
    play.forget();
    play.mux.handle_server_exit();
    play.server("nobody says this");
    assert_eq!(play.heard(1), [""; 0]);
    assert_eq!(play.mux.knows_discover(), None);
}
