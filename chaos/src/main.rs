//! Kennel under random kills, freezes and faults: apps, sessions, daemons, wardens, servers and owners are started,
//! used, killed, stopped and thawed; disks are full, directories vanish, descriptors run out. After every step the
//! rules of ARCHITECTURE.md are checked from outside.
//!
//! A run is a row of worlds. Each is drawn from the seed and its number alone; it takes a number of steps, then all
//! faults are mended, and what may need a moment must have become true.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is its purpose"
)]

mod app;
mod faults;
mod guarded;
mod install;
mod intruders;
mod jobs;
mod plan;
mod processes;
mod report;
mod rules;
mod services;
mod settle;
mod steps;
mod strangers;
#[cfg(test)]
mod tests;
mod world;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use kennel_sys::events;

use plan::Plan;
use report::Trace;
use rules::{Broken, Judge};
use world::World;

/// The number of steps of a world, and of concurrent sessions.
const LARGE: (u32, usize) = (100, 200);
const SMALL: (u32, usize) = (50, 20);
/// Set if this process has its own namespaces for processes and mounts.
const OWN_NAMESPACES: &str = "TESTKIT_APART";

#[derive(Debug, Parser)]
#[command(name = "kennel-chaos")]
pub(crate) struct Args {
    /// Repeat the schedule of an earlier run [default: fresh]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run for this many minutes; the current world is finished
    #[arg(long, value_name = "N", default_value_t = 1)]
    minutes: u64,
    /// Run for this many seconds
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Begin with this world instead of the first
    #[arg(long, value_name = "N", default_value_t = 0)]
    world: u32,
    /// Run at most this many worlds
    #[arg(long, value_name = "N", default_value_t = u32::MAX)]
    worlds: u32,
    /// Run small worlds: fewer steps, and no crowds
    #[arg(long)]
    quick: bool,
    /// Do not create namespaces
    #[arg(long)]
    here: bool,
    /// Print every step, not just those before a broken rule
    #[arg(long)]
    verbose: bool,
    /// Copy the files of a world in which a rule was broken to this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if rustix::process::geteuid().is_root() && !args.here && !has_own_namespaces() {
        return enter_own_namespaces();
    }
    kennel_sys::limits::raise_descriptors();
    let seed = args.seed.unwrap_or_else(kennel_testkit::seed);
    match run(&args, seed) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kennel-chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether this process has its own namespaces: pids can be chosen, disks mounted, and no process outlives it.
pub(crate) fn has_own_namespaces() -> bool {
    std::env::var_os(OWN_NAMESPACES).is_some()
}

/// Starts this program again in new namespaces. The first process there is a shell, which reaps.
fn enter_own_namespaces() -> ExitCode {
    let program = std::env::current_exe().expect("a program has a path");
    // An exec, not a child: ending this process then ends all of it.
    let error = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", "\"$0\" \"$@\"; exit $?"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(OWN_NAMESPACES, "1")
        .exec();
    eprintln!("kennel-chaos: cannot run unshare: {error}; --here does without it");
    ExitCode::FAILURE
}

fn run(args: &Args, seed: u64) -> std::io::Result<ExitCode> {
    let time = args
        .seconds
        .map_or(Duration::from_secs(60 * args.minutes), Duration::from_secs);
    let apart = if has_own_namespaces() {
        "apart"
    } else {
        "without its own disk and chosen pids"
    };
    println!("chaos: seed {seed}, {time:?}, {apart}");
    let (steps, most) = if args.quick { SMALL } else { LARGE };
    let start = Instant::now();
    let mut totals = report::Totals::default();
    let mut number = args.world;
    while number == args.world || (start.elapsed() < time && number - args.world < args.worlds) {
        let plan = Plan::new(seed, number);
        let mut trace = Trace::new(args.verbose);
        trace.note(&format!("world {number}, kernel without {:?}", plan.off));
        let mut world = World::begin(plan.off)?;
        world.most = most;
        let lived = live(&mut world, steps, plan, &mut trace);
        totals.add(&world, &trace);
        if let Err(broken) = lived {
            let quick = if args.quick { " --quick" } else { "" };
            let again = format!("--seed {seed} --world {number} --worlds 1{quick}");
            report::broken(
                &again,
                number,
                &broken,
                &trace,
                &mut world,
                args.keep.as_deref(),
            );
            return Ok(ExitCode::FAILURE);
        }
        println!("chaos: world {number}: {}", totals.of_last());
        number += 1;
    }
    println!(
        "chaos: seed {seed}: no rule was broken in {:.0?}: {totals}",
        start.elapsed()
    );
    Ok(ExitCode::SUCCESS)
}

fn live(world: &mut World, steps: u32, mut plan: Plan, trace: &mut Trace) -> Result<(), Broken> {
    let mut judge = Judge::default();
    for _ in 0..steps {
        let step = plan.next();
        let _ = events::sleep(&[], &[], Some(step.pause));
        let used_before = steps::perform(world, step);
        trace.add(
            &step,
            &used_before.unwrap_or_else(|error| format!("failed: {error}")),
        );
        world.handle_lines(Duration::ZERO)?;
        let processes = world.look();
        world.handle_lines(Duration::ZERO)?;
        judge.look(world, &processes)?;
    }
    trace.note("the end of the world");
    settle::settle(world, &mut judge)?;
    Ok(())
}
