//! An app: starts one MCP server, talks to it, and waits to be killed.
//!
//! `tk-app [hold] [socket] [subreaper] -- COMMAND…`. `hold`: another process keeps the server's stdin
//! open. `socket`: stdin is one end of a socketpair, as apps on Node make it. It tells `ready` once the
//! server answered its handshake, then obeys the lines of its own stdin: `ping`, `eof`.
#![expect(
    clippy::print_stdout,
    reason = "what happens to it is for the test that started it"
)]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use kennel_testkit::{keep_open, stdio_ends};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"tk-app","version":"0"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let dashes = arguments
        .iter()
        .position(|word| word == "--")
        .expect("-- COMMAND");
    let (options, command) = (&arguments[..dashes], &arguments[dashes + 1..]);
    let asked = |option: &str| options.iter().any(|word| word == option);

    // As apps do: the process that adopts its children is in another session, which identifies it.
    let _ = rustix::process::setsid();
    if asked("subreaper") {
        kennel_sys::tree::become_subreaper().expect("a subreaper");
    }
    let (server_end, our_end) = stdio_ends(asked("socket"));
    let _holder = asked("hold").then(|| keep_open(&our_end));
    let mut server = Command::new(&command[0])
        .args(&command[1..])
        .stdin(server_end)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut answers = BufReader::new(server.stdout.take().expect("it is piped")).lines();
    let mut ask = |to: &mut File, line: &str| {
        writeln!(to, "{line}").expect("the server reads");
        answers.next().expect("an answer").expect("an answer")
    };

    let mut our_end = Some(File::from(our_end));
    if let Some(to) = our_end.as_mut() {
        ask(to, INITIALIZE);
        writeln!(to, "{INITIALIZED}").expect("the server reads");
        println!("ready");
    }
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match (&*line, &mut our_end) {
            ("ping", Some(to)) => {
                ask(to, PING);
                println!("pong");
            }
            ("eof", end) => {
                *end = None;
                println!(
                    "exited {:?}",
                    server.wait().expect("the server ends").code()
                );
            }
            _ => panic!("tk-app does not know {line:?}"),
        }
    }
}
