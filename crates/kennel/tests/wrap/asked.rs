//! Who is asked, what is proposed, and which words are written.

use kennel_testkit::Terminal;
use serde_json::Value;

use crate::stage::Person;

const CURSOR: &str = "home/.cursor/mcp.json";

#[test]
fn where_nobody_can_be_asked_nothing_is_written() {
    let person = Person::new();
    let text = "{\"mcpServers\": {\"a\": {\"command\": \"thing\"}}}";
    person.write(CURSOR, text);
    let ended = person.kennel(&["wrap"]);
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--yes"), "{}", ended.stderr);
    assert_eq!(person.read(CURSOR), text);
    person.wraps();
    let wrapped = person.read(CURSOR);
    assert_eq!(person.kennel(&["unwrap"]).code(), Some(2));
    assert_eq!(person.read(CURSOR), wrapped);
}

#[test]
fn no_configuration_is_nothing_found_and_an_unknown_app_is_a_mistake() {
    let person = Person::new();
    assert_eq!(person.kennel(&["wrap", "--yes"]).code(), Some(3));
    for command in ["wrap", "unwrap"] {
        let ended = person.kennel(&[command, "--yes", "--json"]);
        assert_eq!((ended.code(), ended.stdout.trim()), (Some(3), "[]"));
    }
    let ended = person.kennel(&["wrap", "--client", "emacs"]);
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("cursor"), "{}", ended.stderr);
}

#[test]
fn every_server_has_its_proposal_and_its_reason() {
    let person = Person::new();
    person.write(
        CURSOR,
        r#"{"mcpServers": {
            "memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]},
            "browser": {"command": "npx", "args": ["@playwright/mcp"]},
            "mine": {"command": "mine", "env": {"B": "1", "A": "2"}},
            "remote": {"url": "https://example.com"},
            "spaces": {"command": "npx -y thing"}
        }}"#,
    );
    let ended = person.kennel(&["wrap", "--yes", "--json"]);
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    let row = |name: &str| {
        let servers = told[0]["servers"].as_array().unwrap();
        let row = servers.iter().find(|row| row["name"] == name).unwrap();
        (
            row["proposal"].as_str().unwrap().to_owned(),
            row["why"].as_str().unwrap().to_owned(),
        )
    };
    for (name, proposal, why) in [
        ("memory", "shared", "known to be safe"),
        ("browser", "solo", "browser"),
        ("mine", "solo", "unknown server"),
        ("remote", "skip", "network"),
        ("spaces", "skip", "args"),
    ] {
        let (got, reason) = row(name);
        assert_eq!(got, proposal, "{name}");
        assert!(reason.contains(why), "{name}: {reason}");
    }
    let document: Value = serde_json::from_str(&person.read(CURSOR)).unwrap();
    let args = |name: &str| document["mcpServers"][name]["args"].clone();
    let home = person.home();
    assert_eq!(
        args("memory"),
        serde_json::json!([
            "run",
            "--cwd",
            home,
            "--",
            "npx",
            "-y",
            "@modelcontextprotocol/server-memory"
        ])
    );
    assert_eq!(
        args("mine"),
        serde_json::json!(["run", "--env-key", "B,A", "--", "mine"])
    );
    assert_eq!(
        document["mcpServers"]["remote"],
        serde_json::json!({"url": "https://example.com"})
    );
}

#[test]
fn a_person_on_a_terminal_is_asked_and_the_answer_counts() {
    let person = Person::new();
    let text = "{\"mcpServers\": {\"a\": {\"command\": \"thing\"}}}";
    person.write(CURSOR, text);
    let answers = |answer: &str, words: &str| {
        let mut terminal = Terminal::start(person.command().arg(words), 200, 50);
        terminal.shows("[y/N]");
        terminal.types(answer);
        let (code, told) = terminal.finish();
        assert_eq!(code, Some(0), "{told}");
        told
    };
    for answer in ["n\n", "\n", "what?\n"] {
        let told = answers(answer, "wrap");
        assert!(told.contains("Write 1 file? [y/N]"), "{told}");
        assert!(told.contains("nothing was changed"), "{told}");
        assert_eq!(person.read(CURSOR), text);
    }
    answers("y\n", "wrap");
    assert_ne!(person.read(CURSOR), text);
    answers("yes\n", "unwrap");
    assert_eq!(person.read(CURSOR), text);
}

#[test]
fn what_is_no_file_is_refused_instead_of_waited_for() {
    let person = Person::new();
    let fifo = person.file("home/fifo.json");
    let made = kennel_testkit::run(person.command_of("mkfifo").arg(&fifo));
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    for path in [fifo.to_str().unwrap(), "/dev/zero", "/dev/tty", "/"] {
        for command in ["wrap", "unwrap"] {
            let ended = person.kennel(&[command, "--yes", "--file", path]);
            assert_eq!(ended.code(), Some(1), "{path}: {}", ended.stderr);
            let told = format!("{path}: not a regular file");
            assert!(ended.stderr.contains(&told), "{path}: {}", ended.stderr);
        }
    }
}

#[test]
fn where_nothing_is_to_change_the_reason_is_told() {
    let person = Person::new();
    let says = |words: &[&str], why: &str| {
        let ended = person.kennel(words);
        let told = format!("nothing to change: {why}");
        assert!(ended.stdout.contains(&told), "{words:?}: {}", ended.stdout);
    };
    person.write(CURSOR, "{\"mcpServers\": {}}");
    says(&["wrap", "--yes"], "no server is in 1 file");
    person.write(
        CURSOR,
        r#"{"mcpServers": {"a": {"command": "thing"}, "r": {"url": "https://x"}}}"#,
    );
    says(&["unwrap", "--yes"], "no entries were wrapped by");
    person.wraps();
    says(
        &["wrap", "--yes"],
        "of 2 servers, 1 already run through kennel",
    );
    person.write(CURSOR, r#"{"mcpServers": {"a": {"command": "thing"}}}"#);
    person.wraps();
    says(
        &["wrap", "--yes"],
        "every server already runs through kennel",
    );
    person.write(CURSOR, "{");
    says(&["wrap", "--yes"], "1 file cannot be changed");
}
