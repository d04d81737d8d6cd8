//! Starts one command with pipes or sockets as its stdio, and waits to be killed. It says nothing to it.
//!
//! `tk-parent [socket] [hold] [launcher] [eof] -- COMMAND…`. `socket`: two socketpairs, as apps on Node make them.
//! `hold`: another process keeps the command's stdin open. `launcher`: through a shell that passes its stdio on.
//! `eof`: the command's stdin is closed. It tells `child PID`: of the command, or of the launcher before it.
#![expect(
    clippy::print_stdout,
    reason = "what it started is for the test that started it"
)]

use std::ffi::OsString;
use std::process::Command;

use kennel_testkit::{keep_open, stdio_ends};

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
    let (their_input, our_input) = stdio_ends(asked("socket"));
    let (our_output, their_output) = stdio_ends(asked("socket"));
    let _holder = asked("hold").then(|| keep_open(&our_input));
    let mut child = match asked("launcher") {
        false => Command::new(&command[0]),
        true => {
            let mut shell = Command::new("sh");
            // The shell stays, because another command follows.
            shell.args(["-c", "\"$0\" \"$@\"; :"]).arg(&command[0]);
            shell
        }
    };
    let mut child = child
        .args(&command[1..])
        .stdin(their_input)
        .stdout(their_output)
        .spawn()
        .expect("the command starts");
    println!("child {}", child.id());
    let our_input = (!asked("eof")).then_some(our_input);
    let _ = child.wait();
    // Even without a child our ends stay open until we are killed.
    let _ = kennel_sys::events::sleep(&[], &[], None);
    drop((our_input, our_output));
}
