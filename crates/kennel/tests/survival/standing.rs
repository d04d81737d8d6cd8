//! What a session had set up: it stands with the next server, and the app hears nothing of how.

use kennel_testkit::{Scope, run};
use serde_json::{Value, json};

use crate::stage::{App, LOSSES, Way, enveloped, kill, servers, session, text};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

fn progress(app: &App) -> Vec<u64> {
    let told = app.told("progress");
    let values = told.iter().map(|line| line["params"]["progress"].as_u64());
    values.map(Option::unwrap).collect()
}

/// A read that goes on for a while, is told of, and is answered by the second server only.
fn slow_read(envelope: impl Fn(Value) -> Value) -> Value {
    envelope(json!({
        "name": "read",
        "arguments": {"tag": "slow", "ms": 400, "steps": 4, "hold": 1},
        "_meta": {"progressToken": "t"},
    }))
}

fn goes_on(app: &mut App, read: u64) {
    assert_eq!(text(&app.answer(read)), "slow");
    assert_eq!(progress(app), [1, 2, 3, 4], "further, and never back");
}

#[test]
fn log_level_subscriptions_and_progress_continue_after_a_restart() {
    for (way, victim) in LOSSES {
        let scope = Scope::new("standing");
        let mut app = App::legacy(session(&scope, way, "app", &[]));
        app.request("tools/list", json!({}));
        app.request("logging/setLevel", json!({"level": "info"}));
        app.request("logging/setLevel", json!({"level": "debug"}));
        for uri in ["a:1", "b:2"] {
            app.request("resources/subscribe", json!({"uri": uri}));
        }
        app.request("resources/unsubscribe", json!({"uri": "b:2"}));
        for _ in 0..2 {
            app.heard
                .retain(|line| line["method"] != "notifications/progress");
            let read = app.send("tools/call", slow_read(|params| params));
            app.is_told(|line| line["params"]["progress"].is_u64());
            // The second round finds a server that answers at once: that is no less a restart.
            kill(&scope, victim);
            goes_on(&mut app, read);
            let seen = app.seen();
            assert_eq!(seen["initialize"], 1);
            assert_eq!(seen["initialized"], 1);
            assert_eq!(seen["levels"], json!(["debug"]), "{way:?} {victim:?}");
            assert_eq!(seen["subscribed"], json!(["a:1"]));

            app.heard.clear();
            let call = app.call("touch", &json!({"uri": "a:1"}));
            app.answer(call);
            let call = app.call("log", &json!({"level": "debug", "tag": "heard"}));
            app.answer(call);
            assert_eq!(app.told("resources/updated").len(), 1);
            assert_eq!(app.told("message").len(), 1);
            let told = app.heard.iter().filter(|line| line.get("method").is_some());
            assert_eq!(told.count(), 2, "and nothing else: {:?}", app.heard);
        }
    }
}

#[test]
fn listening_and_progress_continue_after_a_restart_in_the_modern_era() {
    for (way, victim) in LOSSES {
        let scope = Scope::new("listening");
        let mut app = App::modern(session(&scope, way, "app", &[]));
        app.request("tools/list", enveloped(json!({})));
        let wanted = json!({"notifications": {"resourceSubscriptions": ["a:1"]}});
        let listen = app.send("subscriptions/listen", enveloped(wanted));
        app.is_told(|line| line["method"] == "notifications/subscriptions/acknowledged");
        let read = app.send("tools/call", slow_read(enveloped));
        app.is_told(|line| line["params"]["progress"].is_u64());
        kill(&scope, victim);
        goes_on(&mut app, read);

        let touch = json!({"name": "touch", "arguments": {"uri": "a:1"}});
        app.request("tools/call", enveloped(touch));
        app.is_told(|line| line["method"] == "notifications/resources/updated");
        let updated = app.told("resources/updated");
        assert_eq!(updated.len(), 1, "{way:?} {victim:?}: {updated:?}");
        assert_eq!(updated[0]["params"]["_meta"][SUBSCRIPTION], listen);
        assert_eq!(app.told("subscriptions/acknowledged").len(), 1);
        let seen = enveloped(json!({"name": "seen", "arguments": {}}));
        let seen = app.request("tools/call", seen);
        assert!(text(&seen).contains(r#""initialize":0"#), "{seen}");
        let told = app.heard.iter().filter(|line| line.get("method").is_some());
        assert_eq!(told.count(), 6, "and nothing else: {:?}", app.heard);
    }
}

/// An app of the modern era that listens.
fn listener(scope: &Scope, way: Way) -> App {
    let mut app = App::modern(session(scope, way, "app", &[]));
    let wanted = json!({"notifications": {"resourceSubscriptions": ["a:1"]}});
    app.send("subscriptions/listen", enveloped(wanted));
    app.is_told(|line| line["method"] == "notifications/subscriptions/acknowledged");
    app
}

#[test]
fn who_only_listens_does_not_wake_a_stopped_server_and_hears_of_it_when_it_is_woken() {
    let scope = Scope::new("stopped-listener");
    let mut app = listener(&scope, Way::Shared);
    let kennel = |args: &[&str]| {
        let ended = run(scope.command(env!("CARGO_BIN_EXE_kennel")).args(args));
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        ended.stdout
    };
    kennel(&["stop", "--all"]);
    // Looking takes long enough for one that wakes to be seen.
    for _ in 0..10 {
        app.request("ping", enveloped(json!({})));
        assert_eq!(kennel(&["ps", "--json"]).trim(), "[]");
        assert!(servers(&scope).is_empty());
    }
    let touch = json!({"name": "touch", "arguments": {"uri": "a:1"}});
    app.request("tools/call", enveloped(touch));
    app.is_told(|line| line["method"] == "notifications/resources/updated");
    assert_eq!(app.told("subscriptions/acknowledged").len(), 1);
}

#[test]
fn a_session_that_only_listens_ends_with_its_input() {
    for way in [Way::Solo, Way::Shared] {
        let scope = Scope::new("listener-eof");
        let app = listener(&scope, way);
        app.was_answered_each_once();
    }
}

#[test]
fn an_app_that_listed_the_tools_is_told_that_the_next_server_has_others_and_only_then() {
    for (way, victim) in LOSSES {
        for grows in [false, true] {
            let scope = Scope::new("changed");
            let begin = |name| {
                let mut command = session(&scope, way, name, &[]);
                if grows {
                    command.env("TESTKIT_GROWS", "1");
                }
                App::legacy(command)
            };
            let (mut lister, mut other) = (begin("lister"), begin("other"));
            let before = lister.request("tools/list", json!({}));
            other.seen();
            kill(&scope, victim);
            let changed = |line: &Value| line["method"] == "notifications/tools/list_changed";
            if grows {
                lister.is_told(changed);
            }
            // Asked again if it must be; and answered behind what the session asked for itself.
            let fence = |app: &mut App| app.request("resources/read", json!({"uri": "x:1"}));
            fence(&mut lister);
            let after = lister.request("tools/list", json!({}));
            assert_eq!(before["result"] == after["result"], !grows);
            fence(&mut lister);
            let told = lister.told("tools/list_changed").len();
            assert_eq!(told, usize::from(grows), "{way:?} {victim:?}");
            fence(&mut other);
            assert_eq!(other.told("tools/list_changed").len(), 0, "it knows none");
            lister.was_answered_each_once();
            other.was_answered_each_once();
        }
    }
}

#[test]
fn in_the_modern_era_changed_tools_are_told_on_the_subscription_to_them() {
    for (way, victim) in LOSSES {
        let scope = Scope::new("changed-modern");
        let mut command = session(&scope, way, "app", &[]);
        command.env("TESTKIT_GROWS", "1");
        let mut app = App::modern(command);
        app.request("tools/list", enveloped(json!({})));
        let wanted = json!({"notifications": {"toolsListChanged": true}});
        let listen = app.send("subscriptions/listen", enveloped(wanted));
        app.is_told(|line| line["method"] == "notifications/subscriptions/acknowledged");
        kill(&scope, victim);
        app.is_told(|line| line["method"] == "notifications/tools/list_changed");
        let told = app.told("tools/list_changed");
        assert_eq!(told[0]["params"]["_meta"][SUBSCRIPTION], listen);
        let told = app.heard.iter().filter(|line| line.get("method").is_some());
        assert_eq!(told.count(), 2, "and nothing else: {:?}", app.heard);
    }
}
