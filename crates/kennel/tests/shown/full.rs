//! Where nothing can be written, a command says so, and does not panic.

use std::fs::File;
use std::process::Stdio;

use kennel_testkit::Scope;

use crate::stage::{kennel, server_of, shared};

#[test]
fn an_answer_that_cannot_be_written_is_a_failure_that_is_told() {
    let scope = Scope::new("full");
    let mut client = shared(&scope);
    server_of(&mut client);
    let config = scope.path("home/.cursor/mcp.json");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, r#"{"mcpServers": {"a": {"command": "x"}}}"#).unwrap();
    for words in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["guard", "-h"],
        &["ps"],
        &["ps", "--wide"],
        &["ps", "--json"],
        &["logs", "tk-server"],
        &["doctor"],
        &["doctor", "--json"],
        &["reap", "--dry-run"],
        &["reap", "--dry-run", "--json"],
        &["purge", "--dry-run"],
        &["purge", "--dry-run", "--json"],
        &["unwrap", "--dry-run"],
        &["unwrap", "--dry-run", "--json"],
        &["completions", "bash"],
        &["man"],
        &["stop", "tk-server"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = kennel(&scope);
        command
            .args(words)
            .env("KENNEL_REAP_ONLY", "NOBODY_HAS=this")
            .current_dir(scope.path("home"))
            .stdout(full)
            .stderr(Stdio::piped());
        let ended = command.spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("kennel: cannot"), "{words:?}: {said}");
        assert!(!said.contains("panicked"), "{words:?}: {said}");
    }
}
