//! `cargo xtask fuzz`: ever new bytes for whatever reads lines and files, and what must hold for each of them.
//!
//! The engine steers by what of the code was reached. The compiler builds that in where it is told so, in a place
//! of its own below the target directory: nothing else is built anew for it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::plan::Plan;
use crate::report::{Report, succeeds};
use crate::test::random;
use crate::workspace::Workspace;
use crate::{Outcome, preflight};

const EXAMPLES: &str = "\
Examples:
  cargo xtask fuzz                       a minute for each target
  cargo xtask fuzz mux --seconds 600     ten minutes for one
  cargo xtask fuzz mux --others 15       a minute for one, and 15 s for all the others meanwhile
  cargo run -p kennel-fuzz --bin mux -- FILE   one find once more, without the engine";

/// What there is to throw at, as `fuzz/src/lib.rs` has it.
const TARGETS: [&str; 9] = [
    "message", "mux", "session", "lines", "hello", "record", "lock", "servers", "wrap",
];

/// What counts for reached: every branch, and what was compared there. The engine is linked in where `fuzzing` is set, as
/// `cargo fuzz` does.
const COVERAGE: &str = "--cfg=fuzzing \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to throw bytes at; none: all of them
    #[arg(value_parser = TARGETS)]
    targets: Vec<String>,
    /// For how long, each
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// At the same time, all that are not named: for so long
    #[arg(long, value_name = "N", requires = "targets")]
    others: Option<u32>,
    /// Begin with the random choices of an earlier run [default: fresh]
    #[arg(long, value_name = "N")]
    seed: Option<u32>,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let throws = throws(args);
    // Zero would be read as none given.
    let seed = args
        .seed
        .unwrap_or(u32::try_from(random() >> 33).map_or(1, |seed| seed | 1));
    // Without it nothing is run: that is a failure, with `CI=true` as without.
    println!("c++: {}", preflight::cpp_compiler()?);
    let fuzz = Fuzz::load()?;
    println!("seed {seed}, {} s for each target", args.seconds);
    if let Some(seconds) = args.others {
        println!("and {seconds} s for each of the others");
    }
    let mut report = Report::new(Plan::default())?;
    if report.step("build", || fuzz.build()) {
        // As many at once as there are cores: each of them keeps one busy.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let at_once = match args.others {
            // What is brief is over before what is long: nobody waits for it.
            Some(_) => throws.len(),
            None => cores,
        };
        for together in throws.chunks(at_once) {
            let names: Vec<&str> = together.iter().map(|(target, _)| *target).collect();
            report.step(&names.join(", "), || fuzz.throw_at_all(together, seed));
        }
    }
    Ok(report.close())
}

/// Which targets, and for how many seconds each.
fn throws(args: &Args) -> Vec<(&str, u32)> {
    if args.targets.is_empty() {
        return TARGETS.map(|target| (target, args.seconds)).to_vec();
    }
    let is_named = |target: &&str| args.targets.iter().any(|named| named == target);
    let named = TARGETS.into_iter().filter(is_named);
    let mut throws: Vec<(&str, u32)> = named.map(|target| (target, args.seconds)).collect();
    if let Some(seconds) = args.others {
        let others = TARGETS.into_iter().filter(|target| !is_named(target));
        throws.extend(others.map(|target| (target, seconds)));
    }
    throws
}

#[derive(Debug)]
struct Fuzz {
    workspace: Workspace,
    /// What the compiler calls this machine. Named, so that the coverage is not built into build scripts.
    host: String,
    /// Where all of it is built and kept.
    place: PathBuf,
}

impl Fuzz {
    fn load() -> Outcome<Fuzz> {
        let workspace = Workspace::load()?;
        let place = workspace.target.join("fuzz");
        Ok(Fuzz {
            host: host()?,
            place,
            workspace,
        })
    }

    fn build(&self) -> Outcome<bool> {
        let mut cargo = self.workspace.cargo();
        cargo
            .args(["build", "--release", "--package", "kennel-fuzz"])
            .args(["--bins", "--target", &self.host])
            .env("CARGO_TARGET_DIR", &self.place)
            .env("CARGO_ENCODED_RUSTFLAGS", encoded(COVERAGE))
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_STRIP", "none")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
        succeeds(&mut cargo)
    }

    fn throw_at_all(&self, throws: &[(&str, u32)], seed: u32) -> Outcome<bool> {
        std::thread::scope(|threads| {
            let mut running = Vec::new();
            for &(target, seconds) in throws {
                running.push(threads.spawn(move || {
                    let thrown = self.throw_at(target, seconds, seed);
                    thrown.map_err(|error| error.to_string())
                }));
            }
            let mut held = true;
            for running in running {
                held &= running
                    .join()
                    .map_err(|_| "the fuzzer's thread panicked")??;
            }
            Ok(held)
        })
    }

    /// Whether no rule was broken. What was reached is kept for the next time, and what broke a rule is named.
    fn throw_at(&self, target: &str, seconds: u32, seed: u32) -> Outcome<bool> {
        let reached = self.place.join("corpus").join(target);
        let finds = self.place.join("finds").join(target);
        fs::create_dir_all(&reached)?;
        fs::create_dir_all(&finds)?;
        let kept = self.workspace.root.join("fuzz");
        let program = self.place.join(&self.host).join("release").join(target);
        let mut engine = Command::new(program);
        engine
            .current_dir(&self.workspace.root)
            .arg(format!("-seed={seed}"))
            .arg(format!("-max_total_time={seconds}"))
            .arg(option("-dict", &kept.join("words.dict")))
            // A prefix, hence the slash at its end.
            .arg(option("-artifact_prefix", &finds.join("")))
            .args(["-max_len=4096", "-timeout=10", "-rss_limit_mb=1024"])
            .args(["-verbosity=0", "-print_funcs=0", "-print_final_stats=1"])
            .arg(reached)
            .arg(kept.join("corpus").join(target));
        let held = succeeds(&mut engine)?;
        if !held {
            let finds = finds.display();
            println!(
                "what broke a rule is below {finds}; once it is mended, it belongs into fuzz/corpus/{target}"
            );
        }
        Ok(held)
    }
}

fn host() -> Outcome<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output();
    let output = output.map_err(|error| format!("cannot run rustc: {error}"))?;
    host_in(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| "rustc does not say what it compiles for".into())
}

fn host_in(version: &str) -> Option<String> {
    let mut lines = version.lines();
    let host = lines.find_map(|line| line.strip_prefix("host: "))?;
    Some(host.to_owned())
}

/// Flags as cargo takes them apart again, whatever is in them.
fn encoded(flags: &str) -> String {
    flags.split_whitespace().collect::<Vec<_>>().join("\u{1f}")
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push("=");
    option.push(path);
    option
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_the_compiler_says() {
        let version = "rustc 1.95.0\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22\n";
        assert_eq!(
            host_in(version).expect("a host"),
            "x86_64-unknown-linux-gnu"
        );
        assert_eq!(host_in("rustc 1.95.0\n"), None);
    }

    #[test]
    fn those_that_are_named_have_their_time_and_the_others_theirs() {
        let args = |targets: &[&str], others| Args {
            targets: targets.iter().map(|&target| target.to_owned()).collect(),
            seconds: 60,
            others,
            seed: None,
        };
        assert_eq!(throws(&args(&[], None)).len(), TARGETS.len());
        assert_eq!(throws(&args(&["mux"], None)), [("mux", 60)]);
        let all = args(&["mux", "message"], Some(15));
        let all = throws(&all);
        assert_eq!(all.len(), TARGETS.len());
        assert_eq!(all[..3], [("message", 60), ("mux", 60), ("session", 15)]);
    }

    #[test]
    fn every_flag_of_the_compiler_is_one_to_cargo() {
        let flags = encoded(COVERAGE);
        assert!(flags.split('\u{1f}').all(|flag| flag.starts_with('-')));
    }
}
