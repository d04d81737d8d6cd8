//! Log levels: the server has one for all clients.

use kennel_core::mux::{ClientId, Lane};

use crate::play::{Play, error, id_of, notice, request, result};

fn set_level(id: &str, level: &str) -> String {
    request(id, "logging/setLevel", &format!(r#"{{"level":"{level}"}}"#))
}

fn log(level: &str) -> String {
    notice(
        "notifications/message",
        &format!(r#"{{"level":"{level}","data":1}}"#),
    )
}

#[test]
fn the_server_has_the_most_verbose_level_and_each_client_its_own() {
    let mut play = Play::legacy(2);
    play.server(&log("debug"));
    assert_eq!(
        (play.heard(1).len(), play.heard(2).len()),
        (1, 1),
        "nobody set one"
    );

    // The other one never set any, and is to have `info` at least.
    play.client(1, &set_level("1", "error"));
    let heard = play.server_heard_in_lanes();
    let minted = id_of(&heard[0].1);
    assert_eq!(heard, [(Lane::Front, set_level(&minted, "info"))]);
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("1", "{}")]);
    play.server(&log("info"));
    play.server(&log("critical"));
    play.server(&log("debug"));
    play.server(&log("?"));
    assert_eq!(play.heard(1), [log("critical"), log("?")]);
    assert_eq!(play.heard(2), [log("info"), log("critical"), log("?")]);

    let minted = play.asks(2, &set_level("1", "debug"));
    play.server(&result(&minted, "{}"));
    play.forget();
    play.client(1, &set_level("2", "alert"));
    assert_eq!(
        play.heard(1),
        [result("2", "{}")],
        "no difference to the server"
    );
    play.nobody_hears();

    play.leave(2);
    let heard = play.server_heard();
    assert_eq!(heard, [set_level(&id_of(&heard[0]), "alert")]);
    play.server(&result(&id_of(&heard[0]), "{}"));
    play.enter(3);
    let heard = play.server_heard();
    assert_eq!(
        heard,
        [set_level(&id_of(&heard[0]), "info")],
        "for who never set one"
    );
    play.forget();
    play.server(&log("notice"));
    assert_eq!(play.heard(3), [log("notice")]);
    play.nobody_hears();
}

#[test]
fn a_level_that_is_refused_leaves_the_one_before() {
    let mut play = Play::legacy(1);
    let minted = play.asks(1, &set_level("1", "notice"));
    play.server(&result(&minted, "{}"));
    let minted = play.asks(1, &set_level("2", "alert"));
    play.server(&error(&minted, -32603));
    play.forget();
    play.server(&log("info"));
    play.server(&log("notice"));
    assert_eq!(play.heard(1), [log("notice")]);
    play.asks(1, &set_level("3", "alert"));
}

#[test]
fn a_level_on_its_way_is_waited_for_and_a_refused_one_is_none() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &set_level("1", "debug"));
    play.client(2, &set_level("7", "info"));
    play.nobody_hears();
    play.server(&error(&minted, -32601));
    assert_eq!(play.heard(1), [error("1", -32601)]);
    assert_eq!(play.heard(2), [error("7", -32601)]);
    play.asks(2, &set_level("8", "info"));
    assert_eq!(play.mux.pending_requests_of(ClientId(2)), 1);
}
