//! `cargo xtask instructions`: counts the instructions of a small call, and compares them with the baseline.
//!
//! Time varies on a machine that does other work; instruction counts do not. The counted code is the part of shim and
//! daemon that decides (`bench/hot-path`): it makes no system calls, so one binary gives one number. The count without any
//! call is subtracted, so the start does not matter.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

use crate::Outcome;
use crate::preflight::in_ci;
use crate::report::succeeds;
use crate::workspace::{DIST, Workspace};

const PARTS: [&str; 4] = ["line", "shim", "daemon", "engine"];
const CALLS: u64 = 1000;
/// Allowed increase over the baseline in percent.
const MORE_PERCENT: f64 = 10.0;
const BASELINE: &str = "bench/instructions.json";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Make the current counts the baseline
    #[arg(long)]
    accept: bool,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let Some(valgrind) = valgrind() else {
        let words =
            "valgrind is missing: NOT CHECKED: instructions of a small call; install valgrind";
        return match in_ci() {
            true => Err(format!("CI=true, and {words}").into()),
            false => {
                println!("{words}");
                Ok(ExitCode::SUCCESS)
            }
        };
    };
    let workspace = Workspace::load()?;
    let counted = Counts {
        compiler: compiler()?,
        per_call: count(&workspace)?,
    };
    println!("{valgrind}, {}", counted.compiler);
    let path = workspace.root.join(BASELINE);
    if args.accept {
        fs::write(&path, format!("{:#}\n", counted.to_json()))?;
        println!("accepted: {}", path.display());
    }
    let text = fs::read_to_string(&path).map_err(|error| {
        format!("{BASELINE}: {error}; `cargo xtask instructions --accept` writes it")
    })?;
    let baseline = Counts::from_json(&serde_json::from_str(&text)?).ok_or_else(|| {
        format!("{BASELINE} cannot be parsed; `cargo xtask instructions --accept` writes a new one")
    })?;
    let verdicts = baseline.judge(&counted);
    for (part, verdict) in &verdicts {
        println!("{part:>8}  {}", verdict.words);
    }
    if baseline.compiler != counted.compiler {
        println!(
            "the baseline is of {}: another compiler generates other instructions, so nothing is compared; write a new baseline with --accept",
            baseline.compiler
        );
        return Ok(ExitCode::SUCCESS);
    }
    Ok(match verdicts.iter().all(|(_, verdict)| verdict.holds) {
        true => ExitCode::SUCCESS,
        false => {
            println!(
                "a call needs over {MORE_PERCENT}% more instructions; to accept that: `cargo xtask instructions --accept`"
            );
            ExitCode::FAILURE
        }
    })
}

/// Instructions of a call, by part, and the compiler.
#[derive(Debug, Clone, PartialEq)]
struct Counts {
    compiler: String,
    per_call: BTreeMap<String, f64>,
}

struct Comparison {
    holds: bool,
    words: String,
}

impl Counts {
    fn to_json(&self) -> Value {
        json!({ "compiler": self.compiler, "instructions_per_call": self.per_call })
    }

    fn from_json(json: &Value) -> Option<Counts> {
        let per_call = json["instructions_per_call"].as_object()?.iter();
        Some(Counts {
            compiler: json["compiler"].as_str()?.to_owned(),
            per_call: per_call
                .map(|(part, count)| Some((part.clone(), count.as_f64()?)))
                .collect::<Option<_>>()?,
        })
    }

    /// Compares the current counts with this baseline. A part that the baseline lacks fails.
    fn judge(&self, now: &Counts) -> Vec<(String, Comparison)> {
        let verdict = |(part, count): (&String, &f64)| {
            let verdict = match self.per_call.get(part) {
                None => Comparison {
                    holds: false,
                    words: format!("{count:.0} instructions per call, and no baseline"),
                },
                Some(before) => {
                    let more = (count / before - 1.0) * 100.0;
                    Comparison {
                        holds: count * 100.0 <= before * (100.0 + MORE_PERCENT),
                        words: format!(
                            "{count:.0} instructions per call, {more:+.1}% of {before:.0}"
                        ),
                    }
                }
            };
            (part.clone(), verdict)
        };
        now.per_call.iter().map(verdict).collect()
    }
}

fn valgrind() -> Option<String> {
    let output = Command::new("valgrind").arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The compiler version and the target.
fn compiler() -> Outcome<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let (version, host) = of("rustc ")
        .zip(of("host: "))
        .ok_or("rustc does not print its version")?;
    let version = version.split_whitespace().next().unwrap_or(version);
    Ok(format!("rustc {version}, {host}"))
}

fn count(workspace: &Workspace) -> Outcome<BTreeMap<String, f64>> {
    let mut build = workspace.cargo();
    build.args(["build", "--profile", DIST, "--locked"]);
    build.args(["--package", "hot-path"]);
    if !succeeds(&mut build)? {
        return Err("hot-path cannot be built".into());
    }
    let program = workspace.target.join(DIST).join("hot-path");
    let mut counts = BTreeMap::new();
    for part in PARTS {
        let (calls, none) = (
            instructions(&program, part, CALLS)?,
            instructions(&program, part, 0)?,
        );
        counts.insert(
            part.to_owned(),
            calls.saturating_sub(none) as f64 / CALLS as f64,
        );
    }
    Ok(counts)
}

fn instructions(program: &PathBuf, part: &str, calls: u64) -> Outcome<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([part, &calls.to_string()])
        // The environment is on the stack, and its size changes alignment.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let counted = collected(&said).filter(|_| output.status.success());
    counted.ok_or_else(|| format!("valgrind did not count {part}: {said}").into())
}

fn collected(said: &str) -> Option<u64> {
    let (_, count) = said.split_once("Collected : ")?;
    count.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(shim: f64) -> Counts {
        Counts {
            compiler: "rustc 1".to_owned(),
            per_call: BTreeMap::from([("shim".to_owned(), shim)]),
        }
    }

    #[test]
    fn an_increase_over_a_tenth_fails_and_a_smaller_one_passes() {
        let baseline = counts(1000.0);
        for (now, holds) in [(900.0, true), (1100.0, true), (1101.0, false)] {
            assert_eq!(baseline.judge(&counts(now))[0].1.holds, holds, "{now}");
        }
    }

    #[test]
    fn a_part_missing_in_the_baseline_fails() {
        let mut baseline = counts(1000.0);
        baseline.per_call.clear();
        assert!(!baseline.judge(&counts(1.0))[0].1.holds);
    }

    #[test]
    fn a_baseline_can_be_read_back() {
        let baseline = counts(1234.5);
        assert_eq!(Counts::from_json(&baseline.to_json()), Some(baseline));
        assert_eq!(Counts::from_json(&json!({})), None);
    }

    #[test]
    fn the_count_is_found_in_the_output() {
        let said = "==1== Events    : Ir\n==1== Collected : 123456\n==1==\n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==1== nothing"), None);
    }
}
