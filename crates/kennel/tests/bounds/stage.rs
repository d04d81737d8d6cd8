//! Sessions with a small `--max-line`, and how much memory a process ever had.

use std::io::Write;
use std::process::Command;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin};
use serde_json::{Value, json};

/// `--max-line` of all sessions here.
pub(crate) const MAX_LINE: usize = 8 << 20;
/// What no peer can make a process exceed: 2.5 times the longest line and 50 MB.
pub(crate) const MOST: usize = MAX_LINE * 5 / 2 + 50_000_000;
/// Longer than all of that, so that whoever stores it is found out.
pub(crate) const FAR_TOO_LONG: usize = 100 << 20;

/// `kennel run` before the server that does as it is told.
pub(crate) fn session(scope: &Scope, share: &str) -> Command {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args(["run", "--stop-after", "50ms,50ms", "--share", share])
        .args(["--max-line", "8M", "--start-timeout", "60s", "--"])
        .arg(bin("tk-server"))
        .env("TESTKIT_ROLL", scope.roll());
    command
}

/// The most memory that a process ever had, in bytes.
pub(crate) fn peak(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap();
    kilobytes.parse::<usize>().unwrap() * 1024
}

#[track_caller]
pub(crate) fn is_modest(who: &str, pid: u32) {
    let peak = peak(pid);
    assert!(peak < MOST, "{who} had {peak} bytes, more than {MOST}");
}

#[track_caller]
pub(crate) fn the_daemon(scope: &Scope) -> ProcessRef {
    let is_daemon = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"daemon")
    };
    let mut daemons = scope.survivors().into_iter().filter(is_daemon);
    daemons.next().expect("a daemon")
}

#[track_caller]
pub(crate) fn serves(client: &mut Client) {
    let echo = client.request("echo", json!({"a": 1}));
    assert_eq!(echo["result"], json!({"a": 1}), "{echo}");
}

#[track_caller]
pub(crate) fn is_too_long(answer: &Value, code: i64) {
    let error = &answer["error"];
    assert_eq!(error["code"], code, "{error}");
    assert_eq!(error["data"]["reason"], "line_too_long", "{error}");
    assert_eq!(error["data"]["limit"], MAX_LINE, "{error}");
}

/// Says a request of about this many bytes, in parts.
pub(crate) fn say_long(
    mut to: impl Write,
    id: u64,
    bytes: usize,
    id_last: bool,
) -> std::io::Result<()> {
    let part = vec![b'x'; 1 << 20];
    match id_last {
        true => write!(to, r#"{{"method":"echo","params":{{"text":""#)?,
        false => write!(
            to,
            r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":{{"text":""#
        )?,
    }
    for _ in 0..bytes / part.len() {
        to.write_all(&part)?;
    }
    match id_last {
        true => writeln!(to, r#""}},"jsonrpc":"2.0","id":{id}}}"#),
        false => writeln!(to, r#""}}}}"#),
    }
}
