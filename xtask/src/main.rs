//! Kennel's chores, for people and for CI: `cargo xtask help`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "xtask talks to the person who runs it; no MCP passes through it"
)]

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod canary;
mod chaos;
mod dist;
mod fuzz;
mod instructions;
mod leftovers;
mod mutants;
mod nextest;
mod plan;
mod preflight;
mod program;
mod report;
mod sim;
mod test;
mod testbed;
mod unprivileged;
mod unserved;
mod workspace;

/// What a chore gives: an error is one line for the person who started it.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Kennel's chores
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                       every test, loops at a tenth of their count
  cargo xtask test --full                every test, loops at their full count
  cargo xtask test --seed 42             the random choices of an earlier run
  cargo xtask test -- a_late_client      only tests whose name contains this
  cargo xtask test -- -E 'package(notes)'
  cargo xtask install                    kennel, optimized as a whole, into ~/.cargo/bin
  cargo xtask bench exit-event           one benchmark, built with the profile dist
  cargo xtask instructions               what a small call costs, against the baseline
  cargo xtask fuzz mux --seconds 600     ten minutes of random schedules
  cargo xtask chaos --minutes 30         half an hour of random kills, freezes and faults
  cargo xtask sim --seed 42              a hundred thousand simulated schedules of an earlier run
  cargo xtask mutants lock               the mistakes made on purpose in locks, and who notices them
  .ci/run                                what has to pass before a change lands";

#[derive(Debug, Subcommand)]
enum Chore {
    /// Run every test: as this user, and as an unprivileged one when this user is root
    Test(test::Args),
    /// Build Kennel as it is handed out, and install it
    Install(dist::InstallArgs),
    /// Build the benchmarks with the profile dist and run those named, or all of them
    Bench(bench::Args),
    /// Count what a small call costs, and compare it with bench/instructions.json
    Instructions(instructions::Args),
    /// Throw random lines and schedules at kennel-core, steered by what of it they reach
    Fuzz(fuzz::Args),
    /// Start, use, kill, stop and starve everything at random, and check the rules after every step
    Chaos(chaos::Args),
    /// Play random schedules of all decisions together, on virtual time, and check the rules in each
    Sim(sim::Args),
    /// Make mistakes in a copy of the code, one at a time, and see that a test notices each
    Mutants(mutants::Args),
    /// Check that the code still compiles for a platform Kennel does not serve yet
    Unserved,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().chore {
        Chore::Test(args) => test::run(&args),
        Chore::Install(args) => dist::install(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Instructions(args) => instructions::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::Chaos(args) => chaos::run(&args),
        Chore::Sim(args) => sim::run(&args),
        Chore::Mutants(args) => mutants::run(&args),
        Chore::Unserved => unserved::run(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
