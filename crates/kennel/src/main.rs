//! `kennel` keeps local tool servers alive exactly as long as somebody needs them.

mod cli;
mod demo;
mod duration;
mod run;
mod shim;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else is looked at: a warden is started often, and is to be small and quick.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|word| word == "warden") {
        return kennel_sys::tree::warden_main(arguments).into();
    }
    // While whoever started us is still there (lesson 19).
    let origin = kennel_sys::starter::capture();
    cli::run(origin)
}

/// Tells the person that it did not work. stdout belongs to MCP.
#[expect(
    clippy::print_stderr,
    reason = "the one place for Kennel's own words, beside `warn`"
)]
pub(crate) fn fail(message: &str) -> ExitCode {
    eprintln!("kennel: {message}");
    ExitCode::FAILURE
}

/// Tells the person something that does not keep it from working.
#[expect(
    clippy::print_stderr,
    reason = "the one place for Kennel's own words, beside `fail`"
)]
pub(crate) fn warn(message: &str) {
    eprintln!("kennel: warning: {message}");
}
