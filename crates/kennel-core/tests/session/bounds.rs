//! Memory that does not grow with time or with a peer's ill will.

use kennel_core::session::{IN_FLIGHT_LIMIT, NAME_LIMIT, Note, QUEUE_LIMIT, Session, Verdict};

use crate::play::{Play, cancel, error, notice, request, result};

#[test]
fn past_a_mebibyte_the_apps_pipe_is_the_buffer() {
    let mut session = Session::new();
    let line = notice(&"n".repeat(1000));
    let mut bytes = 0;
    while !session.queue_is_full() {
        assert_eq!(session.handle_app_line(line.as_bytes()), Verdict::Drop);
        bytes += line.len();
    }
    assert!((QUEUE_LIMIT..QUEUE_LIMIT + line.len()).contains(&bytes));

    // Handed in all the same, it is kept; once sent, there is room again.
    assert_eq!(session.handle_app_line(line.as_bytes()), Verdict::Drop);
    session.handle_upstream_attached();
    let sent = std::iter::from_fn(|| session.poll_to_upstream()).count();
    assert_eq!(sent, bytes / line.len() + 1);
    assert!(!session.queue_is_full());
    assert_eq!(session.handle_app_line(line.as_bytes()), Verdict::Forward);
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
    session.handle_upstream_attached();
    for line in [request("1", "x"), request("2", "x")] {
        assert_eq!(session.handle_app_line(line.as_bytes()), Verdict::Forward);
    }
    // A refusal waits for the app: what the server says next waits behind it.
    assert_eq!(
        session.handle_app_line(request("1", "x").as_bytes()),
        Verdict::Drop
    );
    let answer = result("1");
    assert_eq!(
        session.handle_upstream_line(answer.as_bytes()),
        Verdict::Drop
    );
    assert!(!session.is_idle());
    session.poll_to_app().expect("the refusal");
    assert_eq!(session.poll_to_app(), Some(answer.into()));
    let answer = result("2");
    assert_eq!(
        session.handle_upstream_line(answer.as_bytes()),
        Verdict::Forward
    );
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
    assert_eq!(notes[64], Note::MoreNotes(936));
    assert_eq!(play.notes(), []);
}

#[test]
fn requests_of_the_server_without_end_are_refused_until_some_are_answered() {
    let mut play = Play::modern();
    for id in 0..IN_FLIGHT_LIMIT {
        play.upstream(&request(&id.to_string(), "sampling/createMessage"));
    }
    assert_eq!(play.app_heard().len(), IN_FLIGHT_LIMIT);
    let one_more = request("-1", "sampling/createMessage");
    play.upstream(&one_more);
    assert_eq!(play.app_heard(), [""; 0]);
    assert_eq!(error(&play.upstream_heard()[0]), ("-1".into(), -32000));
    play.app(&result("7"));
    play.upstream(&cancel("8"));
    play.app_heard();
    for line in [&one_more, &request("-2", "sampling/createMessage")] {
        play.upstream(line);
        assert_eq!(play.app_heard(), [line.as_str()]);
    }
}

#[test]
fn long_ids_of_the_server_are_refused_and_all_ids_together_are_bounded() {
    let mut play = Play::modern();
    let id = |length: usize, last: usize| format!("\"{}{last:05}\"", "x".repeat(length - 7));
    let ask = |play: &mut Play, id: &str| play.upstream(&request(id, "sampling/createMessage"));
    ask(&mut play, &id(NAME_LIMIT + 1, 0));
    let refused = error(&play.upstream_heard()[0]);
    assert_eq!(refused, (id(NAME_LIMIT + 1, 0), -32600));
    ask(&mut play, &id(1 << 20, 0));
    assert_eq!(error(&play.upstream_heard()[0]), ("null".into(), -32600));
    assert_eq!(play.app_heard(), [""; 0]);

    let mut asked = 0;
    while play.upstream_heard().is_empty() {
        ask(&mut play, &id(NAME_LIMIT, asked));
        asked += 1;
    }
    assert_eq!(asked, (4 << 20) / NAME_LIMIT + 1);
    // The next upstream begins with nothing.
    play.lose();
    play.attach();
    play.app_heard();
    ask(&mut play, "1");
    assert_eq!(play.app_heard().len(), 1);
}

#[test]
fn replies_to_a_server_that_asks_and_does_not_read_are_dropped() {
    let mut session = Session::new();
    session.handle_upstream_attached();
    let odd = request("1.5", "sampling/createMessage");
    for _ in 0..20_000 {
        assert_eq!(session.handle_upstream_line(odd.as_bytes()), Verdict::Drop);
    }
    let waiting = std::iter::from_fn(|| session.poll_to_upstream());
    let bytes: usize = waiting.map(|line| line.len()).sum();
    assert!((1 << 20..(1 << 20) + 1024).contains(&bytes), "{bytes}");
    assert!(session.handle_app_line(notice("x").as_bytes()) == Verdict::Forward);
    // It reads again, and is answered again.
    assert_eq!(session.handle_upstream_line(odd.as_bytes()), Verdict::Drop);
    assert!(session.poll_to_upstream().is_some());
}

#[test]
fn long_ids_of_the_app_pass_and_are_bounded_together() {
    let mut play = Play::modern();
    let id = |length: usize, last: usize| format!("\"{}{last:05}\"", "x".repeat(length - 7));
    let long = id(5000, 1);
    play.app(&request(&long, "tools/call"));
    assert_eq!(play.upstream_heard(), [request(&long, "tools/call")]);
    play.upstream(&result(&long));
    assert_eq!(play.app_heard(), [result(&long)]);

    play.app(&request(&id((1 << 20) + 1, 0), "tools/call"));
    assert_eq!(error(&play.app_heard()[0]).1, -32600);
    let one = |nth: usize| id(1 << 20, nth);
    // Those that are cancelled, lost or answered make room.
    for _ in 0..2 {
        for nth in 0..4 {
            play.app(&request(&one(nth), "tools/call"));
        }
        assert_eq!(play.upstream_heard().len(), 4);
        play.app(&request(&one(4), "tools/call"));
        assert_eq!(error(&play.app_heard()[0]), (one(4), -32600));
        play.upstream(&result(&one(0)));
        play.lose();
        play.attach();
        assert_eq!(play.app_heard().len(), 4);
        play.upstream_heard();
        assert!(play.session.is_idle());
    }
}

#[test]
fn an_id_that_is_too_long_is_refused_before_anything_is_made_of_it() {
    let mut play = Play::modern();
    let long = format!("1.{}", "0".repeat(1 << 20));
    let call = request(&long, "tools/call");
    assert_eq!(play.session.handle_app_line(call.as_bytes()), Verdict::Drop);
    let refused = play.session.poll_to_app().expect("an error");
    assert!(String::from_utf8_lossy(&refused).contains("the id is too long"));
    assert_eq!(play.session.poll_note(), None);
    let cancelled = cancel(&long);
    assert_eq!(
        play.session.handle_app_line(cancelled.as_bytes()),
        Verdict::Drop
    );
    assert_eq!(play.session.poll_note(), Some(Note::LongCancel));
    assert_eq!(play.upstream_heard(), [""; 0]);
}
