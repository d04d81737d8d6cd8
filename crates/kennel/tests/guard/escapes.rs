//! Names, commands and what servers say come from outside: nothing of them reaches a terminal that it would obey.

use kennel_testkit::{DEADLINE, Scope, run, wait_for};
use serde_json::Value;

use crate::stage::{Guarded, ends_with, free_port, guard, json_of, kennel};

/// Sets the title, clears the screen, begins a colour by one character (C1), turns the line around, returns.
const NASTY: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}x\ry";

/// What a command prints, in which nothing is left to obey.
#[track_caller]
fn harmless(scope: &Scope, words: &[&str]) -> String {
    let ended = run(kennel(scope).args(words).current_dir(scope.dir()));
    let said = format!("{}{}", ended.stdout, ended.stderr);
    is_harmless(&said, words);
    said
}

#[track_caller]
fn is_harmless(said: &str, words: &[&str]) {
    let obeyed =
        |char: &char| char.is_control() && !matches!(char, '\n' | '\t') || *char == '\u{202e}';
    let found: Vec<char> = said.chars().filter(obeyed).collect();
    assert!(found.is_empty(), "{words:?} printed {found:?}: {said:?}");
}

#[test]
fn a_name_and_a_command_are_escaped_wherever_they_are_shown() {
    let scope = Scope::new("escapes");
    let port = free_port();
    let (named, address) = (port.to_string(), format!("127.0.0.1:{port}"));
    let say = format!("say={NASTY}");
    let options = ["--detach", "--name", NASTY, "--port", &named];
    let (started, _) = ends_with(0, &mut guard(&scope, &options, &[&say, &address]));
    is_harmless(&started, &["guard --detach"]);
    assert!(started.contains("\\u{1b}]0;owned"), "{started}");
    let (again, _) = ends_with(0, &mut guard(&scope, &options, &[&say, &address]));
    is_harmless(&again, &["guard, already running"]);
    let json = [&options[..], &["--json"]].concat();
    let (facts, _) = ends_with(0, &mut guard(&scope, &json, &[&say, &address]));
    is_harmless(&facts, &["guard --json"]);
    assert_eq!(json_of(&facts)["name"], NASTY, "JSON means the same");
    // Another command for the port: it is told who has it.
    let (_, held) = ends_with(98, &mut guard(&scope, &options, &["say=other", &address]));
    is_harmless(&held, &["guard, port held"]);

    let shown: Value = json_of(&harmless(&scope, &["ps", "--json"]));
    assert_eq!(shown[0]["name"], NASTY);
    for words in [
        &["ps"][..],
        &["ps", "--wide"],
        &["doctor"],
        &["doctor", "--json"],
    ] {
        harmless(&scope, words);
    }
    harmless(&scope, &["logs", NASTY]);
    let stopped = harmless(&scope, &["stop", NASTY]);
    assert!(stopped.starts_with("stopped \\u{1b}]0;owned"), "{stopped}");
    scope.nothing_left_within("stopped", DEADLINE);
}

#[test]
fn what_is_wrong_with_a_command_line_is_told_without_its_escapes() {
    let scope = Scope::new("escapes-usage");
    for words in [
        &["guard", "--grace", NASTY, "--", "true"][..],
        &["stop", "--", NASTY],
        &["run", "--", NASTY],
        &["guard", "--", NASTY],
        &["logs", NASTY],
        &[NASTY],
        &["guard", "--owner-pid", NASTY, "--", "true"],
    ] {
        let said = harmless(&scope, words);
        assert!(said.contains("\\u{1b}"), "{words:?}: {said}");
    }
}

#[test]
fn the_last_words_of_a_server_that_does_not_start_are_escaped() {
    let scope = Scope::new("escapes-words");
    let line = "printf '\\033]0;owned\\007\\302\\233red\\r\\n' >&2; exit 6";
    let mut command = kennel(&scope);
    command.args([
        "guard", "--detach", "--name", "thing", "--", "sh", "-c", line,
    ]);
    let (_, stderr) = ends_with(6, &mut command);
    is_harmless(&stderr, &["guard --detach"]);
    assert!(
        stderr.contains("\\u{1b}]0;owned\\u{7}\\u{9b}red"),
        "{stderr}"
    );
    harmless(&scope, &["logs", "thing"]);
    // The file itself, too: people read logs with `cat`.
    let guards = std::fs::read_dir(scope.runtime_dir().join("guards")).unwrap();
    let log = guards.map(|entry| entry.unwrap().path().join("log")).next();
    let log = std::fs::read_to_string(log.unwrap()).unwrap();
    is_harmless(&log, &["cat log"]);
    assert!(log.contains("owned"), "{log}");
}

#[test]
fn a_holder_of_a_port_that_is_not_guarded_is_named_without_its_escapes() {
    let scope = Scope::new("escapes-holder");
    let mut holder = scope.command(kennel_testkit::bin("tk-ports"));
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    holder.arg(format!("say={NASTY}")).arg(&address);
    holder.stdout(std::process::Stdio::null());
    let mut holder = holder.spawn().unwrap();
    crate::stage::wait_until_it_listens(port);
    for options in [&[][..], &["--json"]] {
        let named = port.to_string();
        let options = [&["--port", &named], options].concat();
        let (stdout, stderr) = ends_with(98, &mut guard(&scope, &options, &[&address]));
        is_harmless(&format!("{stdout}{stderr}"), &["guard"]);
        assert!(stderr.contains("say="), "{stderr}");
    }
    crate::stage::kill(&mut holder);
    wait_for("the port to be free", || {
        (!crate::stage::listens(port)).then_some(())
    });
    drop(Guarded::start(&scope, &[]));
}
