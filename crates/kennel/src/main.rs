//! `kennel` keeps local tool servers alive exactly as long as somebody needs them.

mod cli;
mod demo;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else is looked at: a warden is started often, and is to be small and quick.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|word| word == "warden") {
        return kennel_sys::tree::warden_main(arguments).into();
    }
    cli::run()
}
