//! Development tasks for people and for CI: `cargo xtask help`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "xtask prints for its user; its stdout carries no MCP"
)]

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod canary;
mod chaos;
mod deny;
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
mod tools;
mod unprivileged;
mod unserved;
mod workspace;

/// The result of a task. An error is one line for the user.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Development tasks of Kennel
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    task: Task,
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
  cargo xtask mutants --in-diff main     random mistakes in what changed since main
  cargo xtask deny                       licences, sources and vulnerabilities of dependencies
  .ci/run                                what has to pass before a change lands";

#[derive(Debug, Subcommand)]
enum Task {
    /// Run every test: as this user, and as an unprivileged one when this user is root
    Test(test::Args),
    /// Build Kennel for release, and install it
    Install(dist::InstallArgs),
    /// Build the benchmarks with the profile dist, and run all or some of them
    Bench(bench::Args),
    /// Count the instructions of a small call, and compare them with bench/instructions.json
    Instructions(instructions::Args),
    /// Fuzz kennel-core with random lines and schedules, guided by coverage
    Fuzz(fuzz::Args),
    /// Start, use, kill, stop and starve processes at random, and check the rules after every step
    Chaos(chaos::Args),
    /// Run random schedules of all decisions on virtual time, and check the rules in each
    Sim(sim::Args),
    /// Plant mistakes in a copy of the code, one at a time, and check that a test finds each
    Mutants(mutants::Args),
    /// Check licences, sources, bans and known vulnerabilities of the dependencies (deny.toml)
    Deny,
    /// Check that the code still compiles for a platform Kennel does not serve yet
    Unserved,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Install(args) => dist::install(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Instructions(args) => instructions::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Chaos(args) => chaos::run(&args),
        Task::Sim(args) => sim::run(&args),
        Task::Mutants(args) => mutants::run(&args),
        Task::Deny => deny::run(),
        Task::Unserved => unserved::run(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
