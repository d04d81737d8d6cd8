//! Orphans: servers that no process can use any more and that Kennel did not start.

use std::collections::HashSet;

use kennel_sys::orphans::{self, Orphan};
use kennel_sys::process::{FIX_FOR_HIDDEN_PROCESSES, ProcessRef};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::tree::ProcessTable;
use kennel_sys::user::{self, UserId};

use serde::Serialize;

use super::{Finding, megabytes};
use crate::ps::words::{duration, printable};
use crate::stdout::print_line;

/// Restricts the search, and `reap`, to processes with this setting (`NAME=value`) in their environment. For machines
/// that several parties share as one user, such as in tests.
pub(super) const ONLY_VARIABLE: &str = "KENNEL_REAP_ONLY";

const WHY_ORPHANS_MATTER: &str =
    "no process can use it any more: it wastes memory, unless it works without input";

/// All suspects, as far as this process can see them.
pub(super) fn all() -> Result<Vec<Orphan>, String> {
    let only = std::env::var(ONLY_VARIABLE).ok();
    let mut found = orphans::find(only.as_deref())
        .map_err(|error| format!("cannot list processes: {error}"))?;
    // Kept services, and all processes below them, were kept on purpose.
    let user = RuntimeDir::find_of_user().ok().flatten();
    let kept = user.as_ref().map(crate::kept::living).unwrap_or_default();
    if let (false, Ok(table)) = (kept.is_empty(), ProcessTable::now()) {
        // A record of another pid namespace is about another process than the one with that pid here, and any process
        // can write one: an orphan does not hide behind it.
        let roots = kept.iter().filter(|kept| kept.is_confirmed());
        let roots = roots.map(|kept| kept.identity.pid());
        let spared: HashSet<u32> = roots.flat_map(|pid| table.with_descendants(pid)).collect();
        found.retain(|orphan| {
            let below = orphan.below.iter().map(ProcessRef::pid);
            !below
                .chain([orphan.process.pid()])
                .any(|pid| spared.contains(&pid))
        });
    }
    Ok(found)
}

/// A process that may or may not be an orphan, as `--json` shows it. Kennel never ends it.
#[derive(Debug, Serialize)]
pub(super) struct InDoubt {
    pub(super) pid: u32,
    command: String,
    evidence: Vec<String>,
    /// The reasons for doubt, as words for programs.
    doubts: Vec<String>,
    /// The same as a sentence.
    #[serde(skip)]
    what: String,
    /// Whether root would see more.
    #[serde(skip)]
    hidden: bool,
}

impl InDoubt {
    pub(super) fn of(orphan: &Orphan) -> InDoubt {
        InDoubt {
            pid: orphan.process.pid(),
            command: command(orphan),
            evidence: evidence(orphan),
            doubts: orphan.doubts.clone(),
            what: describe(orphan),
            hidden: orphan.hidden,
        }
    }

    pub(super) fn show(&self) {
        print_line!("??  perhaps an orphan: {}", printable(&self.what));
        print_line!("      but: {}", printable(&self.doubts.join("; ")));
        print_line!("      if it is not needed: kill {}", self.pid);
        if self.hidden {
            print_line!("      root sees more: sudo kennel reap --foreign --all-users --dry-run");
        }
    }
}

/// Orphans to report, and processes that may be orphans.
pub(super) fn findings() -> (Vec<Finding>, Vec<InDoubt>) {
    let found = match all() {
        Ok(found) => found,
        Err(error) => {
            let finding = Finding::new(error, "orphans cannot be found", FIX_FOR_HIDDEN_PROCESSES);
            return (vec![finding], Vec::new());
        }
    };
    let (certain, in_doubt): (Vec<Orphan>, Vec<Orphan>) =
        found.into_iter().partition(Orphan::is_certain);
    let finding = |orphan: &Orphan| {
        let fix = match is_ours(orphan) {
            true => "kennel reap --foreign",
            false => "kennel reap --foreign --all-users",
        };
        Finding::new(describe(orphan), WHY_ORPHANS_MATTER, fix).of_process(orphan.process.pid())
    };
    (
        certain.iter().map(finding).collect(),
        in_doubt.iter().map(InDoubt::of).collect(),
    )
}

/// An orphan with the evidence, as one line.
pub(super) fn describe(orphan: &Orphan) -> String {
    let evidence = evidence(orphan).join(", ");
    let below = match orphan.below.len() {
        0 => String::new(),
        count => format!(" and {count} below it"),
    };
    let user = match is_ours(orphan) {
        true => String::new(),
        false => format!(" of {}", user(orphan)),
    };
    format!(
        "{} (pid {}{user}{below}, {}, {} old): {evidence}",
        command(orphan),
        orphan.process.pid(),
        megabytes(orphan.memory),
        duration(orphan.age.as_secs()),
    )
}

/// The evidence in words.
pub(super) fn evidence(orphan: &Orphan) -> Vec<String> {
    let known = &orphan.evidence;
    let adopter = known.adopted_by;
    let mut words = vec![format!("its starter has exited (adopted by pid {adopter})")];
    if known.no_writer {
        words.push("no process can write to its stdin".to_owned());
    }
    if known.no_reader {
        words.push("no process can read its stdout".to_owned());
    }
    words
}

/// Whether all its processes belong to the user who runs this command.
pub(super) fn is_ours(orphan: &Orphan) -> bool {
    orphan.user == Some(UserId::real().number())
}

/// The user of an orphan: the name, if it is a local account.
pub(super) fn user(orphan: &Orphan) -> String {
    let Some(uid) = orphan.user else {
        return "a user that is hidden".to_owned();
    };
    user::name(uid).map_or(format!("uid {uid}"), |name| format!("user {name}"))
}

/// The program and the first words of its command: a long command may contain secrets.
pub(super) fn command(orphan: &Orphan) -> String {
    let words: Vec<&str> = orphan.command.iter().map(String::as_str).take(3).collect();
    let more = if orphan.command.len() > 3 { " …" } else { "" };
    format!("{}{more}", words.join(" "))
}
