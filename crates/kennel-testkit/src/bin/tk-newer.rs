//! A fake newer build of Kennel that does not work. Its file name selects what it does:
//!
//! | name | asked whether it is fit | as the daemon |
//! |---|---|---|
//! | `silent` | ends with 1 | |
//! | `mute` | never answers | |
//! | `other-format` | reads states of another format only | |
//! | `older` | is older | |
//! | `fails` | is fit | ends with 1 |
//! | `hangs` | is fit | does nothing, for ever |
#![expect(clippy::print_stdout, reason = "a daemon asks it")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let program = std::env::current_exe().expect("it has a path");
    let name = program.file_name().and_then(|name| name.to_str());
    let name = name.expect("a name of ours");
    let check = std::env::args().nth(2).as_deref() == Some("--check");
    match (name, check) {
        ("mute", true) | ("hangs", false) => loop {
            std::thread::park();
        },
        ("other-format", true) => say("99.0.0", 999),
        ("older", true) => say("0.0.1", 2),
        ("fails" | "hangs", true) => say("99.0.0", 2),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn say(build: &str, reads: u32) {
    println!(r#"{{"build":"{build}","reads":[{reads}]}}"#);
}
