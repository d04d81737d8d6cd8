//! Roots: all have the same, or go their own way.

use kennel_core::message::{Owned, Scan};
use kennel_core::mux::{ClientId, Lane};

use crate::play::{
    INITIALIZED, Play, call, cancel, class_of, error, id_of, initialize, initialize_with, notice,
    reason, refusal, request, result,
};

const HOME: &str = r#"{"roots":[{"uri":"file:///home","name":"h"}]}"#;
const HOME_RESPELLED: &str =
    r#"{ "roots": [ {"name":"\u0068","uri":"file:\/\/\/home"} ] , "_meta":{}}"#;
const AWAY: &str = r#"{"roots":[{"uri":"file:///away","name":"h"}]}"#;

fn list(id: &str) -> String {
    request(id, "roots/list", r#"{"x":1.0}"#)
}

/// The server asks, and client 1 answers.
fn asked(play: &mut Play, answer: &str) {
    play.server(&list("0"));
    let shown = play.is_asked(1);
    play.client(1, &result(&shown, answer));
    assert_eq!(play.server_heard(), [result("0", answer)]);
}

#[test]
fn who_initialised_the_server_is_asked_first_and_the_others_by_the_mux() {
    let mut play = Play::legacy(3);
    play.server(&list("0"));
    let heard = play.heard(1);
    let shown = id_of(&heard[0]);
    assert_eq!(heard, [list(&shown)]);
    let second = play.is_asked(2);
    let third = play.is_asked(3);

    play.client(2, &result(&second, AWAY));
    play.nobody_hears();
    play.client(1, &result(&shown, HOME));
    let answer = (Lane::Of(ClientId(1)), result("0", HOME));
    assert_eq!(play.server_heard_in_lanes(), [answer]);
    assert_eq!(play.dismissed, [2]);
    play.client(3, &result(&third, HOME_RESPELLED));
    play.nobody_hears();
    assert_eq!(play.dismissed, [2]);
    assert_eq!(play.mux.clients(), 2);
}

#[test]
fn who_joins_later_is_asked_when_it_is_ready() {
    let mut play = Play::legacy(1);
    asked(&mut play, HOME);
    for (client, answer, stays) in [(2, HOME, true), (3, AWAY, false)] {
        play.join(client);
        play.client(client, &initialize("0"));
        play.forget();
        play.client(client, INITIALIZED);
        let shown = play.is_asked(client);
        play.client(client, &result(&shown, answer));
        play.nobody_hears();
        assert_eq!(!play.dismissed.contains(&client), stays);
    }
    play.enter(4);
    let heard = play.heard(4);
    play.client(4, &error(&id_of(&heard[1]), -1));
    assert_eq!(
        play.dismissed,
        [3, 4],
        "one that cannot say is like no other"
    );
}

#[test]
fn a_class_without_roots_says_so() {
    let mut play = Play::new(class_of(&initialize_with("0", "2025-06-18", "{}")));
    play.join(1);
    play.client(1, &initialize_with("0", "2025-06-18", "{}"));
    play.forget();
    play.server(&list("0"));
    assert_eq!(refusal(&play.server_heard()[0]), ("0".into(), -32601));
    play.nobody_hears();
}

#[test]
fn whoever_leaves_without_an_answer_another_is_asked_or_the_server_is_told() {
    let mut play = Play::legacy(2);
    play.server(&list("5"));
    play.is_asked(1);
    play.is_asked(2);
    play.leave(1);
    let heard = play.heard(2);
    let shown = id_of(&heard[0]);
    assert_eq!(heard, [list(&shown)]);
    play.client(2, &result(&shown, HOME));
    assert_eq!(play.server_heard(), [result("5", HOME)]);

    play.server(&list("6"));
    play.is_asked(2);
    play.leave(2);
    let heard = play.server_heard();
    assert_eq!(refusal(&heard[0]), ("6".into(), -32603));
    assert_eq!(reason(&heard[0]), "client_gone");
    play.server(&list("7"));
    assert_eq!(reason(&play.server_heard()[0]), "client_gone");
}

#[test]
fn who_finds_nobody_else_must_still_fit_what_the_server_was_told() {
    let mut play = Play::legacy(1);
    asked(&mut play, HOME);
    play.leave(1);
    for (client, answer, stays) in [(2, AWAY, false), (3, HOME, true)] {
        play.enter(client);
        let heard = play.heard(client);
        play.client(client, &result(&id_of(&heard[1]), answer));
        assert_eq!(!play.dismissed.contains(&client), stays);
        play.leave(client);
    }
}

#[test]
fn who_changed_its_mind_is_dismissed_and_another_is_asked() {
    let mut play = Play::legacy(2);
    play.server(&list("0"));
    let (first, second) = (play.is_asked(1), play.is_asked(2));
    play.client(1, &result(&first, HOME));
    play.client(2, &result(&second, HOME));
    play.forget();

    play.server(&list("1"));
    let shown = play.is_asked(1);
    play.client(1, &result(&shown, AWAY));
    assert_eq!(play.dismissed, [1]);
    let shown = play.is_asked(2);
    play.nobody_hears();
    play.client(2, &result(&shown, HOME));
    assert_eq!(play.server_heard(), [result("1", HOME)]);

    // Alone, it may think what it likes.
    play.server(&list("2"));
    let shown = play.is_asked(2);
    play.client(2, &result(&shown, AWAY));
    assert_eq!(play.server_heard(), [result("2", AWAY)]);
    play.enter(3);
    let heard = play.heard(3);
    play.client(3, &result(&id_of(&heard[1]), AWAY));
    assert_eq!(play.dismissed, [1]);
}

#[test]
fn roots_that_change_are_told_by_who_is_alone_and_cost_others_their_place() {
    let changed = notice("notifications/roots/list_changed", "{}");
    let mut play = Play::legacy(1);
    asked(&mut play, HOME);
    play.client(1, &changed);
    assert_eq!(
        play.server_heard_in_lanes(),
        [(Lane::Of(ClientId(1)), changed.clone())]
    );
    play.enter(2);
    assert_eq!(
        play.heard(2).len(),
        1,
        "the reference is forgotten: nothing to compare"
    );
    play.client(2, &changed);
    assert_eq!(play.dismissed, [2]);
    play.nobody_hears();
    asked(&mut play, AWAY);
}

#[test]
fn roots_that_change_while_they_are_asked_for_are_the_reference_when_told() {
    let mut play = Play::legacy(1);
    play.server(&list("0"));
    let shown = play.is_asked(1);
    play.client(1, &notice("notifications/roots/list_changed", "{}"));
    play.client(1, &result(&shown, AWAY));
    play.forget();
    play.enter(2);
    let heard = play.heard(2);
    play.client(2, &result(&id_of(&heard[1]), HOME));
    assert_eq!(play.dismissed, [2]);
}

#[test]
fn an_error_is_passed_on_and_is_no_reference() {
    let mut play = Play::legacy(2);
    play.server(&list("0"));
    let (first, second) = (play.is_asked(1), play.is_asked(2));
    play.client(1, &error(&first, -32603));
    assert_eq!(play.server_heard(), [error("0", -32603)]);
    play.client(2, &result(&second, HOME));
    play.nobody_hears();
    assert_eq!(play.dismissed, [0; 0]);
}

/// Client 1 told its roots to the server, and client 2 is asked for its own: under this id.
fn a_newcomer(play: &mut Play) -> String {
    asked(play, HOME);
    play.enter(2);
    let heard = play.heard(2);
    play.forget();
    id_of(&heard[1])
}

#[test]
fn what_a_newcomer_says_waits_until_its_roots_are_compared() {
    let mut play = Play::legacy(1);
    let shown = a_newcomer(&mut play);
    let changed = notice("notifications/x", "{}");
    let said = [call("3", "two"), changed, call("4", "two")];
    for line in &said {
        play.client(2, line);
    }
    play.nobody_hears();
    assert_eq!(play.mux.pending_requests_of(ClientId(2)), 2);
    assert!(play.mux.queued_bytes(ClientId(2)) >= said.iter().map(String::len).sum());
    play.client(2, &request("9", "ping", "{}"));
    assert_eq!(play.heard(2), [result("9", "{}")], "a ping never waits");

    play.client(2, &result(&shown, HOME_RESPELLED));
    let heard = play.server_heard();
    let names: Vec<_> = heard.iter().map(|it| it.contains("tools/call")).collect();
    assert_eq!(names, [true, false, true], "in order: {heard:?}");
    assert_eq!(play.mux.queued_bytes(ClientId(2)), 0);
    assert_eq!(play.mux.next_timeout(), None);
}

#[test]
fn what_a_newcomer_cancels_meanwhile_nobody_hears_of() {
    let mut play = Play::legacy(2);
    let asked = play.asks(2, &call("3", "two"));
    play.asks(1, &call("3", "one"));
    play.server(&list("0"));
    let (first, second) = (play.is_asked(1), play.is_asked(2));
    play.client(2, &call("4", "two"));
    play.client(2, &cancel("4"));
    play.nobody_hears();
    assert_eq!(play.mux.queued_bytes(ClientId(2)), 0);
    play.client(2, &cancel("3"));
    assert_eq!(play.server_heard(), [cancel(&asked)], "of this it knows");
    play.client(1, &result(&first, HOME));
    play.forget();
    play.client(2, &result(&second, HOME));
    assert_eq!(play.server_heard(), [result("0", HOME)]);
    play.nobody_hears();
}

#[test]
fn of_a_newcomer_that_goes_solo_the_server_has_heard_nothing() {
    let mut play = Play::legacy(1);
    let shown = a_newcomer(&mut play);
    play.client(2, &call("7", "two"));
    play.client(2, &call("\"x\"", "two"));
    play.client(2, &result(&shown, AWAY));
    play.nobody_hears();
    assert_eq!(play.dismissed, [2]);
    assert_eq!(play.unsent, ["7", "\"x\""]);
}

#[test]
fn a_newcomer_that_tells_no_roots_goes_solo_in_the_end_with_all_it_said() {
    let mut play = Play::legacy(1);
    a_newcomer(&mut play);
    play.client(2, &call("7", "two"));
    let due = play
        .mux
        .next_timeout()
        .expect("it is not waited for for ever");
    play.tick(due);
    play.nobody_hears();
    assert_eq!(
        (&play.dismissed[..], &play.unsent[..]),
        (&[2][..], &["7".to_owned()][..])
    );
    assert_eq!(play.mux.next_timeout(), None);
}

#[test]
fn a_newcomer_that_will_tell_no_roots_goes_solo_with_all_it_said() {
    let mut play = Play::legacy(1);
    a_newcomer(&mut play);
    play.client(2, &call("7", "two"));
    play.mux.handle_client_eof(ClientId(2), play.now);
    play.tick(play.now);
    play.nobody_hears();
    assert_eq!(play.dismissed, [2]);
    assert_eq!(play.unsent, ["7"]);
}

#[test]
fn the_only_one_the_server_works_for_tells_its_roots() {
    for first in [1, 2] {
        let mut play = Play::legacy(2);
        play.asks(2, &call("7", "two"));
        play.server(&list("0"));
        let heard = play.heard(2);
        let (one, two) = (play.is_asked(1), id_of(&heard[0]));
        assert_eq!(heard, [list(&two)], "the server's own question");
        let answers = [(1, &one, HOME), (2, &two, AWAY)];
        let (now, then) = (answers[first - 1], answers[2 - first]);
        for (client, shown, answer) in [now, then] {
            play.client(client, &result(shown, answer));
        }
        assert_eq!(play.server_heard(), [result("0", AWAY)]);
        assert_eq!(play.dismissed, [1]);
    }
}

/// Both have a call in flight, and the server asks for roots: what each of them is asked.
fn both_at_work(play: &mut Play) -> (String, String) {
    play.asks(1, &call("7", "one"));
    play.asks(2, &call("7", "two"));
    play.server(&list("0"));
    (play.is_asked(1), play.is_asked(2))
}

#[test]
fn the_server_hears_roots_when_all_it_works_for_have_told_the_same() {
    let mut play = Play::legacy(3);
    let (first, second) = both_at_work(&mut play);
    play.client(1, &result(&first, HOME));
    play.nobody_hears_but(3);
    play.client(1, &result(&first, AWAY));
    play.nobody_hears_but(3);
    play.client(2, &result(&second, HOME_RESPELLED));
    let answer = (Lane::Of(ClientId(1)), result("0", HOME));
    assert_eq!(play.server_heard_in_lanes(), [answer]);
    assert_eq!(
        play.dismissed, [0; 0],
        "the third is compared before it asks anything"
    );
}

#[test]
fn the_server_gets_an_error_where_one_it_works_for_has_other_roots() {
    for (first_to_tell, answer) in [(1, AWAY), (2, AWAY), (1, "{}"), (2, "{}")] {
        let mut play = Play::legacy(2);
        let (first, second) = both_at_work(&mut play);
        if first_to_tell == 1 {
            play.client(1, &result(&first, HOME));
            play.nobody_hears();
        }
        play.client(2, &result(&second, answer));
        if first_to_tell == 2 {
            play.nobody_hears();
            play.client(1, &result(&first, HOME));
        }
        let heard = play.server_heard();
        assert_eq!(reason(&heard[0]), "ambiguous_client", "{heard:?}");
        assert!(heard.iter().all(|line| !line.contains("file://")));
        assert_eq!(play.dismissed, [2]);
        // The next time there is one answer.
        play.server(&list("1"));
        let shown = play.is_asked(1);
        play.client(1, &result(&shown, HOME));
        assert_eq!(play.server_heard(), [result("1", HOME)]);
    }
}

#[test]
fn the_server_gets_an_error_where_one_it_works_for_tells_no_roots() {
    for how in ["leaves", "is silent", "is late", "cannot say"] {
        let mut play = Play::legacy(2);
        let (first, second) = both_at_work(&mut play);
        play.client(1, &result(&first, HOME));
        play.nobody_hears();
        match how {
            "leaves" => play.leave(2),
            "is silent" => {
                play.mux.handle_client_eof(ClientId(2), play.now);
                play.tick(play.now);
            }
            "is late" => play.tick(play.mux.next_timeout().expect("it is waited for")),
            _ => play.client(2, &error(&second, -1)),
        }
        assert_eq!(reason(&play.server_heard()[0]), "ambiguous_client", "{how}");
    }
}

#[test]
fn whoever_the_server_works_for_alone_takes_its_question_along() {
    for how in ["leaves", "differs"] {
        let mut play = Play::legacy(2);
        play.asks(2, &call("7", "two"));
        play.server(&list("2"));
        let shown = play.is_asked(2);
        let other = play.is_asked(1);
        match how {
            "leaves" => play.leave(2),
            _ => {
                play.client(2, &result(&shown, HOME));
                play.client(1, &result(&other, HOME));
                play.forget();
                play.server(&list("3"));
                let shown = play.is_asked(2);
                play.client(2, &result(&shown, AWAY));
                assert_eq!(play.dismissed, [2]);
            }
        }
        let heard = play.server_heard();
        assert_eq!(reason(&heard[0]), "client_gone", "{heard:?}");
        assert_eq!(play.heard(1), [""; 0], "{how}");
    }
}

#[test]
fn a_client_that_never_says_initialized_is_compared_before_its_first_request() {
    for (answer, stays) in [(HOME, true), (AWAY, false)] {
        let mut play = Play::legacy(1);
        asked(&mut play, HOME);
        play.join(2);
        play.client(2, &initialize("0"));
        play.forget();
        play.client(2, &call("7", "two"));
        let shown = play.is_asked(2);
        play.nobody_hears();
        play.client(2, &result(&shown, answer));
        assert_eq!(play.server_heard().len(), usize::from(stays));
        assert_eq!(play.dismissed.is_empty(), stays);
        assert_eq!(play.unsent.is_empty(), stays);
    }
}

#[test]
fn a_client_that_never_says_initialized_and_is_at_work_is_compared() {
    let mut play = Play::legacy(1);
    play.join(2);
    play.client(2, &initialize("0"));
    play.forget();
    let (first, second) = both_at_work(&mut play);
    play.client(1, &result(&first, HOME));
    play.nobody_hears();
    play.client(2, &result(&second, AWAY));
    assert_eq!(reason(&play.server_heard()[0]), "ambiguous_client");
    assert_eq!(play.dismissed, [2]);
}

#[test]
fn nobody_shares_roots_that_are_too_long_to_be_compared() {
    let long = format!(
        r#"{{"roots":[{{"uri":"file:///{}"}}]}}"#,
        "x".repeat(1 << 20)
    );
    let mut play = Play::legacy(1);
    asked(&mut play, &long);
    for answer in [HOME, &long] {
        let client = 2 + play.dismissed.len() as u64;
        play.enter(client);
        let heard = play.heard(client);
        play.client(client, &result(&id_of(&heard[1]), answer));
        assert!(play.dismissed.contains(&client));
    }
    assert_eq!(play.mux.clients(), 1);
}

#[test]
fn what_the_server_cancels_while_others_are_asked_is_answered_by_nobody() {
    let mut play = Play::legacy(2);
    let (first, second) = both_at_work(&mut play);
    play.client(1, &result(&first, HOME));
    play.server(&cancel("0"));
    play.client(2, &result(&second, HOME));
    play.nobody_hears();
    assert!(play.dismissed.is_empty());
}

#[test]
fn who_told_its_roots_first_waits_for_what_the_server_is_told() {
    for (answer, stays) in [(HOME, true), (AWAY, false)] {
        let mut play = Play::legacy(2);
        play.server(&list("0"));
        let (first, second) = (play.is_asked(1), play.is_asked(2));
        play.client(2, &result(&second, answer));
        play.client(2, &call("7", "two"));
        play.nobody_hears();
        play.client(1, &result(&first, HOME));
        let heard = play.server_heard();
        assert_eq!(heard.len(), if stays { 2 } else { 1 }, "{heard:?}");
        assert_eq!(play.dismissed.is_empty(), stays);
        assert_eq!(play.unsent.is_empty(), stays);
    }
}

#[test]
fn what_costs_a_newcomer_its_place_leaves_the_rest_unheard() {
    let mut play = Play::legacy(1);
    let shown = a_newcomer(&mut play);
    play.client(2, &call("1", "two"));
    play.client(2, &notice("notifications/roots/list_changed", "{}"));
    play.client(2, &call("2", "two"));
    play.client(2, &result(&shown, HOME));
    assert_eq!(play.dismissed, [2]);
    assert_eq!(play.unsent, ["2"], "the first one the server has heard");
}

#[test]
fn an_answer_that_changes_hands_is_not_taken_for_what_waited_for_it() {
    let mut play = Play::legacy(1);
    let shown = a_newcomer(&mut play);
    play.client(2, &call("7", "two"));
    let answer = Owned::from(result(&shown, HOME).into_bytes());
    play.mux
        .handle_owned_client_line(ClientId(2), answer, &Scan::default(), play.now);
    play.tick(play.now);
    let heard = play.server_heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!(heard[0], call(&id_of(&heard[0]), "two"));
}

#[test]
fn an_id_that_is_taken_is_refused_at_once_though_the_rest_waits() {
    let mut play = Play::legacy(2);
    play.client(2, &call("1", "b"));
    let sent = id_of(&play.server_heard()[0]);
    play.asks(1, &call("1", "a"));
    play.server(&list("0"));
    let first = play.is_asked(1);
    let second = play.is_asked(2);
    // In flight, and waiting here: the one who asked twice hears it now, and the first call stays what it was.
    play.client(2, &call("2", "b"));
    for taken in ["1", "2"] {
        play.client(2, &call(taken, "b"));
        assert_eq!(refusal(&play.heard(2)[0]).1, -32600);
    }
    play.nobody_hears();
    // So it is plain which of them a cancellation means.
    play.client(2, &cancel("1"));
    assert_eq!(play.server_heard(), [cancel(&sent)]);
    play.client(2, &cancel("2"));
    play.client(2, &call("2", "b"));
    play.nobody_hears();
    play.client(1, &result(&first, HOME));
    play.forget();
    play.client(2, &result(&second, HOME));
    let heard = play.server_heard();
    let sent = id_of(&heard[1]);
    assert_eq!(heard, [result("0", HOME), call(&sent, "b")]);
    play.server(&result(&sent, "{}"));
    assert_eq!(play.heard(2), [result("2", "{}")]);
}

#[test]
fn equal_roots_of_many_clients_are_kept_once() {
    let long = format!(
        r#"{{"roots":[{{"uri":"file:///{}"}}]}}"#,
        "x".repeat(60_000)
    );
    let mut play = Play::legacy(1);
    asked(&mut play, &long);
    let alone = play.mux.kept_bytes();
    assert!(alone >= 60_000);
    for client in 2..50 {
        play.enter(client);
        let heard = play.heard(client);
        play.client(client, &result(&id_of(&heard[1]), &long));
    }
    assert!(play.dismissed.is_empty());
    assert_eq!(play.mux.kept_bytes(), alone);
}
