//! An app that closes its input and does not read its output gets the rest when it reads, for as long as it lives. Where
//! the app is not watched, the session ends. So it does where its output cannot be written.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_sys::events;
use kennel_testkit::{Scope, wait_for};

use crate::stage::{shared, solo};

/// Requests whose answers are far more than a pipe holds; `bytes` for each.
fn requests(count: usize, bytes: usize) -> String {
    let line = |id| {
        let params = format!("{{\"bytes\":{bytes}}}");
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"long\",\"params\":{params}}}\n")
    };
    (1..=count).map(line).collect()
}

/// The session of an app that is not watched ends; its exit code and its stderr.
fn ends(scope: &Scope, mut command: Command, lines: &str) -> (Option<i32>, String) {
    let stderr = scope.path("stderr");
    let mut child = command
        .env("KENNEL_PARENT_WATCH", "off")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    // Open for as long as the session lives, and never read.
    let stdout = child.stdout.take().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = lines.to_owned();
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(lines.as_bytes());
    });
    writer.join().unwrap();
    let status = wait_for("the session ends though its output is unread", || {
        child.try_wait().unwrap()
    });
    drop(stdout);
    (status.code(), std::fs::read_to_string(stderr).unwrap())
}

#[test]
fn an_app_that_reads_long_after_it_closed_its_input_gets_every_answer() {
    // Longer than answers are waited for, and than an app is that is not watched.
    const LATE: Duration = Duration::from_secs(3);
    for session in [solo, shared] {
        let scope = Scope::new("read-late");
        let mut child = session(&scope)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(requests(6, 1_000_000).as_bytes()).unwrap();
        drop(stdin);
        events::sleep(&[], &[], Some(LATE)).unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        let mut heard = String::new();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_to_string(&mut heard).unwrap();
        assert!(heard.ends_with('\n'));
        let answers = heard.lines().filter(|line| line.contains("\"result\""));
        assert_eq!(answers.count(), 6);
        let ended = wait_for("the session ends", || child.try_wait().unwrap());
        assert_eq!(ended.code(), Some(0));
    }
}

#[test]
fn a_session_whose_unwatched_app_closed_its_input_and_reads_nothing_ends_and_says_why() {
    for session in [solo, shared] {
        let scope = Scope::new("unread-stdout");
        let (code, stderr) = ends(&scope, session(&scope), &requests(4, 1_000_000));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(
            stderr.contains("does not read the rest of its stdout"),
            "{stderr}"
        );
    }
}

#[test]
fn such_a_session_ends_too_if_its_input_is_not_read_to_the_end() {
    let scope = Scope::new("unread-both");
    // More than shim and server take while the output waits; what is left fits into the pipe.
    let (code, stderr) = ends(&scope, solo(&scope), &requests(60, 1_000_000));
    assert_eq!(code, Some(1), "{stderr}");
}

#[test]
fn a_session_whose_stdout_is_on_a_full_disk_fails_and_names_the_error() {
    for closes_stdin in [false, true] {
        let scope = Scope::new("full-stdout");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut child = solo(&scope)
            .stdin(Stdio::piped())
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(requests(1, 10).as_bytes()).unwrap();
        let kept_open = (!closes_stdin).then_some(stdin);
        let ended = child.wait_with_output().unwrap();
        drop(kept_open);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{stderr}");
        let words = "the session ends: cannot write to stdout: No space left on device";
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn a_session_without_a_stdout_that_can_be_written_fails_at_once() {
    for (redirect, why) in [
        (">&-", "it is closed"),
        ("1</dev/null", "it is open for reading only"),
        (">&- <&-", "it is closed"),
    ] {
        for session in [solo, shared] {
            let scope = Scope::new("no-stdout");
            let session = session(&scope);
            let mut command = scope.command("sh");
            let script = format!("exec \"$@\" {redirect}");
            command
                .args(["-c", &script, "sh"])
                .arg(session.get_program());
            command.args(session.get_args()).stdin(Stdio::piped());
            let output = command.stderr(Stdio::piped()).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{redirect}: {stderr}");
            assert!(stderr.contains(why), "{redirect}: {stderr}");
        }
    }
    // An app may throw the answers away.
    let scope = Scope::new("no-stdout");
    let mut command = solo(&scope);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
