//! Servers that nobody can talk to any more, and that Kennel did not start.

use kennel_sys::orphans::{self, Orphan};

use super::{Finding, megabytes, rounded};

/// Keeps a look, and a reap, to processes whose environment has this (`NAME=value`). For whoever shares a machine
/// with others of the same user, as tests do.
pub(super) const ONLY: &str = "KENNEL_REAP_ONLY";

const WHY: &str = "nobody can talk to it or hear it any more: what it holds is for nothing, unless it works for itself";

/// All there are, as far as this process may look.
pub(super) fn all() -> Result<Vec<Orphan>, String> {
    let only = std::env::var(ONLY).ok();
    orphans::find(only.as_deref()).map_err(|error| format!("cannot look at processes: {error}"))
}

pub(super) fn findings() -> Result<Vec<Finding>, String> {
    let found = match all() {
        Ok(found) => found,
        Err(error) => {
            return Ok(vec![Finding {
                check: "orphans",
                what: error,
                why: "orphans may be there, and cannot be seen",
                mend: "mount a /proc of this pid namespace".to_owned(),
                pid: None,
            }]);
        }
    };
    let finding = |orphan: &Orphan| Finding {
        check: "orphans",
        what: told(orphan),
        why: WHY,
        mend: "kennel reap --foreign".to_owned(),
        pid: Some(orphan.process.pid()),
    };
    Ok(found.iter().map(finding).collect())
}

/// An orphan with the evidence against it.
pub(super) fn told(orphan: &Orphan) -> String {
    let evidence = evidence(orphan).join(", ");
    let below = match orphan.below.len() {
        0 => String::new(),
        count => format!(" and {count} below it"),
    };
    format!(
        "{} (pid {}{below}, {}, {} old): {evidence}",
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

/// Program and first words: a long command may hold what is not for showing.
pub(super) fn command(orphan: &Orphan) -> String {
    let words: Vec<&str> = orphan.command.iter().map(String::as_str).take(3).collect();
    let more = if orphan.command.len() > 3 { " …" } else { "" };
    format!("{}{more}", words.join(" "))
}
