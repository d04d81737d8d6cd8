//! Plays schedules until one breaks a rule, then reports the shortest form of it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is run by a person or by CI, and its trace is what it is run for"
)]

use std::process::ExitCode;

use clap::Parser;
use kennel_sim::{Coverage, Schedule, play_counted, report, trace_of};

#[derive(Debug, Parser)]
#[command(name = "kennel-sim")]
struct Args {
    /// Repeat the schedules of an earlier run [default: fresh]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of schedules
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    schedules: u64,
    /// Number of the first schedule
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Print the trace of every schedule
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(kennel_testkit::seed);
    println!("seed {seed}, {} schedules", args.schedules);
    let mut coverage = Coverage::default();
    for number in args.first..args.first.saturating_add(args.schedules) {
        let done = number - args.first;
        if done > 0 && done.is_multiple_of(10_000) {
            eprintln!("{done} schedules");
        }
        let schedule = Schedule::draw(seed, number);
        if args.verbose {
            println!("{}", trace_of(&schedule).join("\n"));
        }
        if play_counted(&schedule, &mut coverage).is_some() {
            println!("{}", report(seed, number));
            return ExitCode::FAILURE;
        }
    }
    print!("{coverage}");
    println!("no rule was broken");
    ExitCode::SUCCESS
}
