//! `notes`: a small MCP server that keeps notes in SQLite, and guards itself with `kennel-guard`.
//!
//! It is an example of what an author writes: one guard, taken before anything else, and the server
//! has one writer per store, ends with the app or owner that started it, and can be uninstalled
//! without tearing a database from under a running process.

mod cli;
mod failure;
mod inventory;
mod place;
mod serve;
mod server;
mod status;
mod store;
mod uninstall;

use std::process::ExitCode;

use clap::Parser as _;
use kennel_guard::Guard;

use crate::cli::{Cli, Verb};

fn main() -> ExitCode {
    // First thing: it looks who started us, which may be about to die (lesson 19).
    let guard = Guard::builder("notes");
    let cli = Cli::parse();
    let done = match cli.verb {
        Verb::Serve(args) => serve::run(&args, guard),
        Verb::Status(args) => status::run(&args, guard),
        Verb::Uninstall(args) => uninstall::run(&args, guard),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
