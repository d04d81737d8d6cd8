//! The first thing a newcomer runs.

use std::time::Duration;

use kennel_testkit::{Scope, run};

#[test]
fn the_demo_tells_its_story_and_leaves_nothing_behind() {
    let scope = Scope::new("demo");
    let before = std::fs::read_dir(scope.dir()).unwrap().count();
    let ended = run(scope.command(env!("CARGO_BIN_EXE_kennel")).arg("demo"));
    assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stderr, "");
    for words in [
        "10 sessions, one daemon",
        "all 10 answering again after",
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
    assert_eq!(std::fs::read_dir(scope.dir()).unwrap().count(), before);
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
