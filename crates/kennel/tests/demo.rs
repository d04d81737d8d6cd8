//! The first thing a newcomer runs.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use kennel_sys::lock;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::{Scope, run, wait_for};

fn files(scope: &Scope) -> BTreeSet<OsString> {
    let entries = std::fs::read_dir(scope.dir()).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn the_demo_tells_its_story_and_leaves_nothing_behind() {
    let scope = Scope::new("demo");
    let before = files(&scope);
    let ended = run(scope.command(env!("CARGO_BIN_EXE_kennel")).arg("demo"));
    assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stderr, "");
    for words in [
        "10 sessions, one daemon",
        "all 10 served again after",
        "nothing left after",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    let recording = recording();
    assert!(
        without_numbers(&ended.stdout) == without_numbers(&recording),
        "put this into README.md:\n{}",
        ended.stdout
    );
    scope.nothing_left_within("after the demo", Duration::from_secs(60));
    assert_eq!(files(&scope), before);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a terminal signals a group; this one was made for the demo alone"
)]
fn ctrl_c_in_any_act_leaves_no_file_and_no_process() {
    for words in ["1. ", "running:  10", "3. ", "running:  app", "5. "] {
        let scope = Scope::new("demo-broken-off");
        let before = files(&scope);
        let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
        command
            .arg("demo")
            .env("TMPDIR", scope.dir())
            .process_group(0)
            .stdout(Stdio::piped());
        let mut demo = command.spawn().unwrap();
        let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
        let said = lines.find(|line| line.as_ref().unwrap().contains(words));
        assert!(said.is_some(), "{words}");
        // As a terminal does it: to everybody in the foreground.
        let group = rustix::process::Pid::from_child(&demo);
        rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
        lines.for_each(drop);
        assert_eq!(demo.wait().unwrap().code(), Some(130), "{words}");
        assert_eq!(files(&scope), before, "{words}");
        scope.nothing_left_within("after Ctrl-C", Duration::from_secs(60));
    }
}

#[test]
fn what_a_killed_demo_leaves_the_next_one_clears_away() {
    let scope = Scope::new("demo-killed");
    let before = files(&scope);
    let demo = || {
        let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
        command.arg("demo").env("TMPDIR", scope.dir());
        command
    };
    let mut killed = demo().stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    let said = lines.find(|line| line.as_ref().unwrap().contains("running:  10"));
    assert!(said.is_some());
    killed.kill().unwrap();
    killed.wait().unwrap();
    scope.nothing_left_within("after the kill", Duration::from_secs(60));
    let left: Vec<_> = files(&scope).difference(&before).cloned().collect();
    assert_eq!(left.len(), 1, "one stage: {left:?}");
    let dir = RuntimeDir::open(scope.dir().join(&left[0]).join("run"));
    let dir = dir.unwrap().unwrap();
    wait_for("the daemon to let go of it", || lock::seize(&dir).ok());

    let ended = run(&mut demo());
    assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(files(&scope), before);
}

#[test]
fn a_demo_that_cannot_be_told_is_over_and_leaves_nothing_either() {
    let scope = Scope::new("demo-full");
    let before = files(&scope);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command.arg("demo").env("TMPDIR", scope.dir()).stdout(full);
    let ended = command
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("the demo failed"), "{said}");
    scope.nothing_left_within("after the demo", Duration::from_secs(60));
    assert_eq!(files(&scope), before);
}

/// What the first page shows of it.
fn recording() -> String {
    let page = std::fs::read_to_string("../../README.md").expect("a first page");
    let (_, shown) = page
        .split_once("<!-- demo:begin -->\n```text\n")
        .expect("a recording");
    let (shown, _) = shown.split_once("```\n<!-- demo:end -->").expect("its end");
    shown.to_owned()
}

/// What differs from run to run is left out: numbers, and how many of them stand in a row.
fn without_numbers(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split([' ', '\n']) {
        let kept: String = word
            .chars()
            .filter(|char| !char.is_ascii_digit() && !matches!(char, '.' | ','))
            .collect();
        if kept.is_empty() && words.last().is_some_and(String::is_empty) {
            continue;
        }
        words.push(kept);
    }
    words.join(" ")
}
