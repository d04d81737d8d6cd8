//! A daemon that is stopped under its sessions, for good or for two seconds.

use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_testkit::{DEADLINE, Scope, wait_for};
use serde_json::json;

use crate::stage::{App, Way, daemons, session, text};

const APPS: usize = 5;

/// Five sessions with a read under way each go on with one daemon.
fn go_on_though_stopped(thawed_after: Option<Duration>) {
    let scope = Scope::new("stopped");
    let mut apps: Vec<App> = (0..APPS)
        .map(|app| App::legacy(session(&scope, Way::Shared, &app.to_string(), &[])))
        .collect();
    for app in &mut apps {
        app.request("tools/list", json!({}));
    }
    let stopped = daemons(&scope).pop().expect("a daemon");
    stopped.signal(Signal::STOP).unwrap();
    let waiting: Vec<u64> = apps
        .iter_mut()
        .enumerate()
        .map(|(number, app)| app.call("read", &json!({"tag": number.to_string()})))
        .collect();
    if let Some(after) = thawed_after {
        events::sleep(&[], &[], Some(after)).unwrap();
        // It may be gone by then: that is no harm either.
        let _ = stopped.signal(Signal::CONT);
    }
    for (number, (app, id)) in apps.iter_mut().zip(&waiting).enumerate() {
        assert_eq!(text(&app.answer(*id)), number.to_string());
    }
    if thawed_after.is_none() {
        assert!(stopped.wait(Some(DEADLINE)).unwrap(), "it is ended");
    }
    wait_for("one daemon", || (daemons(&scope).len() == 1).then_some(()));
    for (number, mut app) in apps.into_iter().enumerate() {
        let next = app.call("work", &json!({"tag": format!("next {number}")}));
        assert_eq!(text(&app.answer(next)), format!("next {number}"));
        app.was_answered_each_once();
    }
}

#[test]
fn sessions_go_on_when_their_daemon_is_stopped_for_good() {
    go_on_though_stopped(None);
}

#[test]
fn sessions_go_on_when_their_daemon_is_stopped_for_two_seconds_and_thawed() {
    go_on_though_stopped(Some(Duration::from_secs(2)));
}
