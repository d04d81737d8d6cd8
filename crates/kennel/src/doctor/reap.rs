//! `kennel reap`: ends what is proven to be orphaned, by identity and with the ladder, and says what that freed.

use std::process::ExitCode;
use std::time::Duration;

use kennel_sys::orphans::{self as found_orphans, Ended, Orphan};
use kennel_sys::tree;
use serde::Serialize;

use super::orphans::InDoubt;
use super::{megabytes, orphans, runtime};
use crate::ps::words::printable;
use crate::say::{self, say};

/// How long an orphan has to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(2);
/// Exit code for a destructive act that is refused.
const REFUSED: u8 = 2;

#[derive(Debug, clap::Args)]
pub(crate) struct ReapArgs {
    /// Show what would end, and end nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// Also orphans that Kennel did not start
    #[arg(long)]
    foreign: bool,

    /// With --foreign, also orphans of other users
    #[arg(long, requires = "foreign")]
    all_users: bool,

    /// Do it without asking
    #[arg(long, short)]
    yes: bool,

    /// For programs rather than people
    #[arg(long)]
    json: bool,
}

/// What was done, as `--json` shows it.
#[derive(Debug, Default, Serialize)]
struct Done {
    /// Processes of Kennel's own that were left over, and are gone.
    leftovers: usize,
    /// Records of sessions that are gone.
    records: usize,
    /// Orphans that Kennel did not start.
    foreign: Vec<Told>,
    /// Orphans of other users, which are spared without `--all-users`.
    other_users: Vec<Told>,
    /// Processes that may be orphans, and are spared because that is in doubt.
    in_doubt: Vec<InDoubt>,
    /// Processes that would not go.
    left: usize,
    freed_bytes: u64,
    dry_run: bool,
}

/// An orphan and what became of it.
#[derive(Debug, Serialize)]
struct Told {
    pid: u32,
    user: String,
    command: String,
    evidence: Vec<String>,
    memory_bytes: u64,
    age_seconds: u64,
    processes: usize,
    ended: bool,
}

impl Told {
    fn of(orphan: &Orphan, ended: Ended) -> Told {
        Told {
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
    let mut done = Done {
        dry_run: args.dry_run,
        ..Done::default()
    };
    if let Err(error) = own(args, &mut done) {
        return crate::fail(&error);
    }
    let (found, in_doubt): (Vec<Orphan>, Vec<Orphan>) = match orphans::all() {
        Ok(found) => found.into_iter().partition(Orphan::is_certain),
        Err(error) => return crate::fail(&error),
    };
    if !args.foreign {
        conclude(args, &done);
        if !found.is_empty() && !args.json {
            say!(
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
    let spared = others.iter().map(|other| Told::of(other, Ended::default()));
    done.other_users = spared.collect();
    if !args.json {
        found
            .iter()
            .for_each(|orphan| say!("{}", printable(&orphans::told(orphan))));
        for other in &others {
            say!("--  another user's: {}", printable(&orphans::told(other)));
        }
        if !others.is_empty() {
            let all = "kennel reap --foreign --all-users";
            say!(
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
                crate::fail(&refusal);
                foreign(&found, false, &mut done);
                if args.json {
                    conclude(args, &done);
                }
                return ExitCode::from(REFUSED);
            }
        },
    };
    foreign(&found, wanted, &mut done);
    conclude(args, &done);
    let spared = done.foreign.iter().filter(|told| !told.ended).count();
    if wanted && done.left == 0 && spared > 0 && !args.json {
        say!(
            "{} did something meanwhile, and was spared: run it again",
            orphans_of(spared)
        );
    }
    code(&done)
}

/// What Kennel itself started, and nobody is in charge of any more.
fn own(args: &ReapArgs, done: &mut Done) -> Result<(), String> {
    crate::refused::tell();
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
    let trees = runtime::existing("trees").ok().flatten();
    let Some(trees) = trees.filter(|_| !left.is_empty()) else {
        return Ok(());
    };
    let ended = tree::end_leftovers(&trees, AFTER_TERM)
        .map_err(|error| format!("cannot end what was left: {error}"))?;
    done.leftovers = ended.processes;
    done.left += ended.left;
    Ok(())
}

/// Tells of each orphan, and ends them if that is wanted.
fn foreign(found: &[Orphan], wanted: bool, done: &mut Done) {
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
        let told = Told::of(orphan, ended);
        if told.ended {
            done.freed_bytes += orphan.memory;
        }
        done.foreign.push(told);
    }
}

fn conclude(args: &ReapArgs, done: &Done) {
    if args.json {
        say::json(done);
        return;
    }
    let ended = done.foreign.iter().filter(|told| told.ended).count();
    if args.dry_run {
        say!(
            "nothing was ended: this was a dry run ({} of kennel's own are left over)",
            done.leftovers
        );
    } else if ended + done.leftovers + done.records == 0 && done.left == 0 {
        say!("nothing was ended");
    } else {
        let freed = megabytes(done.freed_bytes);
        say!(
            "ended {} of kennel's own and {}, {freed} freed; {} stale records removed",
            done.leftovers,
            orphans_of(ended),
            done.records
        );
    }
    if done.left > 0 {
        crate::fail(&format!(
            "{} would not go: stuck in the kernel, or of another user",
            done.left
        ));
    }
}

fn orphans_of(count: usize) -> String {
    format!("{count} orphan{}", if count == 1 { "" } else { "s" })
}

fn code(done: &Done) -> ExitCode {
    match done.left {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
