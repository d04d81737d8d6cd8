//! `kennel doctor`, which checks for problems, and `kennel reap`, which kills orphaned servers.
//!
//! A check creates no file and ends no process. Each finding says what is wrong, why it matters, and the command that
//! fixes it.

mod configs;
mod orphans;
mod reap;
mod runtime;

use std::process::ExitCode;

use serde::{Serialize, Serializer};

use crate::ps::words::{counted, printable};
use crate::stdout::{self, print_line};

pub(crate) use reap::{ReapArgs, reap};

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A problem that a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The name of the check; set by [`doctor`].
    check: &'static str,
    what: String,
    why: &'static str,
    /// The command that fixes it, or what to do.
    #[serde(flatten, serialize_with = "fix_under_both_names")]
    fix: String,
    /// The process that has the problem, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

impl Finding {
    fn new(what: impl Into<String>, why: &'static str, fix: impl Into<String>) -> Finding {
        Finding {
            check: "",
            what: what.into(),
            why,
            fix: fix.into(),
            pid: None,
        }
    }

    fn of_process(self, pid: u32) -> Finding {
        Finding {
            pid: Some(pid),
            ..self
        }
    }

    fn of_check(self, check: &'static str) -> Finding {
        Finding { check, ..self }
    }
}

/// Serializes the fix, also under its name in version 0.3.
fn fix_under_both_names<S: Serializer>(fix: &str, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map([("fix", fix), ("mend", fix)])
}

/// Runs a check. The error says why it could not run.
type Check = fn() -> Result<Vec<Finding>, String>;

/// All checks by name, in the order in which they run.
const CHECKS: &[(&str, Check)] = &[
    ("runtime directory", runtime::directory),
    ("daemons", runtime::daemons),
    ("server processes", runtime::servers),
    ("records", runtime::records),
    ("environment", configs::environment),
    ("servers.toml", configs::servers_toml),
    ("apps", configs::apps),
    ("commands", configs::commands),
    ("leftovers", runtime::leftovers),
];

/// The findings of all checks, as `--json` shows them.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    /// The name of `ok` in version 0.3.
    well: bool,
    findings: Vec<Finding>,
    /// Processes that may be orphans. They are not findings: the evidence is not conclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    in_doubt: Vec<orphans::InDoubt>,
}

pub(crate) fn doctor(args: &DoctorArgs) -> ExitCode {
    let mut all = Vec::new();
    for (name, check) in CHECKS {
        let findings = check().unwrap_or_else(|why| vec![not_checked(&why)]);
        let findings = findings.into_iter().map(|finding| finding.of_check(name));
        let findings: Vec<Finding> = findings.collect();
        if !args.json {
            show(name, &findings);
        }
        all.extend(findings);
    }
    let (findings, in_doubt) = orphans::findings();
    let findings = findings.into_iter();
    let findings: Vec<Finding> = findings.map(|it| it.of_check("orphans")).collect();
    if !args.json {
        show("orphans", &findings);
        in_doubt.iter().for_each(orphans::InDoubt::show);
    }
    all.extend(findings);
    let report = Report {
        ok: all.is_empty(),
        well: all.is_empty(),
        findings: all,
        in_doubt,
    };
    if args.json {
        stdout::json(&report);
    } else if report.ok {
        print_line!("\nno problems found");
    } else {
        print_line!("\n{}", counted(report.findings.len(), "finding"));
    }
    match report.ok {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The finding for a check that could not run.
fn not_checked(why: &str) -> Finding {
    Finding::new(
        format!("cannot be checked: {why}"),
        "problems there would go unnoticed",
        "fix this, then run `kennel doctor` again",
    )
}

fn show(name: &str, findings: &[Finding]) {
    if findings.is_empty() {
        print_line!("ok  {name}");
    }
    for finding in findings {
        let what = printable(&finding.what);
        print_line!("!!  {name}: {what}: {}", finding.why);
        print_line!("      fix: {}", printable(&finding.fix));
    }
}

/// Formats a size in megabytes.
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / f64::from(1 << 20))
}
