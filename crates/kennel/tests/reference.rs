//! The whole command line as it is told to people: one definition makes help, completions and manual.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::path::Path;

use kennel_testkit::{Ended, Scope, run, tool};

/// The reference as it was last looked at by a person.
const REFERENCE: &str = "../../docs/REFERENCE.txt";
/// Set to `write`, it is written anew: look at the difference before you keep it.
const SWITCH: &str = "UPDATE_REFERENCE";

fn kennel(scope: &Scope, words: &[&str]) -> Ended {
    let ended = run(scope.command(env!("CARGO_BIN_EXE_kennel")).args(words));
    assert_eq!(ended.code(), Some(0), "{words:?}: {}", ended.stderr);
    ended
}

/// The commands that people see, in order.
fn commands(scope: &Scope) -> Vec<String> {
    let help = kennel(scope, &["--help"]).stdout;
    let list = help.split("Commands:\n").nth(1).unwrap();
    let list = list.split("\n\n").next().unwrap();
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_reference_is_what_the_commands_say() {
    let scope = Scope::new("reference");
    let mut text = format!("$ kennel --help\n\n{}", kennel(&scope, &["--help"]).stdout);
    for command in commands(&scope) {
        let help = kennel(&scope, &[&command, "--help"]).stdout;
        text += &format!("\n\n$ kennel {command} --help\n\n{help}");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(REFERENCE);
    if std::env::var_os(SWITCH).is_some_and(|value| value == "write") {
        std::fs::write(&file, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    for (at, (kept, said)) in kept.lines().zip(text.lines()).enumerate() {
        assert_eq!(
            kept,
            said,
            "line {}; if it is meant, {SWITCH}=write writes it",
            at + 1
        );
    }
    assert_eq!(kept, text, "if it is meant, {SWITCH}=write writes it");
}

#[test]
fn every_command_is_shown_by_an_example() {
    let scope = Scope::new("reference");
    for command in commands(&scope) {
        let help = kennel(&scope, &[&command, "--help"]).stdout;
        let examples = help.split("Example").nth(1).unwrap_or_default();
        assert!(
            examples.contains(&format!("kennel {command}")),
            "{command}: {help}"
        );
    }
}

#[test]
fn each_shell_completes_every_command_and_can_read_its_script() {
    let scope = Scope::new("reference");
    let commands = commands(&scope);
    for shell in ["bash", "zsh", "fish"] {
        let script = kennel(&scope, &["completions", shell]).stdout;
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell}: {command}");
        }
        assert!(
            script.contains("dry-run") && script.contains("claude-desktop"),
            "{shell}"
        );
        if tool(shell).is_none() {
            continue;
        }
        let file = scope.path(shell);
        std::fs::write(&file, &script).unwrap();
        let read = run(scope.command(shell).arg("-n").arg(&file));
        assert_eq!(read.code(), Some(0), "{shell}: {}", read.stderr);
    }
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let scope = Scope::new("reference");
    let one = kennel(&scope, &["man"]).stdout;
    assert!(one.contains(".TH kennel 1"), "{one}");
    let dir = scope.path("man1");
    kennel(&scope, &["man", "--out", dir.to_str().unwrap()]);
    for command in commands(&scope) {
        let page = std::fs::read_to_string(dir.join(format!("kennel-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH kennel-{command} 1")), "{page}");
        assert!(page.contains("Example"), "{command}");
    }
    let main = std::fs::read_to_string(dir.join("kennel.1")).unwrap();
    assert_eq!(main, one);
}

#[test]
fn no_line_of_the_help_is_wider_than_80_columns() {
    let scope = Scope::new("reference");
    let commands = commands(&scope);
    let mut all: Vec<Vec<&str>> = vec![vec!["--help"], vec!["-h"]];
    for command in &commands {
        all.push(vec![command, "--help"]);
        all.push(vec![command, "-h"]);
    }
    for words in all {
        let help = kennel(&scope, &words).stdout;
        let wide = help.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{words:?}");
    }
}

#[test]
fn the_parts_of_the_demo_are_nobodys_to_complete() {
    let scope = Scope::new("reference");
    for shell in ["bash", "zsh", "fish"] {
        let script = kennel(&scope, &["completions", shell]).stdout;
        assert!(!script.contains("stubborn"), "{shell}");
    }
}
