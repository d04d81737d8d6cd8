//! `kennel doctor` and `kennel reap`: what is not as it should be, and the end of what nobody needs.
//!
//! Looking creates nothing and ends nobody. Each finding says what it is, why it matters, and the command that
//! mends it.

mod configs;
mod orphans;
mod reap;
mod runtime;

use std::process::ExitCode;

use serde::Serialize;

use crate::ps::words::printable;
use crate::say::{self, say};

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
    look: fn() -> Result<Vec<Finding>, String>,
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
        name: "server processes",
        look: runtime::servers,
    },
    Check {
        name: "records",
        look: runtime::records,
    },
    Check {
        name: "environment",
        look: configs::environment,
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
];

/// What all checks found, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Report {
    well: bool,
    findings: Vec<Finding>,
    /// Processes that may be orphans. They are no finding: nothing proves it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    in_doubt: Vec<orphans::InDoubt>,
}

pub(crate) fn doctor(args: &DoctorArgs) -> ExitCode {
    let mut all = Vec::new();
    for check in CHECKS {
        let findings = (check.look)().unwrap_or_else(|why| vec![unseen(check.name, &why)]);
        if !args.json {
            show(check.name, &findings);
        }
        all.extend(findings);
    }
    let (findings, in_doubt) = orphans::findings();
    if !args.json {
        show(orphans::CHECK, &findings);
        in_doubt.iter().for_each(orphans::InDoubt::show);
    }
    all.extend(findings);
    let report = Report {
        well: all.is_empty(),
        findings: all,
        in_doubt,
    };
    if args.json {
        say::json(&report);
    } else if report.well {
        say!("\nall is well");
    } else {
        let count = report.findings.len();
        say!("\n{count} finding{}", if count == 1 { "" } else { "s" });
    }
    match report.well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// What cannot be looked at is not well: nobody knows.
fn unseen(check: &'static str, why: &str) -> Finding {
    Finding {
        check,
        what: format!("it cannot be looked at: {why}"),
        why: "what is not seen may be wrong",
        mend: "mend that, and run `kennel doctor` again".to_owned(),
        pid: None,
    }
}

fn show(name: &str, findings: &[Finding]) {
    if findings.is_empty() {
        say!("ok  {name}");
    }
    for finding in findings {
        let what = printable(&finding.what);
        say!("!!  {name}: {what}: {}", finding.why);
        say!("      fix: {}", printable(&finding.mend));
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
