//! Servers that nobody can talk to any more, and that Kennel did not start.

use std::collections::HashSet;

use kennel_sys::orphans::{self, Orphan};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::tree::Families;
use kennel_sys::user::{self, UserId};

use serde::Serialize;

use super::{Finding, megabytes, rounded};
use crate::ps::words::printable;
use crate::say::say;

/// Keeps a look, and a reap, to processes whose environment has this (`NAME=value`). For whoever shares a machine
/// with others of the same user, as tests do.
pub(super) const ONLY: &str = "KENNEL_REAP_ONLY";

pub(super) const CHECK: &str = "orphans";
const WHY: &str = "nobody can talk to it or hear it any more: what it holds is for nothing, unless it works for itself";

/// All suspects there are, as far as this process may look.
pub(super) fn all() -> Result<Vec<Orphan>, String> {
    let only = std::env::var(ONLY).ok();
    let mut found = orphans::find(only.as_deref())
        .map_err(|error| format!("cannot look at processes: {error}"))?;
    // Services that outlived their server were kept on purpose, with what is below them.
    let user = RuntimeDir::find_of_user().ok().flatten();
    let kept = user.as_ref().map(crate::kept::living).unwrap_or_default();
    if let (false, Ok(families)) = (kept.is_empty(), Families::now()) {
        // A record of another pid namespace is about another process than the one with that pid here, and any process
        // can write one: an orphan does not hide behind it.
        let roots = kept.iter().filter(|kept| kept.is_confirmed());
        let roots = roots.map(|kept| kept.identity.pid());
        let spared: HashSet<u32> = roots.flat_map(|pid| families.of(pid)).collect();
        found.retain(|orphan| {
            let below = orphan.below.iter().map(ProcessRef::pid);
            !below
                .chain([orphan.process.pid()])
                .any(|pid| spared.contains(&pid))
        });
    }
    Ok(found)
}

/// A process that may be an orphan or not, as `--json` shows it. Kennel never ends one.
#[derive(Debug, Serialize)]
pub(super) struct InDoubt {
    pub(super) pid: u32,
    command: String,
    evidence: Vec<String>,
    /// What speaks for it.
    doubts: Vec<String>,
    /// The same in words.
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
            what: told(orphan),
            hidden: orphan.hidden,
        }
    }

    pub(super) fn show(&self) {
        say!("??  perhaps an orphan: {}", printable(&self.what));
        say!("      but: {}", printable(&self.doubts.join("; ")));
        say!("      if nobody needs it: kill {}", self.pid);
        if self.hidden {
            say!("      root sees more: sudo kennel reap --foreign --all-users --dry-run");
        }
    }
}

/// Orphans to report, and processes of which that is in doubt.
pub(super) fn findings() -> (Vec<Finding>, Vec<InDoubt>) {
    let found = match all() {
        Ok(found) => found,
        Err(error) => {
            let finding = Finding {
                check: CHECK,
                what: error,
                why: "orphans may be there, and cannot be seen",
                mend: "mount a /proc of this pid namespace".to_owned(),
                pid: None,
            };
            return (vec![finding], Vec::new());
        }
    };
    let (certain, in_doubt): (Vec<Orphan>, Vec<Orphan>) =
        found.into_iter().partition(Orphan::is_certain);
    let finding = |orphan: &Orphan| Finding {
        check: CHECK,
        what: told(orphan),
        why: WHY,
        mend: match is_ours(orphan) {
            true => "kennel reap --foreign",
            false => "kennel reap --foreign --all-users",
        }
        .to_owned(),
        pid: Some(orphan.process.pid()),
    };
    (
        certain.iter().map(finding).collect(),
        in_doubt.iter().map(InDoubt::of).collect(),
    )
}

/// An orphan with the evidence against it.
pub(super) fn told(orphan: &Orphan) -> String {
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
        rounded(orphan.age),
    )
}

/// What proves it, in words.
pub(super) fn evidence(orphan: &Orphan) -> Vec<String> {
    let known = &orphan.evidence;
    let adopter = known.adopted_by;
    let mut words = vec![format!("its starter is gone (adopted by pid {adopter})")];
    if known.no_writer {
        words.push("nobody can write to its stdin".to_owned());
    }
    if known.no_reader {
        words.push("nobody can read its stdout".to_owned());
    }
    words
}

/// Whether all of it belongs to the user who runs this command.
pub(super) fn is_ours(orphan: &Orphan) -> bool {
    orphan.user == Some(UserId::real().number())
}

/// The user of an orphan, by name if the local accounts have it.
pub(super) fn user(orphan: &Orphan) -> String {
    let Some(uid) = orphan.user else {
        return "a user that is hidden".to_owned();
    };
    user::name(uid).map_or(format!("uid {uid}"), |name| format!("user {name}"))
}

/// Program and first words: a long command may hold what is not for showing.
pub(super) fn command(orphan: &Orphan) -> String {
    let words: Vec<&str> = orphan.command.iter().map(String::as_str).take(3).collect();
    let more = if orphan.command.len() > 3 { " …" } else { "" };
    format!("{}{more}", words.join(" "))
}
