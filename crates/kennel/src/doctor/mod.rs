//! `kennel doctor` and `kennel reap`: what is not as it should be, and the end of what nobody needs.
//!
//! Looking creates nothing and ends nobody. Each finding says what it is, why it matters, and the command that
//! mends it.
#![expect(clippy::print_stdout, reason = "these answer a person's question")]

mod configs;
mod orphans;
mod reap;
mod runtime;

use std::process::ExitCode;

use serde::Serialize;

use crate::ps::words::printable;

pub(crate) use reap::{ReapArgs, reap};

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// For programs rather than people
    #[arg(long)]
    json: bool,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Which check found it.
    check: &'static str,
    what: String,
    why: &'static str,
    /// The command that mends it, or what to do.
    mend: String,
    /// The process it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

/// One thing that is looked at: its name, what it is about, and the look.
struct Check {
    name: &'static str,
    look: fn() -> Vec<Finding>,
}

/// Everything that is looked at, in this order.
const CHECKS: &[Check] = &[
    Check {
        name: "runtime directory",
        look: runtime::directory,
    },
    Check {
        name: "daemons",
        look: runtime::daemons,
    },
    Check {
        name: "records",
        look: runtime::records,
    },
    Check {
        name: "servers.toml",
        look: configs::servers_toml,
    },
    Check {
        name: "apps",
        look: configs::apps,
    },
    Check {
        name: "commands",
        look: configs::commands,
    },
    Check {
        name: "leftovers",
        look: runtime::leftovers,
    },
    Check {
        name: "orphans",
        look: orphans::findings,
    },
];

/// What all checks found, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Report {
    well: bool,
    findings: Vec<Finding>,
}

pub(crate) fn doctor(args: &DoctorArgs) -> ExitCode {
    let mut all = Vec::new();
    for check in CHECKS {
        let findings = (check.look)();
        if !args.json {
            show(check.name, &findings);
        }
        all.extend(findings);
    }
    let report = Report {
        well: all.is_empty(),
        findings: all,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).expect("plain values"));
    } else if report.well {
        println!("\nall is well");
    } else {
        let count = report.findings.len();
        println!("\n{count} finding{}", if count == 1 { "" } else { "s" });
    }
    match report.well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn show(name: &str, findings: &[Finding]) {
    if findings.is_empty() {
        println!("ok  {name}");
    }
    for finding in findings {
        println!("!!  {name}: {}", printable(&finding.what));
        println!("      why: {}", finding.why);
        println!("      do:  {}", printable(&finding.mend));
    }
}

/// Memory as people say it.
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / f64::from(1 << 20))
}

/// A time as people say it.
fn rounded(time: std::time::Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
