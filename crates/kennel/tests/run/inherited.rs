//! What a starter passes on without a word: blocked and ignored signals, and few descriptors.

use std::process::Command;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, skipped, tool};

use crate::stage::{server_of, serves, shared, solo};

/// Blocks what can be blocked, ignores what asks a server to end, and becomes the session.
const DEAF: &str = "
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for name in ['SIGUSR1', 'SIGUSR2', 'SIGALRM', 'SIGPIPE', 'SIGCHLD']:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
";

/// The same command behind other words.
fn behind(scope: &Scope, words: &[&str], session: &Command) -> Command {
    let mut command = scope.command(words[0]);
    command
        .args(&words[1..])
        .arg(session.get_program())
        .args(session.get_args())
        .env("TESTKIT_ROLL", scope.roll());
    command
}

/// A mask of a process, as its status has it.
fn mask(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
}

#[test]
fn signals_that_the_starter_blocked_or_ignored_reach_shim_and_server() {
    let Some(python) = tool("python3") else {
        return skipped("python3 is not installed");
    };
    for session in [solo, shared] {
        let scope = Scope::new("deaf");
        let words = [python.to_str().unwrap(), "-c", DEAF];
        let mut client = Client::begin(&mut behind(&scope, &words, &session(&scope)));
        serves(&mut client);
        let server = server_of(&mut client);
        for process in scope.survivors() {
            let blocked = mask(process.pid(), "SigBlk:");
            assert_eq!(blocked, 0, "{:?}", process.command_line());
        }
        // tk-server is a Rust program: its runtime ignores SIGPIPE itself. 32 and 33 are the C library's own.
        let not_ours = [Signal::PIPE.as_raw(), 32, 33];
        let not_ours = not_ours
            .iter()
            .fold(0, |mask, number| mask | 1 << (number - 1));
        let ignored = mask(server.pid(), "SigIgn:") & !not_ours;
        assert_eq!(ignored, 0, "{ignored:x}");
        let shim = ProcessRef::open(client.pid()).unwrap();
        shim.signal(Signal::TERM).unwrap();
        assert_eq!(client.wait().code(), Some(143));
    }
}

#[test]
fn a_dedicated_session_raises_a_limit_of_sixteen_descriptors_and_its_server_keeps_it() {
    let scope = Scope::new("few");
    let words = ["prlimit", "--nofile=16:"];
    let mut client = Client::begin(&mut behind(&scope, &words, &solo(&scope)));
    serves(&mut client);
    let server = server_of(&mut client);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = files.unwrap().split_whitespace().next();
    assert_eq!(soft, Some("16"), "{limits}");
    client.close();
    let ended = client.wait();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_dedicated_session_that_may_not_raise_its_limit_says_what_is_short_and_what_to_do() {
    let scope = Scope::new("few");
    let words = ["prlimit", "--nofile=16:16"];
    let mut client = Client::start(&mut behind(&scope, &words, &solo(&scope)));
    let answer = client.request("echo", serde_json::json!([1])).to_string();
    for words in ["the limit of open files is 16", "ulimit -n"] {
        assert!(answer.contains(words), "{answer}");
    }
    client.close();
    client.wait();
}
