//! `cargo xtask test`: runs every test, also on a new machine, as each uid that is possible.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::{Command, ExitCode};

use kennel_testkit::{CANARY, Canary};

use crate::leftovers::{self, MARK};
use crate::nextest::Nextest;
use crate::plan::{Part, Plan};
use crate::report::{Report, succeeds};
use crate::workspace::Workspace;
use crate::{Outcome, canary, preflight, testbed, unprivileged, unserved};

/// The variable for the number of tests that nextest runs at once.
const THREADS: &str = "NEXTEST_TEST_THREADS";

const NEXTEST: &str = "cargo-nextest";
const BUILD: &str = "build";
const TESTBED: &str = "testbed";
const DOC_TESTS: &str = "doc tests";
const LEFTOVERS: &str = "nothing left behind";
const SECRET: &str = "no secret in files";
const UNSERVED: &str = "a platform that is not served";

fn tests_as(uid: u32) -> String {
    format!("tests as uid {uid}")
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run loops at their full count instead of a tenth of it
    #[arg(long)]
    full: bool,
    /// Repeat the random choices of an earlier run [default: KENNEL_SEED, else fresh]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Name parts, -E 'filter' or other options of `cargo nextest run`; leaves out doc tests and the check for unserved
    /// platforms
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let run = Run::new(args)?;
    run.announce();
    let gaps = preflight::check()?;
    let workspace = Workspace::load()?;
    let found = Nextest::find(&workspace);
    let plan = run.plan(&workspace.target, found.is_some());
    println!("\n── plan ──");
    for line in plan.lines() {
        println!("{line}");
    }
    println!("on two idle cores; less if programs are already built or installed");

    let mut report = Report::new(plan)?;
    let Some(nextest) = found.or_else(|| {
        let mut installed = None;
        report.step(NEXTEST, || {
            installed = Some(Nextest::install(&workspace)?);
            Ok(true)
        });
        installed
    }) else {
        return Ok(report.close());
    };
    if !report.step(BUILD, || build(&workspace)) {
        return Ok(report.close());
    }
    let mut bed = None;
    report.step(TESTBED, || {
        bed = testbed::install(&workspace)?;
        // If a tool for it is missing, preflight has printed that, and failed with `CI=true`.
        Ok(bed.is_some() || !gaps.is_empty())
    });
    report.step(&tests_as(rustix::process::geteuid().as_raw()), || {
        current_uid(&workspace, &nextest, &run, bed.as_deref())
    });
    if preflight::is_root() {
        report.step(&tests_as(unprivileged::UID), || {
            unprivileged::pass(&workspace, &nextest, &run)
        });
    }
    let everything = run.is_everything();
    if everything {
        report.step(DOC_TESTS, || doc_tests(&workspace, &run));
    }
    report.step_even_if_interrupted(LEFTOVERS, || Ok(leftovers::none_left(&run.mark)));
    report.step_even_if_interrupted(SECRET, || Ok(canary::is_nowhere(&run.canary, &workspace)));
    if everything {
        report.step(UNSERVED, || unserved::compiles(&workspace));
    }
    let code = report.close();
    for gap in gaps {
        println!("{gap}");
    }
    run.announce();
    Ok(code)
}

/// The common settings of all tests of a run.
#[derive(Debug)]
pub(crate) struct Run {
    seed: u64,
    full: bool,
    mark: String,
    /// The secret in the environment of all tests.
    pub(crate) canary: Canary,
    filters: Vec<String>,
}

impl Run {
    fn new(args: &Args) -> Outcome<Run> {
        let seed = match (args.seed, std::env::var("KENNEL_SEED")) {
            (Some(seed), _) => seed,
            (None, Ok(text)) => text.parse().map_err(|_| {
                format!("KENNEL_SEED={text} is not a whole number; unset it for a fresh one")
            })?,
            (None, Err(_)) => random(),
        };
        let mark = format!("{:016x}", random());
        Ok(Run {
            seed,
            full: args.full,
            mark,
            canary: Canary::fresh(),
            filters: args.filters.clone(),
        })
    }

    /// The parts of this run. Typical times are for two cores, the maximum with an empty target directory.
    fn plan(&self, target: &Path, has_nextest: bool) -> Plan {
        // Full counts and filters take between seconds and hours.
        let usual = self.is_everything() && !self.full;
        let tests = |least, most| usual.then_some((least, most));
        let uid = rustix::process::geteuid().as_raw();
        let mut parts = Vec::new();
        if !has_nextest {
            parts.push(Part::new(NEXTEST, (180, 480)));
        }
        parts.push(Part::new(BUILD, (180, 600)));
        parts.push(Part::new(TESTBED, (5, 180)));
        parts.push(Part::new(tests_as(uid), tests(300, 720)));
        if preflight::is_root() {
            parts.push(Part::new(tests_as(unprivileged::UID), tests(240, 600)));
        }
        if self.is_everything() {
            parts.push(Part::new(DOC_TESTS, (20, 120)));
        }
        parts.push(Part::new(LEFTOVERS, (1, 10)));
        parts.push(Part::new(SECRET, (1, 10)));
        if self.is_everything() {
            parts.push(Part::new(UNSERVED, (10, 120)));
        }
        let times = target.join("xtask/times.json");
        Plan::new(parts, usual.then_some(times.as_path()))
    }

    fn announce(&self) {
        let counts = if self.full {
            "full counts"
        } else {
            "a tenth of the full counts (--full: all)"
        };
        println!("KENNEL_SEED={}, {counts}", self.seed);
    }

    /// Sets the variables of the run for a command's tests, and marks the processes that they start.
    pub(crate) fn announce_to(&self, command: &mut Command) {
        // Most tests wait most of the time, and their deadlines allow two at once on each core.
        if std::env::var_os(THREADS).is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env(THREADS, (2 * cores).to_string());
        }
        command
            .env("KENNEL_SEED", self.seed.to_string())
            .env(MARK, &self.mark)
            .env(CANARY, self.canary.value());
        if self.full {
            command.env("KENNEL_FULL", "1");
        } else {
            command.env_remove("KENNEL_FULL");
        }
    }

    /// Whether all tests are to run.
    pub(crate) fn is_everything(&self) -> bool {
        self.filters.is_empty()
    }

    /// Adds the selection of tests and their timeouts.
    pub(crate) fn select(&self, nextest: &mut Command, root: bool, bed: bool) {
        if self.full {
            nextest.args(["--profile", "full"]);
        }
        if !self.filters.is_empty() {
            // A filter may select only tests that need root.
            nextest.arg("--no-tests=warn");
        }
        // `cargo test` alone leaves out what needs root or installed servers.
        nextest.args(["--run-ignored", "all"]);
        nextest.args(&self.filters);
        let unmet = [(root, "needs_root"), (bed, "needs_testbed")];
        let unmet = unmet.iter().filter(|(met, _)| !met).map(|(_, need)| need);
        let skipped: Vec<&str> = unmet.flat_map(|need| ["--skip", need]).collect();
        if !skipped.is_empty() {
            nextest.arg("--").args(skipped);
        }
    }
}

/// Builds everything at once, so that tests find the programs beside themselves. Without the mark: a compiler cache that a
/// build starts is not a leftover.
fn build(workspace: &Workspace) -> Outcome<bool> {
    succeeds(
        workspace
            .cargo()
            .args(["build", "--workspace", "--all-targets"]),
    )
}

fn current_uid(
    workspace: &Workspace,
    nextest: &Nextest,
    run: &Run,
    bed: Option<&Path>,
) -> Outcome<bool> {
    let mut command = nextest.command(workspace, "run");
    command.arg("--workspace");
    run.announce_to(&mut command);
    command.envs(bed.map(|bed| (testbed::VARIABLE, bed)));
    run.select(&mut command, preflight::is_root(), bed.is_some());
    succeeds(&mut command)
}

fn doc_tests(workspace: &Workspace, run: &Run) -> Outcome<bool> {
    let mut command = workspace.cargo();
    command.args(["test", "--doc", "--workspace"]);
    run.announce_to(&mut command);
    succeeds(&mut command)
}

pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(full: bool, filters: &[&str]) -> Run {
        let filters = filters.iter().map(|&filter| filter.to_owned()).collect();
        Run {
            seed: 7,
            full,
            mark: "m".to_owned(),
            canary: Canary::fresh(),
            filters,
        }
    }

    fn selected(run: &Run, root: bool) -> Vec<String> {
        let mut command = Command::new("nextest");
        run.select(&mut command, root, true);
        command
            .get_args()
            .map(|arg| arg.display().to_string())
            .collect()
    }

    #[test]
    fn only_root_runs_the_tests_that_need_root() {
        let all = ["--run-ignored", "all"];
        assert_eq!(selected(&run(false, &[]), true), all);
        let others = ["--run-ignored", "all", "--", "--skip", "needs_root"];
        assert_eq!(selected(&run(false, &[]), false), others);
    }

    #[test]
    fn a_full_run_is_more_patient() {
        let full = ["--profile", "full", "--run-ignored", "all"];
        assert_eq!(selected(&run(true, &[]), true), full);
    }

    #[test]
    fn filters_come_before_what_is_skipped() {
        let args = selected(&run(false, &["-E", "test(lock)"]), false);
        assert_eq!(
            args,
            [
                "--no-tests=warn",
                "--run-ignored",
                "all",
                "-E",
                "test(lock)",
                "--",
                "--skip",
                "needs_root"
            ]
        );
    }

    #[test]
    fn cargo_test_leaves_out_tests_of_root_and_of_installed_servers() {
        let mut dirs = ["crates", "examples", "sim", "xtask"]
            .map(|dir| Path::new("..").join(dir))
            .to_vec();
        let mut seen = 0;
        while let Some(path) = dirs.pop() {
            if path.is_dir() {
                let entries = std::fs::read_dir(&path).expect("a directory");
                dirs.extend(entries.map(|entry| entry.expect("an entry").path()));
                continue;
            }
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            // Each test with its attributes.
            for test in text.split("#[test]").skip(1) {
                let (attributes, rest) = test.split_once("fn ").expect("a function");
                let (name, _) = rest.split_once('(').expect("a name");
                let needs = name.contains("needs_root") || name.contains("needs_testbed");
                seen += usize::from(needs);
                let file = path.display();
                assert!(!needs || attributes.contains("#[ignore"), "{file}: {name}");
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn counts_follow_the_flag_and_not_the_environment() {
        let mut command = Command::new("nextest");
        run(false, &[]).announce_to(&mut command);
        assert!(
            command
                .get_envs()
                .any(|pair| pair == ("KENNEL_FULL".as_ref(), None))
        );
    }

    #[test]
    fn every_run_has_its_own_secret() {
        let secret = || {
            let mut command = Command::new("nextest");
            run(false, &[]).announce_to(&mut command);
            let mut set = command.get_envs();
            let value = set.find_map(|(name, value)| (name == CANARY).then_some(value)?);
            value.expect("it is set").to_owned()
        };
        assert_ne!(secret(), secret());
    }
}
