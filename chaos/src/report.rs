//! The report of a run: its steps, its totals, and, for a broken rule, the facts that help to find the cause.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::plan::Step;
use crate::rules::{Broken, walk};
use crate::world::World;

/// Number of steps, and of lines of each log, that are shown.
const LAST: usize = 30;
const TAIL: usize = 6000;

/// The steps so far.
#[derive(Debug)]
pub(crate) struct Trace {
    start: Instant,
    lines: Vec<String>,
    steps: u64,
    aloud: bool,
}

impl Trace {
    pub(crate) fn new(aloud: bool) -> Trace {
        Trace {
            start: Instant::now(),
            lines: Vec::new(),
            steps: 0,
            aloud,
        }
    }

    pub(crate) fn add(&mut self, step: &Step, target: &str) {
        self.steps += 1;
        let act = format!("{:?}", step.act);
        self.note(&format!("{:>3} {act}: {target}", self.steps));
    }

    pub(crate) fn note(&mut self, text: &str) {
        let at = self.start.elapsed().as_secs_f32();
        let line = format!("{at:>7.3} {text}");
        if self.aloud {
            println!("{line}");
        }
        self.lines.push(line);
    }
}

/// The totals of all worlds of a run.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    worlds: u32,
    steps: u64,
    sessions: u64,
    answers: u64,
    errors: u64,
    effects: u64,
    last: String,
}

impl Totals {
    pub(crate) fn add(&mut self, world: &World, trace: &Trace) {
        let sum = |of: fn(&crate::app::App) -> u64| world.apps.iter().map(of).sum::<u64>();
        let one = Totals {
            worlds: 1,
            steps: trace.steps,
            sessions: world.apps.len() as u64,
            answers: sum(|app| app.answers),
            errors: sum(|app| app.errors),
            effects: world.tally().len() as u64,
            last: String::new(),
        };
        self.worlds += one.worlds;
        self.steps += one.steps;
        self.sessions += one.sessions;
        self.answers += one.answers;
        self.errors += one.errors;
        self.effects += one.effects;
        self.last = format!("{one}, in {:.0?}", trace.start.elapsed());
    }

    pub(crate) fn of_last(&self) -> &str {
        &self.last
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} worlds, {} steps, {} sessions, {} results, {} errors, {} side effects",
            self.worlds, self.steps, self.sessions, self.answers, self.errors, self.effects
        )
    }
}

/// Prints a broken rule, with the command that repeats it.
pub(crate) fn broken(
    again: &str,
    number: u32,
    broken: &Broken,
    trace: &Trace,
    world: &mut World,
    keep: Option<&Path>,
) {
    println!("\nthe last steps of world {number}, of {}:", trace.steps);
    for line in trace.lines.iter().rev().take(LAST).rev() {
        println!("{line}");
    }
    println!("\nprocesses:");
    for member in &world.look().members {
        let state = if member.stopped { "stopped" } else { "" };
        let pid = member.process.pid();
        println!(
            "{pid:>7} {:>7} {:?} {state} {}",
            member.parent, member.role, member.line
        );
    }
    println!("\nrecords:");
    walk(&world.scope.runtime_dir(), &mut |path| show(path));
    if let Some(keep) = keep {
        let copied = Command::new("cp")
            .arg("-a")
            .arg(world.scope.dir())
            .arg(keep)
            .status();
        println!("the world's files are in {}: {copied:?}", keep.display());
    }
    println!(
        "\nchaos: step {} of world {number} broke a rule: {}",
        trace.steps, broken.rule
    );
    println!("chaos: {}", broken.why);
    println!("chaos: the same schedule again: cargo xtask chaos {again}");
}

fn show(path: &Path) {
    println!("{}", path.display());
    if path.file_name().is_some_and(|name| name == "log")
        && let Ok(log) = std::fs::read_to_string(path)
    {
        let from = log.len().saturating_sub(TAIL);
        let from = (from..log.len()).find(|&at| log.is_char_boundary(at));
        println!("{}", &log[from.unwrap_or(0)..]);
    }
}
