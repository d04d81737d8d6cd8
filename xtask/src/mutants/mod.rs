//! `cargo xtask mutants`: a mistake is made in a copy of the code, and the tests that are there to notice it are run.
//! One that passes all the same is a test that cannot fail.

mod copy;
mod in_diff;
mod keeper;
mod simulated;
mod table;

use std::fmt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::signals::Signals;

use crate::Outcome;
use crate::nextest::Nextest;
use crate::workspace::Workspace;
use copy::Copy;
use keeper::Ended;
use simulated::SIMULATED;
use table::MUTANTS;

const EXAMPLES: &str = "\
Examples:
  cargo xtask mutants                 every mistake, one at a time
  cargo xtask mutants lock warden     those of these areas, or whose words contain this
  cargo xtask mutants simulator       those that the simulator must find
  cargo xtask mutants --in-diff main  any mistake in the lines that changed since main (cargo-mutants)
  cargo xtask mutants --write         write docs/MUTATIONS.md from the table, and run nothing";

/// Where the table is to be read.
const DOCUMENT: &str = "docs/MUTATIONS.md";
/// What nextest exits with when tests were run, and some failed.
const SOME_FAILED: i32 = 100;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// An area, or part of the words that say what the mistake is [default: all]
    names: Vec<String>,
    /// Write docs/MUTATIONS.md from the table, and run nothing
    #[arg(long)]
    write: bool,
    /// Instead of the mistakes of the table, let cargo-mutants make them in the lines that changed since this commit
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["names", "write"])]
    in_diff: Option<String>,
    /// Options of `cargo mutants`, such as --list or --timeout 60
    #[arg(last = true, requires = "in_diff", value_name = "OPTION")]
    options: Vec<String>,
}

/// A mistake, and who must notice it.
#[derive(Debug)]
struct Mutant {
    area: Area,
    /// What is true of the program when it is made.
    mistake: &'static str,
    file: &'static str,
    /// What is there once, and what is there instead.
    text: &'static str,
    instead: &'static str,
    /// The package and the target that the tests are in, as cargo is told.
    among: (&'static [&'static str], &'static [&'static str]),
    caught_by: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    Lifetime,
    Session,
    Mux,
    Election,
    Lock,
    Gate,
    Hello,
    Sweep,
    Warden,
    Identity,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// What came of a mistake.
#[derive(Debug)]
enum Fate {
    /// These tests failed.
    Caught(Vec<String>),
    /// It could not be tried, and this is why.
    Failed(String),
    /// These tests passed.
    Missed(Vec<String>),
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    if args.write {
        std::fs::write(workspace.root.join(DOCUMENT), document())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(base) = &args.in_diff {
        return in_diff::run(&workspace, base, &args.options);
    }
    let chosen: Vec<&Mutant> = MUTANTS.iter().filter(|it| is_named(it, args)).collect();
    let simulated = SIMULATED.iter().filter(|it| it.is_named(&args.names));
    let simulated: Vec<&simulated::Simulated> = simulated.collect();
    if chosen.is_empty() && simulated.is_empty() {
        return Err(format!("no mistake is called {:?}", args.names).into());
    }
    let interrupts = Signals::catch(&[Signal::INT, Signal::TERM])?;
    let nextest = Nextest::find_or_install(&workspace)?;
    let place = workspace.target.join("mutants");
    let mut copy = Copy::of(&workspace.root, place.join("src"))?;
    let there = Workspace {
        root: copy.root().to_owned(),
        // Its own: what is built of a mistake must not be found by anyone else.
        target: place.join("target"),
        programs: Vec::new(),
    };
    let mut missed = 0;
    let mut tried = 0;
    for mutant in &chosen {
        let start = Instant::now();
        let fate = fate(mutant, &mut copy, &there, &nextest, &interrupts)?;
        // Ctrl-C interrupts a build too: that it failed says nothing.
        let (Some(fate), None) = (fate, interrupts.next()) else {
            println!("interrupted: what is not listed was not tried");
            return Ok(ExitCode::FAILURE);
        };
        tried += 1;
        missed += usize::from(!matches!(fate, Fate::Caught(_)));
        tell(mutant, &fate, start.elapsed());
    }
    for mutant in &simulated {
        let fate = mutant.fate(&mut copy, &there)?;
        if interrupts.next().is_some() {
            println!("interrupted: what is not listed was not tried");
            return Ok(ExitCode::FAILURE);
        }
        tried += 1;
        missed += usize::from(fate.is_err());
        mutant.tell(&fate);
    }
    println!(
        "{} of {tried} mistakes were caught by all who must",
        tried - missed
    );
    Ok(match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn is_named(mutant: &Mutant, args: &Args) -> bool {
    let is = |name: &String| mutant.area.to_string() == *name || mutant.mistake.contains(name);
    args.names.is_empty() || args.names.iter().any(is)
}

fn tell(mutant: &Mutant, fate: &Fate, took: Duration) {
    let Mutant { area, mistake, .. } = mutant;
    let (verdict, words) = match fate {
        Fate::Caught(by) => ("caught", format!("by {}", by.join(", "))),
        Fate::Missed(by) => ("MISSED", format!("by {}", by.join(", "))),
        Fate::Failed(why) => ("FAILED", why.clone()),
    };
    let took = took.as_secs_f64();
    println!("{verdict} {took:>6.1} s  {area:<8}  {mistake}\n                  {words}");
}

/// `None` if it was interrupted.
fn fate(
    mutant: &Mutant,
    copy: &mut Copy,
    there: &Workspace,
    nextest: &Nextest,
    interrupts: &Signals,
) -> Outcome<Option<Fate>> {
    let _made = copy.change(mutant.file, mutant.text, mutant.instead)?;
    // The programs that tests start are found beside them.
    let mut build = there.cargo();
    build.args(["build", "--quiet", "--bins", "--package", "kennel-testkit"]);
    build.args(mutant.among.0).stdin(Stdio::null());
    let built = build.output()?;
    if !built.status.success() {
        return Ok(Some(Fate::Failed(last_words(&built.stderr))));
    }
    let names = mutant.caught_by.iter();
    let names: Vec<String> = names.map(|name| format!("test(/(^|::){name}$/)")).collect();
    let mut tests: Command = nextest.command(there, "run");
    tests
        .args(["--package", "kennel-testkit"])
        .args(mutant.among.0)
        .args(mutant.among.1)
        .args(["-E", &names.join(" | ")])
        .args(["--run-ignored", "all"])
        .args(["--status-level", "fail", "--failure-output", "never"]);
    let Some(Ended { status, said }) = keeper::run(&mut tests, interrupts)? else {
        return Ok(None);
    };
    if status.code() != Some(SOME_FAILED) && !status.success() {
        return Ok(Some(Fate::Failed(last_words(&said))));
    }
    let caught = failed(&String::from_utf8_lossy(&said));
    let missed = mutant.caught_by.iter().copied();
    let missed: Vec<String> = missed
        .filter(|name| !caught.iter().any(|caught| caught == name))
        .map(str::to_owned)
        .collect();
    Ok(Some(match missed.is_empty() {
        true => Fate::Caught(caught),
        false => Fate::Missed(missed),
    }))
}

/// The tests that failed, by their last names.
fn failed(said: &str) -> Vec<String> {
    let lines = said.lines().filter(|line| {
        let (way, _) = line.trim_start().split_once(" [").unwrap_or_default();
        // Whichever signal it was.
        ["FAIL", "TIMEOUT", "ABORT", "LEAK-FAIL"].contains(&way) || way.starts_with("SIG")
    });
    let mut names: Vec<String> = lines
        .filter_map(|line| line.rsplit([' ', ':']).next())
        .map(str::to_owned)
        .collect();
    // Each is named again in the summary.
    names.sort();
    names.dedup();
    names
}

fn last_words(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let errors: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("error"))
        .collect();
    match errors.first() {
        Some(error) => (*error).to_owned(),
        None => said.lines().last().unwrap_or("no word").to_owned(),
    }
}

/// The table, for people.
fn document() -> String {
    let mut text = String::from(INTRODUCTION);
    for mutant in MUTANTS {
        let Mutant {
            area,
            mistake,
            file,
            caught_by,
            ..
        } = mutant;
        let file = file.trim_start_matches("crates/").replacen("/src/", "/", 1);
        let names: Vec<String> = caught_by.iter().map(|name| format!("`{name}`")).collect();
        text += &format!("| {area} | {mistake} | `{file}` | {} |\n", names.join(", "));
    }
    text + &simulated::document()
}

const INTRODUCTION: &str = "\
# Mistakes made on purpose

A test that has never failed proves little. `cargo xtask mutants` makes each of these mistakes in a copy of the code, one
at a time, and runs the tests that are named beside it: every one of them must fail. As root, for some of them. What is
changed into what is in `xtask/src/mutants/table.rs`; this page is written from it by `cargo xtask mutants --write`.

| area | mistake | in | caught by |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Tests run in their package's directory.
    const ROOT: &str = "..";

    #[test]
    fn every_mistake_can_still_be_made() {
        let edits = MUTANTS.iter().map(|it| (it.file, it.text, it.instead));
        let simulated = SIMULATED.iter().map(|it| (it.file, it.text, it.instead));
        for (file, text, instead) in edits.chain(simulated) {
            let content = std::fs::read_to_string(Path::new(ROOT).join(file)).expect(file);
            assert_eq!(content.matches(text).count(), 1, "{file}: {text:?}");
            assert_ne!(text, instead);
        }
    }

    #[test]
    fn the_simulator_has_twenty_mistakes_to_find_ten_of_them_in_what_it_did_not_play_before() {
        assert!(SIMULATED.len() >= 20);
        assert!(SIMULATED.iter().filter(|it| it.is_new).count() >= 10);
        assert!(SIMULATED.iter().all(|it| it.found_at < simulated::MOST));
    }

    #[test]
    fn every_area_has_mistakes_and_every_mistake_somebody_who_catches_it() {
        use Area::*;
        for area in [
            Lifetime, Session, Mux, Election, Lock, Gate, Hello, Sweep, Warden,
        ] {
            let its = MUTANTS.iter().filter(|mutant| mutant.area == area);
            assert!(its.count() >= 2, "{area}");
        }
        assert!(MUTANTS.iter().all(|mutant| !mutant.caught_by.is_empty()));
    }

    #[test]
    fn the_page_is_as_the_table_is() {
        let page = std::fs::read_to_string(Path::new(ROOT).join(DOCUMENT)).expect(DOCUMENT);
        assert!(page == document(), "run `cargo xtask mutants --write`");
    }

    #[test]
    fn who_failed_is_read_from_what_nextest_says() {
        let said = "\
        PASS [   0.1s] (1/3) kennel-core::mux calls::a
        FAIL [   0.2s] (2/3) kennel-core::mux lists::who_asks
     TIMEOUT [ 240.0s] (3/3) kennel::daemon late
     SIGKILL [  60.4s] (3/3) kennel::bin/kennel election::killed
        FAIL [   0.2s] (2/3) kennel-core::mux lists::who_asks
";
        assert_eq!(failed(said), ["killed", "late", "who_asks"]);
    }
}
