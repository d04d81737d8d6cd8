//! Configurations that are larger than any that an app writes, and one that is as large as they get.

use std::process::Command;

use kennel_testkit::{Ended, run};

use crate::stage::Person;

/// A command with at most this much memory.
fn with_memory(person: &Person, megabytes: usize, words: &[&str]) -> Ended {
    let mut command = person.command_of("sh");
    let script = format!("ulimit -v {}; exec \"$@\"", megabytes << 10);
    command.args(["-c", &script, "sh"]).arg(&person.program);
    run(command.args(words))
}

#[test]
fn a_huge_configuration_of_a_project_is_refused_in_little_memory() {
    let person = Person::new();
    for (megabytes, why) in [(31, "keys and values"), (33, "more than 32 MB")] {
        let text = format!("[{}1]", "1,".repeat(megabytes << 19));
        person.write("project/.mcp.json", &text);
        for words in [&["wrap", "--dry-run"][..], &["doctor"]] {
            let ended = with_memory(&person, 300, words);
            let said = format!("{}{}", ended.stdout, ended.stderr);
            assert!(said.contains(why), "{words:?}: {said}");
        }
    }
}

#[test]
fn a_configuration_with_the_prompts_of_years_is_wrapped() {
    let person = Person::new();
    let prompt = |at: usize| {
        let text = "a prompt of a line or two. ".repeat(4);
        format!("{{\"display\":\"{at} {text}\",\"pastedContents\":{{}}}}")
    };
    let prompts: Vec<String> = (0..120_000).map(prompt).collect();
    let text = format!(
        "{{\"projects\":{{\"/p\":{{\"history\":[{}]}}}},\"mcpServers\":{{\"a\":{{\"command\":\"npx\"}}}}}}",
        prompts.join(",")
    );
    assert!(text.len() > 16_000_000);
    let file = person.write("home/.claude.json", &text);
    let ended = with_memory(&person, 600, &["wrap", "--dry-run"]);
    assert!(ended.stdout.contains("npx"), "{}", ended.stderr);
    let read = |words: &[&str]| {
        let mut command: Command = person.command();
        run(command.args(words))
    };
    let ended = read(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_ne!(std::fs::read_to_string(&file).unwrap(), text);
    let ended = read(&["unwrap", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(std::fs::read_to_string(&file).unwrap() == text);
}
