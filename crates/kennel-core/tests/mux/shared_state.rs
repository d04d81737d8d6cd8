//! Subscriptions: the server has one for all clients.

use kennel_core::mux::{Class, ClientId, Lane, Note, Output, Unaddressed};

use crate::play::{Play, call, cancel, error, id_of, notice, refusal, request, result};

fn subscribe(id: &str, uri: &str) -> String {
    request(id, "resources/subscribe", &format!(r#"{{"uri":"{uri}"}}"#))
}

fn unsubscribe(id: &str, uri: &str) -> String {
    request(
        id,
        "resources/unsubscribe",
        &format!(r#"{{"uri":"{uri}"}}"#),
    )
}

fn updated(uri: &str) -> String {
    notice(
        "notifications/resources/updated",
        &format!(r#"{{"uri":"{uri}","x":1.0}}"#),
    )
}

/// A client subscribes, and the server agrees.
fn subscribed(play: &mut Play, client: u64, uri: &str) {
    play.client(client, &subscribe("\"s\"", uri));
    if let Some(line) = play.server_heard().first() {
        play.server(&result(&id_of(line), "{}"));
    }
    assert_eq!(play.heard(client), [result("\"s\"", "{}")]);
}

#[test]
fn the_first_subscribes_and_the_last_unsubscribes() {
    let mut play = Play::legacy(2);
    play.client(1, &subscribe("1", "a"));
    let heard = play.server_heard_in_lanes();
    let minted = id_of(&heard[0].1);
    assert_eq!(heard, [(Lane::Front, subscribe(&minted, "a"))]);
    play.server(&result(&minted, r#"{"x":1}"#));
    assert_eq!(play.heard(1), [result("1", r#"{"x":1}"#)]);

    play.client(2, &subscribe("1", r"\u0061"));
    assert_eq!(play.heard(2), [result("1", "{}")]);
    play.client(1, &unsubscribe("2", "a"));
    assert_eq!(play.heard(1), [result("2", "{}")]);
    play.nobody_hears();

    play.client(2, &unsubscribe("2", "a"));
    let heard = play.server_heard_in_lanes();
    let minted = id_of(&heard[0].1);
    assert_eq!(heard, [(Lane::Front, unsubscribe(&minted, "a"))]);
    play.server(&updated("a"));
    play.nobody_hears();
    play.server(&result(&minted, r#"{"y":1}"#));
    assert_eq!(play.heard(2), [result("2", r#"{"y":1}"#)]);
}

#[test]
fn who_subscribes_while_another_does_waits_for_the_outcome() {
    let mut play = Play::legacy(3);
    let minted = play.asks(1, &subscribe("1", "a"));
    play.client(2, &subscribe("5", "a"));
    play.nobody_hears();
    play.server(&error(&minted, -32002));
    assert_eq!(play.heard(1), [error("1", -32002)]);
    assert_eq!(play.heard(2), [error("5", -32002)]);

    let minted = play.asks(2, &subscribe("6", "a"));
    play.client(3, &subscribe("6", "a"));
    play.server(&result(&minted, "{}"));
    assert_eq!((play.heard(2).len(), play.heard(3).len()), (1, 1));
    play.server(&updated("a"));
    assert_eq!(play.heard(1), [""; 0]);
    assert_eq!(play.heard(2), [updated("a")]);
    assert_eq!(play.heard(3), [updated("a")]);
}

#[test]
fn nobody_ends_what_another_subscribed_to() {
    let mut play = Play::legacy(2);
    subscribed(&mut play, 1, "a");
    play.client(2, &unsubscribe("1", "a"));
    assert_eq!(play.heard(2), [result("1", "{}")]);
    play.nobody_hears();
    play.server(&updated("a"));
    assert_eq!(play.heard(1), [updated("a")]);
    play.nobody_hears();
}

#[test]
fn a_client_that_leaves_releases_what_nobody_else_wants() {
    let mut play = Play::legacy(2);
    subscribed(&mut play, 1, "a");
    subscribed(&mut play, 1, "b");
    subscribed(&mut play, 2, "b");
    play.leave(1);
    let heard = play.server_heard_in_lanes();
    assert_eq!(
        heard,
        [(Lane::Front, unsubscribe(&id_of(&heard[0].1), "a"))]
    );
    play.server(&result(&id_of(&heard[0].1), "{}"));
    play.nobody_hears();
    play.leave(2);
    assert_eq!(play.server_heard().len(), 1);
}

#[test]
fn subscriptions_of_a_client_that_left_are_ended_64_at_a_time() {
    let mut play = Play::legacy(2);
    for at in 100..300 {
        subscribed(&mut play, 1, &format!("a{at}"));
    }
    play.leave(1);
    let mut ended = play.server_heard();
    assert_eq!(ended.len(), 64);
    // A client that waits for a response is not confused with the requests of the mux.
    assert!(!play.mux.is_pending());
    // One of those that wait is wanted again: the server hears a subscription, and no end of it.
    subscribed(&mut play, 2, "a299");
    let mut next = 0;
    while next < ended.len() {
        play.server(&result(&id_of(&ended[next]), "{}"));
        next += 1;
        ended.extend(play.server_heard());
        assert!(ended.len() - next <= 64);
    }
    assert_eq!(ended.len(), 199);
    assert!(!ended.iter().any(|line| line.contains("a299")));
    play.server(&updated("a299"));
    assert_eq!(play.heard(2), [updated("a299")]);
}

#[test]
fn who_leaves_or_cancels_while_it_subscribes_is_subscribed_to_nothing() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &subscribe("1", "a"));
    play.client(1, &cancel("1"));
    let heard = play.server_heard();
    assert_eq!(heard, [unsubscribe(&id_of(&heard[0]), "a")]);
    // Before the old ones are answered, another subscribes: the server hears that after them.
    let anew = play.asks(2, &subscribe("1", "a"));
    play.server(&result(&minted, "{}"));
    play.nobody_hears();
    play.server(&error(&anew, -1));
    assert_eq!(play.heard(2), [error("1", -1)]);
    play.asks(2, &subscribe("2", "a"));
    play.leave(2);
    assert_eq!(play.server_heard().len(), 1);
}

#[test]
fn cancelling_what_was_taken_back_takes_nothing_from_what_followed() {
    let mut play = Play::legacy(2);
    play.client(1, &subscribe("1", "a"));
    play.client(1, &unsubscribe("2", "a"));
    play.forget();
    let anew = play.asks(1, &subscribe("3", "a"));
    play.client(1, &cancel("1"));
    play.nobody_hears();
    play.server(&result(&anew, "{}"));
    assert_eq!(play.heard(1), [result("3", "{}")]);
    play.server(&updated("a"));
    assert_eq!(play.heard(1), [updated("a")]);
}

#[test]
fn the_answer_to_what_was_taken_back_is_not_the_answer_to_what_followed() {
    let mut play = Play::legacy(2);
    let first = play.asks(1, &subscribe("1", "a"));
    play.client(1, &unsubscribe("2", "a"));
    play.forget();
    let anew = play.asks(1, &subscribe("3", "a"));
    play.server(&result(&first, "{}"));
    assert_eq!(play.heard(1), [result("1", "{}")]);
    play.client(2, &subscribe("1", "a"));
    play.nobody_hears();
    play.server(&error(&anew, -1));
    assert_eq!(play.heard(1), [error("3", -1)]);
    assert_eq!(play.heard(2), [error("1", -1)]);
}

#[test]
fn what_was_taken_back_does_not_stand_for_what_is_cancelled() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &subscribe("1", "a"));
    for line in [
        subscribe("1", "a"),
        unsubscribe("2", "a"),
        subscribe("3", "a"),
        cancel("3"),
    ] {
        play.client(2, &line);
    }
    play.forget();
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(2), [result("1", "{}")]);
    play.forget();
    play.server(&updated("a"));
    assert_eq!(play.heard(1), [updated("a")]);
    play.nobody_hears();
}

#[test]
fn of_two_subscriptions_to_one_resource_one_may_be_cancelled() {
    let mut play = Play::legacy(1);
    let minted = play.asks(1, &subscribe("1", "a"));
    play.client(1, &subscribe("2", "a"));
    play.client(1, &cancel("1"));
    play.nobody_hears();
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("2", "{}")]);
    play.server(&updated("a"));
    assert_eq!(play.heard(1), [updated("a")]);
}

#[test]
fn an_update_is_told_to_who_subscribed_to_it_or_to_what_it_is_part_of() {
    let mut play = Play::legacy(4);
    subscribed(&mut play, 1, "a://h/x");
    subscribed(&mut play, 2, "a://h/x/");
    subscribed(&mut play, 3, "a://h/x/1");
    subscribed(&mut play, 4, "b:x");
    for (uri, hear) in [
        ("a://h/x", &[1][..]),
        ("a://h/x/", &[2]),
        ("a://h/x/1", &[3]),
        ("a://h/x/1/2", &[1, 2, 3]),
        ("a://h/x/1?q=2", &[1, 2, 3]),
        ("a://h/x#part", &[1]),
        ("a://h/x/12", &[1, 2]),
        ("a://h/xy", &[]),
        ("b:x/1", &[4]),
        ("a://h", &[]),
        ("A://H/x/12", &[1, 2]),
        ("a://h/X/12", &[]),
        ("a://xy", &[]),
        ("c://private", &[]),
        ("", &[]),
    ] {
        play.server(&updated(uri));
        for client in 1..=4 {
            let expected = vec![updated(uri); usize::from(hear.contains(&client))];
            assert_eq!(play.heard(client), expected, "{client} of {uri}");
        }
    }
}

#[test]
fn levels_and_progress_tokens_of_odd_shapes_do_not_reach_a_shared_server() {
    let mut play = Play::legacy(2);
    for level in [r#""EMERGENCY""#, r#"["emergency"]"#, "7", "null"] {
        let params = format!(r#"{{"level":{level}}}"#);
        play.client(2, &request("1", "logging/setLevel", &params));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
        play.nobody_hears();
    }
    for token in ["[3]", "{}", "true"] {
        let params = format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#);
        play.client(2, &request("1", "tools/call", &params));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
        play.nobody_hears();
    }
    let none = r#"{"_meta":{"progressToken":null}}"#;
    play.asks(2, &request("1", "tools/call", none));
}

#[test]
fn what_changes_the_server_for_others_says_nothing_else() {
    let mut play = Play::legacy(2);
    let odd = [
        ("resources/subscribe", r#"{"uri":"a://1","bad":1}"#),
        ("logging/setLevel", r#"{"level":"info","bad":1}"#),
    ];
    for (method, params) in odd {
        play.client(2, &request("1", method, params));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
        play.nobody_hears();
        let good = params.replace(r#","bad":1"#, r#","_meta":{}"#);
        let minted = play.asks(1, &request("1", method, &good));
        play.server(&result(&minted, "{}"));
        assert_eq!(play.heard(1), [result("1", "{}")]);
    }
}

/// Other sessions wait meanwhile. A search that grows with the square of the length takes days for this.
#[test]
fn a_long_uri_of_an_update_costs_no_more_than_its_length() {
    let mut play = Play::legacy(2);
    let long = format!("a:///{}", "/".repeat(4 << 20));
    play.server(&updated(&long));
    play.nobody_hears();
    subscribed(&mut play, 1, "a:///x");
    subscribed(&mut play, 1, "a:////");
    let below = format!("a:///x{}é", "/é".repeat(1 << 20));
    for (uri, hears) in [(&long, false), (&below, true)] {
        play.server(&updated(uri));
        assert_eq!(play.heard(1).len(), usize::from(hears));
    }
}

#[test]
fn until_the_server_accepts_a_subscription_only_its_very_uri_is_told() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &subscribe("9", "a://h/x"));
    play.server(&updated("a://h/x/private"));
    play.nobody_hears();
    play.server(&updated("a://h/x"));
    assert_eq!(play.heard(1), [updated("a://h/x")]);
    play.server(&result(&minted, "{}"));
    play.forget();
    play.server(&updated("a://h/x/private"));
    assert_eq!(play.heard(1), [updated("a://h/x/private")]);
}

#[test]
fn who_subscribes_to_a_scheme_or_a_host_hears_nothing_of_what_is_below() {
    let mut play = Play::legacy(2);
    for (nth, uri) in [
        "note:",
        "note://",
        "note:///",
        "note://inbox",
        "file:///",
        "https:",
        "https://h/",
    ]
    .iter()
    .enumerate()
    {
        let minted = play.asks(2, &subscribe(&nth.to_string(), uri));
        play.server(&result(&minted, "{}"));
    }
    play.forget();
    for uri in [
        "note://inbox/1",
        "note:1",
        "file:///home/a",
        "https://h/x?case=1",
        "https://h/?q",
    ] {
        play.server(&updated(uri));
        play.nobody_hears();
    }
    play.server(&updated("file:///"));
    assert_eq!(
        play.heard(2),
        [updated("file:///")],
        "what it named it hears"
    );
}

#[test]
fn scheme_and_host_are_the_same_in_any_case() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &subscribe("1", "NOTE://Ann@Inbox/One"));
    play.server(&result(&minted, "{}"));
    play.forget();
    // Its own update, as a server spells it that normalises.
    let line = updated("note://Ann@inbox/One");
    play.server(&line);
    assert_eq!(play.heard(1), [line]);
    for other in ["note://Ann@inbox/one", "note://ann@inbox/One"] {
        play.server(&updated(other));
        play.nobody_hears();
    }
    // Another one's is the same subscription, and its end ends nothing while the first wants it.
    play.client(2, &subscribe("1", "note://Ann@INBOX/One"));
    play.client(2, &unsubscribe("2", "noTe://Ann@inbox/One"));
    assert_eq!(play.heard(2), [result("1", "{}"), result("2", "{}")]);
    play.nobody_hears();
    // The server hears the end of what it heard begin.
    play.client(2, &subscribe("3", "note://Ann@inbox/One"));
    play.client(1, &unsubscribe("2", "NOTE://Ann@Inbox/One"));
    play.forget();
    play.client(2, &unsubscribe("4", "note://Ann@inbox/One"));
    let heard = play.server_heard();
    assert_eq!(
        heard,
        [unsubscribe(&id_of(&heard[0]), "NOTE://Ann@Inbox/One")]
    );

    subscribed(&mut play, 1, "A://B");
    play.forget();
    play.leave(1);
    let heard = play.server_heard();
    assert_eq!(heard, [unsubscribe(&id_of(&heard[0]), "A://B")]);
}

#[test]
fn nobody_ends_what_it_did_not_subscribe_to_in_whatever_spelling() {
    let mut play = Play::legacy(2);
    subscribed(&mut play, 1, "note://inbox/1");
    play.forget();
    for uri in [
        "NOTE://Inbox/1",
        "note://inbox/%31",
        "note://inbox/./1",
        "other",
    ] {
        play.client(2, &unsubscribe("1", uri));
        assert_eq!(play.heard(2), [result("1", "{}")], "{uri}");
        play.nobody_hears();
    }
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        for params in [r#"{"uri":["note://inbox/1"]}"#, r#"{"uri":7}"#, "{}", "[]"] {
            play.client(2, &request("1", method, params));
            assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
            play.nobody_hears();
        }
    }
    // A client that is alone with its server says what it likes.
    let mut play = Play::new(Class::private());
    play.join(1);
    play.asks(1, &unsubscribe("1", "x"));
    play.asks(1, &request("2", "resources/subscribe", r#"{"uri":7}"#));
    play.asks(1, &request("3", "resources/unsubscribe", r#"{"uri":7}"#));
}

#[test]
fn an_update_that_no_subscription_matches_is_told_to_nobody() {
    let mut play = Play::legacy(2);
    subscribed(&mut play, 1, "a://1");
    subscribed(&mut play, 2, "b://1");
    let minted = play.asks(1, &unsubscribe("9", "a://1"));
    play.server(&result(&minted, "{}"));
    play.forget();
    for uri in ["a://1", "a://private/zzz"] {
        play.server(&updated(uri));
        play.nobody_hears();
        let note = Note::Unaddressed(Unaddressed::Update);
        assert_eq!(play.notes(), [note]);
    }

    // A client that is alone with its server hears all of it.
    let mut play = Play::new(Class::private());
    play.join(1);
    play.server(&updated("a://1"));
    assert_eq!(play.heard(1), [updated("a://1")]);
}

#[test]
fn a_long_line_for_several_clients_is_one_line_to_write() {
    let mut play = Play::legacy(3);
    let text = "x".repeat(kennel_core::mux::MIN_SHARED_BYTES);
    let note = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/flood","params":{{"text":"{text}"}}}}"#
    );
    play.mux.handle_server_line(note.as_bytes(), play.now);
    let all = vec![ClientId(1), ClientId(2), ClientId(3)];
    let line = note.clone().into_bytes().into();
    assert_eq!(
        play.mux.poll_output(),
        Some(Output::ToClients { clients: all, line })
    );
    assert_eq!(play.mux.poll_output(), None);
    // A short one is copied; one for a single client is that client's.
    let short = r#"{"jsonrpc":"2.0","method":"notifications/flood"}"#;
    play.mux.handle_server_line(short.as_bytes(), play.now);
    for _ in 0..3 {
        assert!(matches!(
            play.mux.poll_output(),
            Some(Output::ToClient { .. })
        ));
    }
    let mut alone = Play::legacy(1);
    alone.mux.handle_server_line(note.as_bytes(), alone.now);
    assert!(matches!(
        alone.mux.poll_output(),
        Some(Output::ToClient { .. })
    ));
}

#[test]
fn each_message_of_a_long_batch_for_several_clients_is_one_line_to_write() {
    let mut play = Play::legacy(3);
    let all = vec![ClientId(1), ClientId(2), ClientId(3)];
    // Each is short: together they are long.
    let note = |nth: usize| notice("notifications/flood", &format!(r#"{{"n":"{nth:01000}"}}"#));
    let notes: Vec<String> = (0..100).map(note).collect();
    let batch = format!("[{}]", notes.join(","));
    play.mux.handle_server_line(batch.as_bytes(), play.now);
    for note in notes {
        let (clients, line) = (all.clone(), note.into_bytes().into());
        assert_eq!(
            play.mux.poll_output(),
            Some(Output::ToClients { clients, line })
        );
    }
    assert_eq!(play.mux.poll_output(), None);
}

#[test]
fn a_notification_with_an_id_and_a_request_without_one_go_no_further() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    let params = format!(r#"{{"requestId":{minted}}}"#);
    for method in ["notifications/cancelled", "notifications\\/anything"] {
        play.client(2, &request("9", method, &params));
        assert_eq!(refusal(&play.heard(2)[0]), ("9".into(), -32601), "{method}");
        play.nobody_hears();
        assert_eq!(play.notes(), [Note::NotificationWithId(ClientId(2))]);
    }
    for method in [
        "resources/unsubscribe",
        "initialize",
        "tools/call",
        "tasks/cancel",
        "ping",
    ] {
        play.client(2, &notice(method, r#"{"uri":"a"}"#));
        play.nobody_hears();
        assert_eq!(play.notes(), [Note::RequestWithoutId(ClientId(2))]);
    }
    let other = notice("vendor/event", "{}");
    play.client(2, &other);
    assert_eq!(play.server_heard(), [other]);
}

#[test]
fn a_short_line_for_many_clients_is_one_line_to_write() {
    let mut play = Play::legacy(200);
    let note = notice("notifications/flood", &format!(r#"{{"n":"{:0500}"}}"#, 0));
    play.mux.handle_server_line(note.as_bytes(), play.now);
    let action = play.mux.poll_output();
    assert!(
        matches!(&action, Some(Output::ToClients { clients, .. }) if clients.len() == 200),
        "{action:?}"
    );
    assert_eq!(play.mux.poll_output(), None);
}

#[test]
fn a_batch_of_a_server_has_fewer_messages_the_more_clients_get_each() {
    let batch = |count: usize| {
        let note = notice("notifications/flood", "{}");
        format!("[{}]", vec![note; count].join(","))
    };
    for (clients, count, passes) in [(3, 9_000, true), (500, 400, true), (500, 401, false)] {
        let mut play = Play::legacy(clients);
        play.server(&batch(count));
        let heard = play.heard(1).len();
        assert_eq!(heard, if passes { count } else { 0 }, "{clients} {count}");
    }
}
