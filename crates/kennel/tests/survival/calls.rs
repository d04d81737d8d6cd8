//! Calls in flight when what is behind them is killed.

use std::time::{Duration, Instant};

use kennel_testkit::Scope;
use serde_json::json;

use crate::stage::{App, LOSSES, Victim, Way, have_begun, is_unknown, kill, session, tally, text};

const APPS: usize = 10;

/// Ten apps with a read, an idempotent call and a side effect in flight each.
fn outlive((way, victim): (Way, Victim)) {
    let scope = Scope::new("outlive");
    let mut apps: Vec<App> = (0..APPS)
        .map(|app| App::legacy(session(&scope, way, &app.to_string(), &[])))
        .collect();
    let mut waiting = Vec::new();
    for (number, app) in apps.iter_mut().enumerate() {
        // Whoever has not listed the tools knows nothing of them.
        app.request("tools/list", json!({}));
        let held = json!({"tag": number.to_string(), "hold": 1});
        let read = app.send("resources/read", json!({"uri": "hold:1"}));
        let calls = ["read", "put", "work"].map(|tool| app.call(tool, &held));
        waiting.push((read, calls));
    }
    have_begun(&scope, 4 * APPS);
    let start = Instant::now();
    kill(&scope, victim);

    let mut times: Vec<Duration> = Vec::new();
    for (app, (read, [look, put, work])) in apps.iter_mut().zip(&waiting) {
        is_unknown(&app.answer(*work));
        let here = &app.answer(*read)["result"]["contents"][0]["text"];
        assert_eq!(here, "here");
        text(&app.answer(*look));
        text(&app.answer(*put));
        times.push(start.elapsed());
    }
    times.sort();
    eprintln!(
        "{way:?}, {victim:?} killed: half go on within {:?}",
        times[APPS / 2]
    );

    let ran = tally(&scope);
    assert_eq!(ran["resource hold:1"], 2 * APPS);
    for number in 0..APPS {
        assert_eq!(ran[&format!("read {number}")], 2);
        assert_eq!(ran[&format!("put {number}")], 2);
        assert_eq!(ran[&format!("work {number}")], 1, "rule 5");
    }
    for (number, mut app) in apps.into_iter().enumerate() {
        let next = app.call("work", &json!({"tag": format!("next {number}")}));
        assert_eq!(text(&app.answer(next)), format!("next {number}"));
        let notifications = app.heard.iter().filter(|line| line.get("method").is_some());
        assert_eq!(
            notifications.count(),
            0,
            "the app hears nothing of it: {:?}",
            app.heard
        );
        app.was_answered_each_once();
    }
}

#[test]
fn rules_4_and_5_hold_for_ten_solo_sessions_whose_servers_are_killed() {
    outlive(LOSSES[0]);
}

#[test]
fn rules_4_and_5_hold_for_ten_sessions_whose_server_is_killed() {
    outlive(LOSSES[1]);
}

#[test]
fn rules_4_and_5_hold_for_ten_sessions_whose_daemon_is_killed() {
    outlive(LOSSES[2]);
}

#[test]
fn rules_4_and_5_hold_for_ten_sessions_whose_daemon_and_server_are_killed() {
    outlive(LOSSES[3]);
}

#[test]
fn lesson_37_a_cancelled_call_does_not_come_back() {
    for (way, victim) in LOSSES {
        let scope = Scope::new("cancelled");
        let mut app = App::legacy(session(&scope, way, "app", &["--replay", "all"]));
        let cancelled = app.client.send(
            "tools/call",
            json!({"name": "work", "arguments": {"tag": "cancelled", "hold": 9}}),
        );
        let held = app.call("work", &json!({"tag": "held", "hold": 1}));
        let line = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": cancelled},
        });
        app.client.say(&format!("{line}\n"));
        have_begun(&scope, 2);
        kill(&scope, victim);
        assert_eq!(text(&app.answer(held)), "held");
        app.seen();
        assert_eq!(tally(&scope)["work cancelled"], 1);
        assert_eq!(tally(&scope)["work held"], 2);
        app.was_answered_each_once();
    }
}
