//! The matrix: whoever dies, however, whatever is around it, nothing is left once nobody is there (rule 2).
//!
//! `cargo xtask test --full -- the_matrix --no-capture` runs every cell and prints the whole table; without
//! `--full` it is a random tenth of the cells, another one with every seed.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use kennel_sys::Signal;
use kennel_testkit::{Rng, count};

#[path = "matrix/scene.rs"]
mod scene;
#[path = "matrix/table.rs"]
mod table;

use scene::{Outcome, play};

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    App,
    Shim,
    Daemon,
    Warden,
    Server,
    Owner,
    DaemonAndShims,
    /// The warden and the one it serves: the shim or the daemon. What is left is for the next start.
    ServedAndWarden,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Solo,
    Daemon,
}

/// What is around the death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    PipeCloses,
    PipeHeld,
    Launcher,
    /// Within 100 ms of the victim's start.
    Early,
    /// The dead stay zombies: nobody reaps the app, nor the app what it inherits.
    Zombie,
    /// The server ignores EOF and SIGTERM, and has two detached grandchildren.
    Stubborn,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    victim: Victim,
    how: Signal,
    mode: Mode,
    around: Around,
    /// `KENNEL_FEATURES_OFF`.
    off: &'static str,
}

const VICTIMS: [Victim; 8] = [
    Victim::App,
    Victim::Shim,
    Victim::Daemon,
    Victim::Warden,
    Victim::Server,
    Victim::Owner,
    Victim::DaemonAndShims,
    Victim::ServedAndWarden,
];
const MODES: [Mode; 2] = [Mode::Solo, Mode::Daemon];
const AROUNDS: [Around; 6] = [
    Around::PipeCloses,
    Around::PipeHeld,
    Around::Launcher,
    Around::Early,
    Around::Zombie,
    Around::Stubborn,
];
const KERNELS: [&str; 3] = ["", "peer-pidfd", "pidfs"];

/// Cells are played side by side: most of one is waiting.
const AT_ONCE: usize = 2;

impl Cell {
    /// Every cell of the table, in its order; those that cannot be as well.
    fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for victim in VICTIMS {
            for &how in victim.hows() {
                for mode in MODES {
                    for around in AROUNDS {
                        cells.extend(KERNELS.map(|off| Cell {
                            victim,
                            how,
                            mode,
                            around,
                            off,
                        }));
                    }
                }
            }
        }
        cells
    }

    /// Whether it is played: in solo there is neither daemon nor owner.
    fn is_possible(&self) -> bool {
        let of_the_daemon = [Victim::Daemon, Victim::Owner, Victim::DaemonAndShims];
        self.mode == Mode::Daemon || !of_the_daemon.contains(&self.victim)
    }

    /// Whether somebody is still served after this death, so that nothing has to end yet.
    fn leaves_a_session(&self) -> bool {
        !matches!(
            self.victim,
            Victim::App | Victim::Shim | Victim::DaemonAndShims
        )
    }
}

impl Victim {
    fn hows(self) -> &'static [Signal] {
        match self {
            Victim::Daemon => &[Signal::TERM, Signal::KILL, Signal::STOP],
            _ => &[Signal::TERM, Signal::KILL],
        }
    }
}

#[test]
fn rule_2_the_matrix_nothing_is_left_whoever_dies() {
    let cells = Cell::all();
    let chosen = a_share_of(&cells);
    let todo = Mutex::new(chosen.iter().copied().rev().collect::<Vec<_>>());
    let done = Mutex::new(vec![None; cells.len()]);
    // Each takes its whole deadline: the table is to be printed before the run's patience is over.
    let enough_failures = count(40) as usize;
    let work = || {
        while table::failures(&cells, &done.lock().unwrap()).len() < enough_failures {
            let Some(index) = todo.lock().unwrap().pop() else {
                return;
            };
            let cell = &cells[index];
            let mut chance = Rng::seeded(&format!("{cell:?}"));
            // A labelled wait that ran out is this cell's outcome, and no reason to leave out the others.
            let outcome = catch_unwind(AssertUnwindSafe(|| play(cell, &mut chance)))
                .unwrap_or_else(|panic| Outcome::Failed(words(&*panic)));
            done.lock().unwrap()[index] = Some(outcome);
        }
    };
    std::thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(work);
        }
    });
    let outcomes = done.into_inner().unwrap();
    println!("{}", table::render(&cells, &outcomes));
    let failures = table::failures(&cells, &outcomes);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// All that are possible in a full run; else a random tenth of them.
fn a_share_of(cells: &[Cell]) -> Vec<usize> {
    let mut possible: Vec<usize> = (0..cells.len())
        .filter(|&index| cells[index].is_possible())
        .collect();
    let wanted = count(u32::try_from(possible.len()).unwrap()) as usize;
    let mut chance = Rng::seeded("matrix");
    while possible.len() > wanted {
        let left_out = chance.below(possible.len() as u64) as usize;
        possible.swap_remove(left_out);
    }
    possible.sort_unstable();
    possible
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}
