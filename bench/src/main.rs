//! Measures Kennel. What is judged is a ratio to something plain measured in the same run wherever there
//! is such a thing, so that it means the same on a fast machine and on a slow one.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark is run by a person, and its output is what it is run for"
)]

mod app_death;
mod bounds;
#[cfg(target_os = "linux")]
mod caller;
mod crowd;
#[cfg(target_os = "linux")]
mod exit_event;
#[cfg(target_os = "linux")]
mod former;
mod guard;
mod long_lines;
mod memory;
mod options;
#[cfg(target_os = "linux")]
mod peers;
#[cfg(target_os = "linux")]
mod people;
mod place;
mod plan;
mod plots;
mod quiet;
#[cfg(target_os = "linux")]
mod readme;
mod recovery;
mod report;
mod round_trip;
mod route;
#[cfg(target_os = "linux")]
mod scale;
#[cfg(target_os = "linux")]
mod sleeper;
#[cfg(target_os = "linux")]
mod spawn;
#[cfg(target_os = "linux")]
mod stage;
mod stats;
mod summary;
mod svg;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use options::Options;
use plan::Clock;
#[cfg(target_os = "linux")]
use {
    exit_event::run as exit_event,
    former::run as former,
    peers::run as peers,
    peers::seconds as seconds_of_peers,
    scale::run as scale,
    sleeper::run as sleeper,
    spawn::run as spawn,
    stage::{enter, is_inside},
};
#[cfg(not(target_os = "linux"))]
use {
    only_on_linux as exit_event, only_on_linux as former, only_on_linux as peers,
    only_on_linux as scale, only_on_linux as sleeper, only_on_linux as spawn,
};

const USAGE: &str = "\
usage: kennel-bench [benchmark] [options]

Without a benchmark: all of them, one after the other, in less than 20 minutes (--quick: two). What there is no time
for is said in the report.

benchmarks:
  round-trip   a request and its answer: direct, bare relays, solo, through the daemon
  spawn        from the start of `kennel run` to its first answer, and to the daemon
  memory       what a shim, a warden and the daemon hold, per client
  long-lines   lines of 1, 8 and 32 MB, and the memory they leave behind
  crowd        1 to 1000 clients on one server
  sleeper      nine clients beside one that reads nothing for a minute
  bounds       peers that send lines without end, and requests that nobody answers
  exit-event   from the kill of a process to the event, against a bare loop
  recovery     from the kill of a server or a daemon to the next answer
  app-death    from the kill of an app to the end of its server, pipe held open
  guard        from the kill of an owner to nothing left, and watching 1000 connections
  scale        many apps with many servers: processes, memory, descriptors, and a model of more
  former       this build against a former one (--against): round trip, attach, memory, long lines
  peers        others who put one server behind many clients: attach, calls, crowds, ends, idle

  redraw DIR   no benchmark: writes tables and plots again, from the report.json in there

options:
  --quick      a short run: enough to see that it works, too short to judge by
  --count N    how often a thing is measured in each batch
  --json       one line of JSON a benchmark, for programs
  --out DIR    the whole report as well, as files in this directory
  --apps N, --servers N   of `scale`: how many (10 and 5)
  --against K  of `former`: the former build's `kennel`; `cargo xtask bench` also takes a commit, and builds it
  --server S   of `peers`: only this server (everything, python, notes)

Each prints what it compares, a table, and PASS or FAIL for each of its bounds. Other work on the
machine meets all ways alike, for they take turns; run it again before you believe a FAIL.

exit codes: 0 all within their bounds, 1 not within them or not measured, 2 usage";

/// What can be measured, and how many seconds it takes on a machine with two processors, and in a short run. Last what
/// makes do with the time that is left.
const BENCHMARKS: &[Benchmark] = &[
    benchmark("round-trip", round_trip::run, [10, 1]),
    benchmark("spawn", spawn, [6, 2]),
    benchmark("memory", memory::run, [2, 1]),
    benchmark("long-lines", long_lines::run, [90, 12]),
    benchmark("crowd", crowd::run, [5, 1]),
    benchmark("sleeper", sleeper, [70, 4]),
    benchmark("bounds", bounds::run, [40, 15]),
    benchmark("exit-event", exit_event, [8, 1]),
    benchmark("recovery", recovery::run, [12, 2]),
    benchmark("app-death", app_death::run, [10, 1]),
    benchmark("guard", guard::run, [66, 6]),
    benchmark("scale", scale, [3, 2]),
    benchmark("former", former, [75, 12]),
    benchmark("peers", peers, [0, 0]),
];

struct Benchmark {
    name: &'static str,
    run: fn(&Options) -> io::Result<Outcome>,
    seconds: [u64; 2],
}

const fn benchmark(
    name: &'static str,
    run: fn(&Options) -> io::Result<Outcome>,
    seconds: [u64; 2],
) -> Benchmark {
    Benchmark { name, run, seconds }
}

impl Benchmark {
    fn time(&self, options: &Options) -> Duration {
        Duration::from_secs(match (self.name, options.quick) {
            ("peers", quick) => seconds_of_peers(quick),
            (_, quick) => self.seconds[usize::from(quick)],
        })
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments.iter().any(|word| ["--help", "-h"].contains(word)) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if let ["redraw", dir] = arguments[..] {
        return finish(summary::redraw(dir.as_ref()).map(|()| ExitCode::SUCCESS));
    }
    let (name, options) = match arguments.split_first() {
        Some((name, options)) if !name.starts_with('-') => (Some(*name), options),
        _ => (None, &arguments[..]),
    };
    let chosen: Vec<_> = BENCHMARKS
        .iter()
        .filter(|known| name.is_none_or(|name| name == known.name))
        // A whole run has nothing to hold this build against, unless a person says so.
        .filter(|known| {
            known.name != "former" || name.is_some() || arguments.contains(&"--against")
        })
        .collect();
    if chosen.is_empty() {
        let name = name.unwrap_or_default();
        return usage(&format!("no benchmark is called `{name}`"));
    }
    let mut options = match Options::parse(options) {
        Ok(options) => options,
        Err(problem) => return usage(&problem),
    };
    options.clock = Clock::start(name.is_none(), options.quick);
    finish(match is_inside() {
        true => run(&chosen, &options),
        false => enter(),
    })
}

fn finish(outcome: io::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("kennel-bench: {error}");
        ExitCode::FAILURE
    })
}

fn run(chosen: &[&Benchmark], options: &Options) -> io::Result<ExitCode> {
    if options.quick {
        eprintln!("kennel-bench: a short run: few rounds of each, too short to judge by");
    }
    let clock = &options.clock;
    let mut all_passed = true;
    for (place, benchmark) in chosen.iter().enumerate() {
        let name = benchmark.name;
        let rest: Duration = chosen[place..].iter().map(|one| one.time(options)).sum();
        let rest = clock.left().map_or(rest, |left| rest.min(left));
        let (left, so_far) = (rest.as_secs(), clock.elapsed().as_secs());
        let (place, all) = (place + 1, chosen.len());
        eprintln!(
            "kennel-bench: {name} ({place} of {all}, after {so_far} s; about {left} s are left)"
        );
        // The last one makes do with less.
        let needed = match place == all {
            true => Duration::from_secs(1),
            false => benchmark.time(options),
        };
        let measured = match clock.has(needed) {
            true => (benchmark.run)(options),
            false => Err(io::Error::other("no time was left for it")),
        };
        all_passed &= match measured {
            Ok(outcome) => outcome == Outcome::Pass,
            Err(error) => {
                options.skipped(&format!("{name}: {error}"));
                false
            }
        };
    }
    let seconds = clock.elapsed().as_secs();
    eprintln!("kennel-bench: done in {seconds} s");
    if let Some(dir) = &options.out {
        summary::write(dir, options, seconds)?;
        eprintln!("kennel-bench: the report is in {}", dir.display());
    }
    Ok(match all_passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Whether a benchmark stayed within its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Pass,
    Fail,
}

impl Outcome {
    fn and(self, other: Outcome) -> Outcome {
        match self {
            Outcome::Pass => other,
            Outcome::Fail => Outcome::Fail,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Outcome::Pass => "PASS",
            Outcome::Fail => "FAIL",
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn is_inside() -> bool {
    true
}

#[cfg(not(target_os = "linux"))]
fn enter() -> io::Result<ExitCode> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn seconds_of_peers(_: bool) -> u64 {
    0
}

#[cfg(not(target_os = "linux"))]
fn only_on_linux(_: &Options) -> io::Result<Outcome> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "it is measured with what only Linux has",
    ))
}

/// A program that `cargo xtask bench` built together with this one.
fn beside_us(name: &str) -> io::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let words = format!("{} is not built: run `cargo xtask bench`", path.display());
    Err(io::Error::other(words))
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("kennel-bench: {problem}\n\n{USAGE}");
    ExitCode::from(2)
}
