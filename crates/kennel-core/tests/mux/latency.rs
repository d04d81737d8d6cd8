//! How long the server takes.

use std::time::Duration;

use kennel_core::lifetime::ClientId;
use kennel_core::mux::{Class, Mux, MuxPolicy};
use kennel_core::time::Moment;

const CLIENT: ClientId = ClientId(7);

fn ask(mux: &mut Mux, id: u64, method: &str, at: Moment) {
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
    mux.handle_client_line(CLIENT, line.as_bytes(), at);
}

fn answer(mux: &mut Mux, id: u64, at: Moment) {
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    mux.handle_server_line(line.as_bytes(), at);
}

#[test]
fn the_median_of_the_last_answers_is_what_the_server_takes() {
    let mut mux = Mux::new(Class::private(), MuxPolicy::default());
    mux.join(CLIENT, "its session");
    assert_eq!(mux.latency(), None);
    let millis = |millis| Moment::START + Duration::from_millis(millis);
    for (id, took) in [(1, 10), (2, 5_000), (3, 20)] {
        ask(&mut mux, id, "tools/call", millis(0));
        answer(&mut mux, id, millis(took));
    }
    assert_eq!(mux.latency(), Some(Duration::from_millis(20)));
    // Neither what is answered here nor what lasts by its nature.
    ask(&mut mux, 4, "ping", millis(0));
    ask(&mut mux, 5, "subscriptions/listen", millis(0));
    answer(&mut mux, 4, millis(90_000));
    assert_eq!(mux.latency(), Some(Duration::from_millis(20)));
    // What was long ago counts no more.
    for id in 5..105 {
        ask(&mut mux, 1_000 + id, "tools/call", millis(0));
        answer(&mut mux, id, millis(1));
    }
    assert_eq!(mux.latency(), Some(Duration::from_millis(1)));
}

#[test]
fn a_request_that_a_client_waits_for_is_pending() {
    let mut mux = Mux::new(Class::private(), MuxPolicy::default());
    mux.join(CLIENT, "its session");
    let millis = |millis| Moment::START + Duration::from_millis(millis);
    assert!(!mux.is_pending());
    // What lasts until somebody ends it is nothing to wait for.
    ask(&mut mux, 1, "subscriptions/listen", millis(1));
    assert!(!mux.is_pending());
    ask(&mut mux, 2, "tools/call", millis(2));
    ask(&mut mux, 3, "tools/call", millis(3));
    assert!(mux.is_pending());
    answer(&mut mux, 2, millis(4));
    assert!(mux.is_pending());
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#;
    mux.handle_client_line(CLIENT, cancel.as_bytes(), millis(5));
    assert!(!mux.is_pending());
}
