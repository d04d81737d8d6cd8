//! The engines of Kennel together, on virtual time and a simulated kernel.
//!
//! All decisions are made by the shipped code of `kennel-core`; processes, locks, sockets and one directory are
//! simulated (`kernel/mod.rs`). A world depends only on a seed and a number, so every run can be repeated.

mod app;
mod coverage;
mod daemon;
mod daemon_connection;
mod election_driver;
mod kernel;
mod lines;
mod plan;
mod request_log;
mod server;
mod shim;
mod shrink;
mod world;

pub use app::Era;
pub use coverage::{Coverage, Situation};
pub use kernel::Shortage;
pub use plan::{Act, Role, Schedule};
pub use request_log::Tool;
pub use shrink::shrink;

use world::World;

/// Plays a schedule. Returns the rule that it broke, if any.
pub fn play(schedule: &Schedule) -> Option<String> {
    play_counted(schedule, &mut Coverage::default())
}

/// Plays a schedule, and adds the situations that occurred.
pub fn play_counted(schedule: &Schedule, coverage: &mut Coverage) -> Option<String> {
    let mut world = World::new(schedule, false);
    world.play(schedule);
    coverage.add(&world.kernel.coverage);
    world.kernel.broken
}

/// Plays a schedule again and returns its trace: one line for each event.
pub fn trace_of(schedule: &Schedule) -> Vec<String> {
    let mut world = World::new(schedule, true);
    world.play(schedule);
    world.kernel.take_trace()
}

/// Reports a schedule that breaks a rule: the shortest schedule that also breaks one, with its trace.
pub fn report(seed: u64, number: u64) -> String {
    let schedule = Schedule::draw(seed, number);
    let rule = play(&schedule).unwrap_or_default();
    let short = shrink(&schedule, |less| play(less).is_some());
    let trace = trace_of(&short).join("\n");
    format!(
        "{trace}\n\
        schedule {number} of seed {seed}: {rule}\n\
        shortest schedule that breaks a rule: {short:?}\n\
        to repeat: cargo xtask sim --seed {seed} --first {number} --schedules 1"
    )
}

/// The beginning of a line, for a trace.
fn shortened(line: &str) -> String {
    const MAX_CHARACTERS: usize = 150;
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The number of bytes to read or write in a turn.
fn part(salt: u64) -> usize {
    let most = [100, 700, 4_000, 4_000][(salt >> 24) as usize % 4];
    1 + (salt >> 32) as usize % most
}
