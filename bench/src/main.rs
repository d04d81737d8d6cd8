//! Measures Kennel. Every number is a ratio to something plain measured in the same run, so that it
//! means the same on a fast machine and on a slow one.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark is run by a person, and its output is what it is run for"
)]

mod app_death;
#[cfg(target_os = "linux")]
mod exit_event;
mod round_trip;
mod stats;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: kennel-bench <benchmark> [options]

benchmarks:
  exit-event [--count N] [--json]   from the kill of a process to the event, against a bare loop
  app-death [--count N] [--json]    from the kill of an app to the end of its server, pipe held
  round-trip [--count N] [--json]   a request and its answer, against a bare relay

exit codes: 0 within its bound, 1 not within it or not measured, 2 usage";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, options) = match arguments.split_first() {
        Some((&("--help" | "-h"), _)) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some((&name, options)) => (name, options),
        None => return usage("which benchmark?"),
    };
    let Some(benchmark) = named(name) else {
        return usage(&format!("no benchmark is called `{name}`"));
    };
    let options = match Options::parse(options) {
        Ok(options) => options,
        Err(problem) => return usage(&problem),
    };
    match benchmark(&options) {
        Ok(Outcome::Pass) => ExitCode::SUCCESS,
        Ok(Outcome::Fail) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kennel-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn named(name: &str) -> Option<fn(&Options) -> io::Result<Outcome>> {
    match name {
        "exit-event" => Some(exit_event),
        "app-death" => Some(app_death::run),
        "round-trip" => Some(round_trip::run),
        _ => None,
    }
}

/// Whether a benchmark stayed within its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Pass,
    Fail,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Pass => "PASS",
            Outcome::Fail => "FAIL",
        }
    }
}

/// What a person may ask for.
#[derive(Debug)]
struct Options {
    /// How often a thing is measured, in each batch.
    count: usize,
    /// For programs rather than people.
    json: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options {
            count: 500,
            json: false,
        };
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            match argument {
                "--json" => options.json = true,
                "--count" => {
                    let value = rest.next().copied().unwrap_or_default();
                    options.count =
                        value
                            .parse()
                            .ok()
                            .filter(|&count| count > 0)
                            .ok_or(format!(
                                "--count takes a whole number from 1, not `{value}`"
                            ))?;
                }
                other => return Err(format!("no option is called `{other}`")),
            }
        }
        Ok(options)
    }
}

#[cfg(target_os = "linux")]
fn exit_event(options: &Options) -> io::Result<Outcome> {
    exit_event::run(options)
}

#[cfg(not(target_os = "linux"))]
fn exit_event(_: &Options) -> io::Result<Outcome> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "exit-event compares with pidfd, which only Linux has",
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
