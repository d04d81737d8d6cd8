//! The command line. `kennel warden` is not here: it is started by Kennel itself, and `main` sees to it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::demo;

/// Keep local tool servers alive exactly as long as somebody needs them
///
/// One process where ten would run, none where nobody is left, and a session that goes on when the
/// server behind it dies.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what Kennel does, with nothing else installed
    ///
    /// Starts a stubborn server under a warden, kills whoever it was started for, and measures how long
    /// it takes until nothing is left. Takes a few seconds and leaves nothing behind.
    Demo {
        /// Which part of the show this process plays; for the demo itself
        #[arg(hide = true)]
        part: Option<demo::Part>,
    },
}

const EXAMPLES: &str = "Examples:
  kennel demo       see a stubborn server end with its app, in a few seconds

Exit codes: 0 done, 1 failed, 2 usage.";

pub(crate) fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Demo { part: None } => demo::show(),
        Command::Demo { part: Some(part) } => demo::play(part),
    }
}
