//! A mux is written down in the middle of everything, and goes on elsewhere. That any order of events goes on the
//! same is checked where those are played: every mux of the random worlds has a twin that moves.

use kennel_core::mux::{ClientId, Mux};

use crate::play::{INITIALIZED, Play, call, initialize, modern, notice, request, result};
use crate::twins::moved;

/// What the first version that could be upgraded wrote down of two clients, one of whom waits for an answer. Whoever
/// changes the format keeps reading this, or gives the format another number.
const FIRST_FORMAT: &str = include_str!("snapshot/first.json");

#[test]
fn what_the_first_format_wrote_down_is_still_read_and_goes_on() {
    let mut mux: Mux = serde_json::from_str(FIRST_FORMAT).expect("still understood");
    assert_eq!(mux.clients(), 2);
    assert_eq!(mux.pending_requests_of(ClientId(2)), 1);
    let mut play = Play::greeting();
    std::mem::swap(&mut play.mux, &mut mux);
    play.server(&result("2", r#"{"content":[]}"#));
    assert_eq!(play.heard(2), [result("7", r#"{"content":[]}"#)]);
}

#[test]
fn a_subscription_that_lasts_is_nothing_to_wait_for_and_is_carried() {
    let mut play = Play::modern(1);
    let minted = play.asks(1, &modern("7", "subscriptions/listen", ""));
    assert!(play.mux.is_quiet());
    play.mux = moved(&play.mux);
    let news = notice(
        "notifications/tools/list_changed",
        &format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{minted}}}}}"#),
    );
    play.server(&news);
    assert_eq!(play.heard(1).len(), 1);
}

#[test]
fn it_is_quiet_only_when_nobody_waits_for_anything() {
    let mut play = Play::legacy(2);
    assert!(play.mux.is_quiet());
    let minted = play.asks(1, &call("1", "tool"));
    assert!(!play.mux.is_quiet(), "a call");
    play.server(&request("9", "sampling/createMessage", "{}"));
    play.server(&result(&minted, "{}"));
    assert!(!play.mux.is_quiet(), "a question of the server's");
    let asked = play.heard(1);
    let shown = crate::play::id_of(&asked[0]);
    play.client(1, &result(&shown, "{}"));
    assert!(play.mux.is_quiet());
    play.client(2, &initialize("5"));
    play.client(2, INITIALIZED);
    assert!(play.mux.is_quiet());
}

#[test]
fn what_the_server_holds_for_all_is_not_asked_for_again() {
    let set =
        |id, level: &str| request(id, "logging/setLevel", &format!(r#"{{"level":"{level}"}}"#));
    let subscribe = |id| request(id, "resources/subscribe", r#"{"uri":"a"}"#);
    let mut play = Play::legacy(2);
    for line in [set("1", "debug"), subscribe("2")] {
        let minted = play.asks(1, &line);
        play.server(&result(&minted, "{}"));
    }
    play.mux = moved(&play.mux);
    play.client(2, &set("1", "debug"));
    play.client(2, &subscribe("2"));
    assert_eq!(play.server_heard(), [""; 0]);
    assert_eq!(play.heard(2).len(), 2);
    let log = notice("notifications/message", r#"{"level":"debug"}"#);
    play.server(&log);
    assert_eq!(play.heard(1).len(), 3, "two answers and the message");
}

#[test]
fn subscriptions_that_an_older_build_wrote_down_as_spelled_are_the_same_in_any_case() {
    let line = |id, what: &str, uri| {
        let method = format!("resources/{what}");
        request(id, &method, &format!(r#"{{"uri":"{uri}"}}"#))
    };
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &line("1", "subscribe", "a://b/c"));
    play.server(&result(&minted, "{}"));
    play.forget();
    let mut written = serde_json::to_value(&play.mux).expect("it is written down");
    let by_uri = &mut written["subscriptions"]["by_uri"];
    let subscription = by_uri["a://b/c"].take();
    *by_uri = serde_json::json!({ "A://B/c": subscription });
    play.mux = serde_json::from_value(written).expect("still understood");
    let update = notice("notifications/resources/updated", r#"{"uri":"a://b/c"}"#);
    play.server(&update);
    assert_eq!(play.heard(1), [update]);
    play.client(1, &line("2", "unsubscribe", "a://b/c"));
    let heard = play.server_heard();
    let id = crate::play::id_of(&heard[0]);
    assert_eq!(heard, [line(&id, "unsubscribe", "A://B/c")]);
}
