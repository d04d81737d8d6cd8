//! Kills at random while five clients write and read notes: what was acknowledged is there, nothing is there twice
//! unless its client asked twice, and every request has exactly one answer.
//!
//! `cargo xtask test --full` kills a thousand times. A run that failed printed its seed; it is run again with
//! `KENNEL_SEED=<seed> cargo xtask test`.

mod app;
mod kills;
mod world;

use kennel_testkit::{Rng, count};
use world::{Mode, World};

/// A session survives five losses a minute; then it is right to say that something is wrong.
const KILLS_A_WORLD: u32 = 5;

fn storm(label: &str, mode: Mode, kills: u32) {
    for number in 0..count(kills).div_ceil(KILLS_A_WORLD) {
        let label = format!("{label} {number}");
        let mut chance = Rng::seeded(&label);
        World::begin(&label, mode).live_through(KILLS_A_WORLD, &mut chance);
    }
}

#[test]
fn rules_4_and_5_servers_and_daemons_are_killed_and_no_note_is_lost() {
    storm("shared", Mode::Shared, 250);
}

#[test]
fn rules_4_and_5_the_same_with_other_kills() {
    storm("shared too", Mode::Shared, 250);
}

#[test]
fn rules_4_and_5_the_same_once_more() {
    storm("shared still", Mode::Shared, 250);
}

#[test]
fn rules_4_and_5_servers_and_wardens_of_solo_sessions_are_killed_and_no_note_is_lost() {
    storm("solo", Mode::Solo, 250);
}
