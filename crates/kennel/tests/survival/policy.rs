//! `--replay`: who judges what may run twice.

use kennel_testkit::{Client, Scope, run};
use serde_json::json;

use crate::stage::{App, LOSSES, Victim, Way, have_begun, is_unknown, kill, session, tally};

/// How often a held call and a held read run, and whether they are answered.
fn runs(way: Way, victim: Victim, options: &[&str], variable: Option<&str>) -> (usize, usize) {
    let scope = Scope::new("policy");
    let mut command = session(&scope, way, "app", options);
    if let Some(variable) = variable {
        command.env("KENNEL_REPLAY", variable);
    }
    let mut app = App::legacy(command);
    let work = app.call("work", &json!({"tag": "x", "hold": 1}));
    let read = app.send("resources/read", json!({"uri": "hold:1"}));
    have_begun(&scope, 2);
    kill(&scope, victim);
    let answers = [app.answer(work), app.answer(read)];
    app.seen();
    let ran = tally(&scope);
    let ran = (ran["work x"], ran["resource hold:1"]);
    for (answer, ran) in answers.iter().zip([ran.0, ran.1]) {
        match ran {
            1 => is_unknown(answer),
            _ => assert!(answer["result"].is_object(), "{answer}"),
        }
    }
    let warned = app.client.stderr_so_far();
    match variable {
        Some("perhaps") => assert!(warned.contains("KENNEL_REPLAY is ignored"), "{warned}"),
        _ => app.was_answered_each_once(),
    }
    ran
}

#[test]
fn all_runs_everything_again_none_nothing_and_safe_what_does_no_harm() {
    for (way, victim) in LOSSES {
        assert_eq!(runs(way, victim, &["--replay", "all"], None), (2, 2));
        assert_eq!(runs(way, victim, &["--replay", "none"], None), (1, 1));
        assert_eq!(runs(way, victim, &["--replay", "safe"], None), (1, 2));
    }
}

#[test]
fn the_flag_comes_before_the_variable_and_a_bad_variable_is_a_warning() {
    let solo =
        |options: &[&str], variable| runs(Way::Solo, Victim::Server, options, Some(variable));
    assert_eq!(solo(&[], "none"), (1, 1));
    assert_eq!(solo(&["--replay", "all"], "none"), (2, 2));
    assert_eq!(solo(&[], "perhaps"), (1, 2));
}

#[test]
fn a_bad_flag_is_an_error_that_says_what_would_be_good() {
    let scope = Scope::new("bad-flag");
    let ended = run(&mut session(
        &scope,
        Way::Solo,
        "app",
        &["--replay", "perhaps"],
    ));
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--replay"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("safe, all or none"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_call_that_kills_its_server_is_not_made_for_ever() {
    for way in [Way::Solo, Way::Shared] {
        let scope = Scope::new("poison");
        let mut app = App::legacy(session(&scope, way, "app", &["--replay", "all"]));
        let bystander = (way == Way::Shared)
            .then(|| Client::begin(&mut session(&scope, way, "app", &["--replay", "all"])));
        let poison = app.call("work", &json!({"tag": "poison", "hold": 9}));
        for times in 1..=3 {
            have_begun(&scope, times);
            kill(&scope, Victim::Server);
        }
        let answer = app.answer(poison);
        assert_eq!(answer["error"]["data"]["outcome"], "unknown", "{answer}");
        assert_eq!(answer["error"]["data"]["replayed"], true, "{answer}");
        app.seen();
        assert_eq!(tally(&scope)["work poison"], 3);
        app.was_answered_each_once();
        if let Some(mut bystander) = bystander {
            bystander.call("seen", json!({}));
        }
    }
}
