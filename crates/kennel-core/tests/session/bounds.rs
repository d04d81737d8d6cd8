//! Memory that does not grow with time or with a peer's ill will.

use kennel_core::session::{Note, QUEUE_LIMIT, Session, Verdict};

use crate::play::{Play, cancel, notice, request, result};

#[test]
fn past_a_mebibyte_the_apps_pipe_is_the_buffer() {
    let mut session = Session::new();
    let line = notice(&"n".repeat(1000));
    let mut bytes = 0;
    while !session.queue_is_full() {
        assert_eq!(session.from_app(line.as_bytes()), Verdict::Drop);
        bytes += line.len();
    }
    assert!((QUEUE_LIMIT..QUEUE_LIMIT + line.len()).contains(&bytes));

    // Handed in all the same, it is kept; once sent, there is room again.
    assert_eq!(session.from_app(line.as_bytes()), Verdict::Drop);
    session.upstream_attached();
    let sent = std::iter::from_fn(|| session.poll_to_upstream()).count();
    assert_eq!(sent, bytes / line.len() + 1);
    assert!(!session.queue_is_full());
    assert_eq!(session.from_app(line.as_bytes()), Verdict::Forward);
}

#[test]
fn cancelled_and_given_up_lines_make_room() {
    let mut play = Play::detached();
    let big = request("1", &"x".repeat(QUEUE_LIMIT));
    play.app(&big);
    assert!(play.session.queue_is_full());
    play.app(&cancel("1"));
    assert!(!play.session.queue_is_full() && play.session.is_idle());

    play.app(&big);
    play.give_up();
    assert!(!play.session.queue_is_full() && play.session.is_idle());
}

#[test]
fn a_side_that_is_not_polled_gets_its_lines_in_order() {
    let mut session = Session::new();
    session.upstream_attached();
    for line in [request("1", "x"), request("2", "x")] {
        assert_eq!(session.from_app(line.as_bytes()), Verdict::Forward);
    }
    // A refusal waits for the app: what the server says next waits behind it.
    assert_eq!(
        session.from_app(request("1", "x").as_bytes()),
        Verdict::Drop
    );
    let answer = result("1");
    assert_eq!(session.from_upstream(answer.as_bytes()), Verdict::Drop);
    assert!(!session.is_idle());
    session.poll_to_app().expect("the refusal");
    assert_eq!(session.poll_to_app(), Some(answer.into()));
    let answer = result("2");
    assert_eq!(session.from_upstream(answer.as_bytes()), Verdict::Forward);
}

#[test]
fn only_the_latest_cancelled_requests_are_remembered() {
    let mut play = Play::modern();
    for id in 0..2000 {
        play.app(&request(&id.to_string(), "x"));
        play.app(&cancel(&id.to_string()));
    }
    // The oldest are forgotten, the latest are not.
    play.upstream(&result("0"));
    assert_eq!(play.app_heard(), [""; 0]);
    play.upstream(&result("1999"));
    assert_eq!(play.app_heard(), [result("1999")]);
}

#[test]
fn a_flood_of_bad_lines_is_not_a_flood_of_notes() {
    let mut play = Play::modern();
    for _ in 0..1000 {
        play.upstream("Listening on stdio...");
    }
    let notes = play.notes();
    assert_eq!(notes.len(), 65);
    assert_eq!(notes[64], Note::Unnoted(936));
    assert_eq!(play.notes(), []);
}
