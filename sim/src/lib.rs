//! Kennel's decisions together: election, lifetime, session and mux, on virtual time, with a kernel that is a value.
//!
//! What decides is the real code of `kennel-core`; processes, locks, sockets and one directory are values
//! (`kernel.rs`). A world is drawn from a seed and a number alone, so that whatever
//! happened happens again.

mod app;
mod books;
mod daemon;
mod elector;
mod kernel;
mod plan;
mod server;
mod shim;
mod shrink;
mod world;

pub use app::Era;
pub use books::Tool;
pub use kernel::Shortage;
pub use plan::{Act, Schedule, Who};
pub use shrink::shrink;

use world::World;

/// Plays a schedule: the rule that it broke, if it did.
pub fn play(schedule: &Schedule) -> Option<String> {
    let mut world = World::new(schedule, false);
    world.play(schedule);
    world.kernel.broken
}

/// Plays it once more, and tells what happens: a line an event.
pub fn tell(schedule: &Schedule) -> Vec<String> {
    let mut world = World::new(schedule, true);
    world.play(schedule);
    world.kernel.take_trace()
}

/// What is to be said of a schedule that breaks a rule: the shortest that does so too, told to its end.
pub fn report(seed: u64, number: u64) -> String {
    let schedule = Schedule::draw(seed, number);
    let rule = play(&schedule).unwrap_or_default();
    let short = shrink(&schedule, |less| play(less).is_some());
    let told = tell(&short).join("\n");
    format!(
        "{told}\n\
        schedule {number} of seed {seed}: {rule}\n\
        what is left of it: {short:?}\n\
        once more: cargo xtask sim --seed {seed} --first {number} --schedules 1"
    )
}

/// As much of a line as a person wants to read.
fn shortened(line: &str) -> String {
    const ENOUGH: usize = 150;
    match line.char_indices().nth(ENOUGH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
