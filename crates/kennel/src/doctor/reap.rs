//! `kennel reap`: ends orphaned processes, by process identity and with the stop ladder, and reports how much memory
//! that freed.

use std::process::ExitCode;
use std::time::Duration;

use kennel_sys::orphans::{self as found_orphans, Ended, Orphan};
use kennel_sys::tree;
use serde::Serialize;

use super::orphans::InDoubt;
use super::{megabytes, orphans, runtime};
use crate::exit_code::USAGE;
use crate::ps::words::{counted, printable};
use crate::stdout::{self, print_line};

/// How long an orphan has to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct ReapArgs {
    /// Show which processes would be killed; kill none
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// Also kill orphaned servers that Kennel did not start
    #[arg(long)]
    foreign: bool,

    /// With --foreign, also kill orphans of other users
    #[arg(long, requires = "foreign")]
    all_users: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The results, as `--json` shows them.
#[derive(Debug, Default, Serialize)]
struct ReapReport {
    /// Number of leftover processes of Kennel's servers that were ended.
    leftovers: usize,
    /// Number of stale session records that were removed.
    records: usize,
    /// Orphans that Kennel did not start.
    foreign: Vec<OrphanReport>,
    /// Orphans of other users, which are not ended without `--all-users`.
    other_users: Vec<OrphanReport>,
    /// Processes that may be orphans; not ended because that is in doubt.
    in_doubt: Vec<InDoubt>,
    /// Number of processes that could not be ended.
    left: usize,
    freed_bytes: u64,
    dry_run: bool,
}

/// An orphan and the result of ending it.
#[derive(Debug, Serialize)]
struct OrphanReport {
    pid: u32,
    user: String,
    command: String,
    evidence: Vec<String>,
    memory_bytes: u64,
    age_seconds: u64,
    processes: usize,
    ended: bool,
}

impl OrphanReport {
    fn of(orphan: &Orphan, ended: Ended) -> OrphanReport {
        OrphanReport {
            pid: orphan.process.pid(),
            user: orphans::user(orphan),
            command: orphans::command(orphan),
            evidence: orphans::evidence(orphan),
            memory_bytes: orphan.memory,
            age_seconds: orphan.age.as_secs(),
            processes: orphan.below.len() + 1,
            ended: ended.left == 0 && ended.gone > 0,
        }
    }
}

pub(crate) fn reap(args: &ReapArgs) -> ExitCode {
    let mut done = ReapReport {
        dry_run: args.dry_run,
        ..ReapReport::default()
    };
    if let Err(error) = own(args, &mut done) {
        return crate::fail(&error);
    }
    let (found, in_doubt): (Vec<Orphan>, Vec<Orphan>) = match orphans::all() {
        Ok(found) => found.into_iter().partition(Orphan::is_certain),
        Err(error) => return crate::fail(&error),
    };
    if !args.foreign {
        print_summary(args, &done);
        if !found.is_empty() && !args.json {
            print_line!(
                "{} that kennel did not start: `kennel reap --foreign --dry-run` shows them",
                orphans_of(found.len())
            );
        }
        return code(&done);
    }
    done.in_doubt = in_doubt.iter().map(InDoubt::of).collect();
    let (found, others): (Vec<Orphan>, Vec<Orphan>) = found
        .into_iter()
        .partition(|orphan| args.all_users || orphans::is_ours(orphan));
    let spared = others
        .iter()
        .map(|other| OrphanReport::of(other, Ended::default()));
    done.other_users = spared.collect();
    if !args.json {
        found
            .iter()
            .for_each(|orphan| print_line!("{}", printable(&orphans::describe(orphan))));
        for other in &others {
            print_line!(
                "--  another user's: {}",
                printable(&orphans::describe(other))
            );
        }
        if !others.is_empty() {
            let all = "kennel reap --foreign --all-users";
            print_line!(
                "      to end {} of other users too: {all}",
                orphans_of(others.len())
            );
        }
        done.in_doubt.iter().for_each(InDoubt::show);
    }
    let wanted = match (found.is_empty(), args.dry_run, args.yes) {
        (true, ..) | (_, true, _) => false,
        (_, _, true) => true,
        _ => match crate::wrap::ask(&format!("End {}?", orphans_of(found.len()))) {
            Ok(wanted) => wanted,
            Err(refusal) => {
                let code = crate::fail_with(USAGE, &refusal);
                reap_foreign(&found, false, &mut done);
                if args.json {
                    print_summary(args, &done);
                }
                return code;
            }
        },
    };
    reap_foreign(&found, wanted, &mut done);
    print_summary(args, &done);
    let spared = done.foreign.iter().filter(|report| !report.ended).count();
    if wanted && done.left == 0 && spared > 0 && !args.json {
        print_line!(
            "{} not ended, because it was active in the meantime; run the command again",
            orphans_of(spared)
        );
    }
    code(&done)
}

/// Ends the leftovers of servers that Kennel started, and removes stale records.
fn own(args: &ReapArgs, done: &mut ReapReport) -> Result<(), String> {
    crate::refused::warn_all();
    let left = runtime::left();
    let stale = runtime::stale_sessions();
    if args.dry_run {
        (done.leftovers, done.records) = (left.len(), stale.len());
        return Ok(());
    }
    done.records = stale
        .iter()
        .filter(|name| runtime::forget_session(name))
        .count();
    let trees = runtime::existing(crate::listing::TREES).ok().flatten();
    let Some(trees) = trees.filter(|_| !left.is_empty()) else {
        return Ok(());
    };
    let ended = tree::end_leftovers(&trees, AFTER_TERM)
        .map_err(|error| format!("cannot end leftover processes: {error}"))?;
    done.leftovers = ended.processes;
    done.left += ended.left;
    Ok(())
}

/// Reports each orphan, and ends it if `wanted`.
fn reap_foreign(found: &[Orphan], wanted: bool, done: &mut ReapReport) {
    let ended = match wanted {
        false => Vec::new(),
        true => found_orphans::end(found, AFTER_TERM).unwrap_or_else(|error| {
            done.left += found.len();
            crate::fail(&format!("cannot end orphans: {error}"));
            Vec::new()
        }),
    };
    for (index, orphan) in found.iter().enumerate() {
        let ended = ended.get(index).copied().unwrap_or_default();
        done.left += ended.left;
        let report = OrphanReport::of(orphan, ended);
        if report.ended {
            done.freed_bytes += orphan.memory;
        }
        done.foreign.push(report);
    }
}

fn print_summary(args: &ReapArgs, done: &ReapReport) {
    if args.json {
        stdout::json(done);
        return;
    }
    let ended = done.foreign.iter().filter(|report| report.ended).count();
    if args.dry_run {
        print_line!(
            "nothing was ended: this was a dry run ({} of kennel's own are left over)",
            done.leftovers
        );
    } else if ended + done.leftovers + done.records == 0 && done.left == 0 {
        print_line!("nothing was ended");
    } else {
        let freed = megabytes(done.freed_bytes);
        print_line!(
            "ended {} of kennel's own and {}, {freed} freed; {} stale records removed",
            done.leftovers,
            orphans_of(ended),
            done.records
        );
    }
    if done.left > 0 {
        crate::fail(&format!(
            "{} could not be ended: stuck in the kernel, or of another user",
            done.left
        ));
    }
}

fn orphans_of(count: usize) -> String {
    counted(count, "orphan")
}

fn code(done: &ReapReport) -> ExitCode {
    match done.left {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
