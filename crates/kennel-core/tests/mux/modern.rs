//! The modern era: no handshake, and every request says all.

use kennel_core::mux::{Class, ClientId, Note, Unaddressed};

use crate::play::{
    ENVELOPE, Play, call, cancel, error, id_of, initialize, modern, notice, progress, refusal,
    request, result,
};

fn of_subscription(method: &str, id: &str) -> String {
    let params =
        format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"uri":"a"}}"#);
    notice(method, &params)
}

fn logging(id: &str) -> String {
    let params = format!(r#"{{"_meta":{{{ENVELOPE},"io.modelcontextprotocol/logLevel":"info"}}}}"#);
    request(id, "tools/call", &params)
}

#[test]
fn a_modern_server_hears_modern_requests_only() {
    let mut play = Play::modern(1);
    play.client(1, &call("2", "a"));
    assert_eq!(refusal(&play.heard(1)[0]), ("2".into(), -32602));
    let broken = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
    play.client(1, &request("3", "tools/call", broken));
    assert_eq!(refusal(&play.heard(1)[0]), ("3".into(), -32602));
    play.nobody_hears();
    let minted = play.asks(1, &modern("4", "tools/call", ""));
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("4", "{}")]);
}

#[test]
fn methods_that_the_modern_era_removed_are_answered_by_the_server() {
    let mut play = Play::modern(1);
    for line in [
        request("5", "ping", "{}"),
        modern("5", "ping", ""),
        initialize("5"),
    ] {
        let minted = play.asks(1, &line);
        play.server(&error(&minted, -32601));
        assert_eq!(play.heard(1), [error("5", -32601)]);
    }
    assert!(play.mux.accepts_clients());
    let minted = play.asks(1, &initialize("6"));
    play.server(&error(&minted, -32022));
    assert_eq!(play.heard(1), [error("6", -32022)]);
}

#[test]
fn nobody_turns_a_modern_server_that_others_use_into_a_legacy_one() {
    let mut play = Play::modern(2);
    play.client(1, &initialize("1"));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32601));
    play.nobody_hears();

    // A server that accepts it may speak the legacy era from now on.
    play.leave(2);
    let minted = play.asks(1, &initialize("2"));
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("2", "{}")]);
    assert_eq!(play.dismissed, [1]);
    assert!(!play.mux.accepts_clients());
}

#[test]
fn nobody_joins_a_modern_server_that_may_turn_into_a_legacy_one() {
    for (accepts, is_cancelled) in [(true, false), (true, true), (false, false)] {
        let mut play = Play::modern(1);
        let minted = play.asks(1, &initialize("2"));
        assert!(!play.mux.accepts_clients());
        assert_eq!(play.mux.ambiguous(), Some("initialize"));
        if is_cancelled {
            play.client(1, &cancel("2"));
        }
        // One that was already on its way.
        play.join(2);
        play.client(2, &modern("1", "tools/call", ""));
        let answer = match accepts {
            true => result(&minted, "{}"),
            false => error(&minted, -32601),
        };
        play.server(&answer);
        assert_eq!(play.mux.accepts_clients(), !accepts);
        let gone: &[u64] = if accepts { &[1, 2] } else { &[] };
        assert_eq!(play.dismissed, gone);
    }
}

#[test]
fn the_server_is_discovered_once() {
    let mut play = Play::modern(2);
    assert_eq!(play.mux.knows_discover(), None);
    let minted = play.asks(1, &modern("1", "server/discover", ""));
    play.client(2, &modern("1", "server/discover", ""));
    play.nobody_hears();
    play.server(&result(&minted, r#"{"ttlMs":0}"#));
    assert_eq!(play.heard(1), [result("1", r#"{"ttlMs":0}"#)]);
    assert_eq!(play.heard(2), [result("1", r#"{"ttlMs":0}"#)]);
    play.client(2, &modern("2", "server/discover", ""));
    assert_eq!(play.heard(2), [result("2", r#"{"ttlMs":0}"#)]);
    assert_eq!(play.mux.knows_discover(), Some(true));
    let other = modern("3", "server/discover", "").replace("2026-07-28", "2027-01-01");
    play.asks(2, &other);
}

/// What one session asks in its own way is neither answered to another nor teaches what the server knows.
#[test]
fn an_odd_discover_is_its_askers_alone() {
    for odd in [r#","x":1"#, r#","cursor":"1""#] {
        let mut play = Play::modern(2);
        let asked = play.asks(2, &modern("1", "server/discover", odd));
        let good = play.asks(1, &modern("1", "server/discover", ""));
        play.server(&error(&asked, -32602));
        assert_eq!(play.heard(2), [error("1", -32602)]);
        assert_eq!(play.mux.knows_discover(), None);
        play.server(&result(&good, "{}"));
        assert_eq!(play.heard(1), [result("1", "{}")]);
        assert_eq!(play.mux.knows_discover(), Some(true));
        play.asks(2, &modern("2", "server/discover", odd));
    }
    // Who asks is part of the question: the answer may be about that one.
    let mut play = Play::modern(2);
    let named = |name: &str| {
        let info =
            format!(r#""_meta":{{"io.modelcontextprotocol/clientInfo":{{"name":"{name}"}},"#);
        modern("1", "server/discover", "").replace(r#""_meta":{"#, &info)
    };
    let one = play.asks(1, &named("one"));
    play.server(&result(&one, r#"{"hello":"one"}"#));
    play.forget();
    play.asks(2, &named("two"));
}

#[test]
fn a_server_that_does_not_know_discover_is_known() {
    for (code, knows) in [(-32601, false), (-32602, false), (-32022, true)] {
        let mut play = Play::new(Class::private());
        play.join(1);
        let minted = play.asks(1, &modern("1", "server/discover", ""));
        play.server(&error(&minted, code));
        assert_eq!(play.mux.knows_discover(), Some(knows));
        assert_eq!(play.heard(1), [error("1", code)]);
        play.asks(1, &initialize("2"));
        assert!(!play.mux.accepts_clients());
    }
}

#[test]
fn a_list_is_kept_as_long_and_for_whom_its_server_says() {
    let public = r#"{"tools":[],"ttlMs":1000,"cacheScope":"public"}"#;
    let private = r#"{"tools":[],"ttlMs":1000,"cacheScope":"private"}"#;
    let list = |id| modern(id, "tools/list", "");
    for (answer, is_public) in [(public, true), (private, false)] {
        let mut play = Play::modern(2);
        let minted = play.asks(1, &list("1"));
        play.server(&result(&minted, answer));
        play.forget();
        play.wait(999);
        play.client(1, &list("2"));
        assert_eq!(play.heard(1), [result("2", answer)]);
        play.client(2, &list("2"));
        assert_eq!(play.heard(2).len(), usize::from(is_public));
        play.forget();
        play.wait(1);
        if is_public {
            play.asks(2, &list("3"));
        }
    }
    for answer in [
        r#"{"ttlMs":0,"cacheScope":"public"}"#,
        r#"{"ttlMs":-5,"cacheScope":"public"}"#,
        r#"{"cacheScope":"public"}"#,
        r#"{"ttlMs":1000}"#,
        r#"{"resultType":"input_required","ttlMs":1000,"cacheScope":"public"}"#,
    ] {
        let mut play = Play::modern(2);
        let minted = play.asks(1, &list("1"));
        play.server(&result(&minted, answer));
        play.forget();
        play.asks(1, &list("2"));
    }
}

#[test]
fn of_very_many_lists_the_latest_are_kept() {
    let mut play = Play::modern(1);
    let list = |n: usize| modern("1", "tools/list", &format!(r#","x":{n}"#));
    for n in 0..100 {
        let minted = play.asks(1, &list(n));
        play.server(&result(&minted, r#"{"ttlMs":1000,"cacheScope":"public"}"#));
    }
    play.forget();
    play.client(1, &list(99));
    assert_eq!(play.heard(1).len(), 1);
    play.asks(1, &list(0));
}

#[test]
fn only_the_very_same_list_is_shared() {
    let mut play = Play::modern(3);
    let minted = play.asks(1, &modern("1", "tools/list", ""));
    play.client(2, &modern("5", "tools/list", ""));
    play.nobody_hears();
    play.asks(3, &modern("1", "tools/list", r#","x":1"#));
    for more in [
        r#","cursor":"c""#,
        r#","requestState":"s""#,
        r#","inputResponses":{}"#,
    ] {
        play.asks(3, &modern(r#""a""#, "prompts/list", more));
        play.asks(3, &modern(r#""b""#, "prompts/list", more));
        play.client(3, &cancel(r#""a""#));
        play.client(3, &cancel(r#""b""#));
        play.forget();
    }
    // An exchange with one is not another's.
    let asks_back = r#"{"resultType":"input_required","requestState":"s"}"#;
    play.server(&result(&minted, asks_back));
    assert_eq!(play.heard(1), [result("1", asks_back)]);
    let heard = play.server_heard();
    let again = id_of(&heard[0]);
    assert_eq!(heard, [modern(&again, "tools/list", "")]);
    play.server(&result(&again, "{}"));
    assert_eq!(play.heard(2), [result("5", "{}")]);
}

#[test]
fn a_change_ends_a_kept_list_before_its_time() {
    let mut play = Play::modern(2);
    let answer = r#"{"ttlMs":1000,"cacheScope":"public"}"#;
    let minted = play.asks(1, &modern("1", "tools/list", ""));
    play.server(&result(&minted, answer));
    let listen = play.asks(2, &modern("9", "subscriptions/listen", ""));
    play.server(&of_subscription(
        "notifications/tools/list_changed",
        &listen,
    ));
    play.forget();
    play.asks(1, &modern("2", "tools/list", ""));
}

#[test]
fn a_subscription_is_known_to_each_by_its_own_id() {
    let mut play = Play::modern(2);
    let first = play.asks(1, &modern("7", "subscriptions/listen", ""));
    let second = play.asks(2, &modern("7", "subscriptions/listen", ""));
    for method in [
        "notifications/subscriptions/acknowledged",
        "notifications/resources/updated",
        "notifications/x",
    ] {
        play.server(&of_subscription(method, &second));
        assert_eq!(play.heard(2), [of_subscription(method, "7")]);
        play.nobody_hears();
    }
    assert_eq!(
        play.mux.pending_requests_of(ClientId(1)),
        0,
        "it would wait for ever"
    );
    assert_eq!(play.mux.in_flight_of(ClientId(1)), [b"7".to_vec()]);

    let last = |id| format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#);
    play.server(&result(&first, &last(&first)));
    assert_eq!(play.heard(1), [result("7", &last(&"7".to_owned()))]);
    play.server(&of_subscription("notifications/resources/updated", &first));
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::Unaddressed(Unaddressed::Subscription)]);

    play.server(&cancel(&second));
    assert_eq!(play.heard(2), [cancel("7")]);
    assert!(play.mux.in_flight_of(ClientId(2)).is_empty());
    play.server(&cancel(&second));
    play.nobody_hears();
}

#[test]
fn a_server_cancels_no_request_but_a_subscription() {
    let mut play = Play::modern(1);
    let minted = play.asks(1, &modern("1", "tools/call", ""));
    play.server(&cancel(&minted));
    play.nobody_hears();
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(1), [result("1", "{}")]);
}

#[test]
fn a_change_that_names_no_subscription_is_nobodys() {
    let mut play = Play::modern(2);
    play.asks(1, &modern("7", "subscriptions/listen", ""));
    play.server(&notice("notifications/tools/list_changed", "{}"));
    play.server(&notice("notifications/resources/updated", r#"{"uri":"a"}"#));
    play.nobody_hears();
    let line = notice("notifications/x", "{}");
    play.server(&line);
    assert_eq!(
        (play.heard(1), play.heard(2)),
        (vec![line.clone()], vec![line])
    );
}

#[test]
fn a_log_message_is_of_the_one_request_that_wants_any_if_no_other_session_has_one_in_flight() {
    let log = notice("notifications/message", r#"{"level":"info","data":1.0}"#);
    let mut play = Play::modern(2);
    let silent = play.asks(2, &modern("1", "tools/call", ""));
    play.server(&log);
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::Unaddressed(Unaddressed::Log)]);

    // The server may log about the other request, though that one does not want it.
    let first = play.asks(1, &logging("1"));
    play.server(&log);
    play.nobody_hears();
    play.server(&result(&silent, "{}"));
    play.forget();
    play.server(&log);
    assert_eq!(play.heard(1), [&log[..]]);
    play.nobody_hears();

    let second = play.asks(2, &logging("2"));
    play.server(&log);
    play.nobody_hears();
    play.server(&result(&first, "{}"));
    play.forget();
    play.server(&log);
    assert_eq!(play.heard(2), [&log[..]]);

    play.client(2, &cancel("2"));
    play.forget();
    play.asks(1, &logging("3"));
    play.server(&log);
    play.nobody_hears();
    play.server(&result(&second, "{}"));
    play.server(&log);
    assert_eq!(play.heard(1), [log]);
}

#[test]
fn progress_of_a_modern_request_is_its_own() {
    let mut play = Play::modern(2);
    let with_token = |token| {
        let params = format!(r#"{{"_meta":{{{ENVELOPE},"progressToken":{token}}}}}"#);
        request("1", "tools/call", &params)
    };
    let first = play.asks(1, &with_token("1"));
    let second = play.asks(2, &with_token("1"));
    play.server(&progress(&second));
    assert_eq!(play.heard(2), [progress("1")]);
    play.server(&progress(&first));
    assert_eq!(play.heard(1), [progress("1")]);
    play.nobody_hears();
}
