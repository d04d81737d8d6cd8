//! Kennel's own place: the directory, its records, locks and sockets, and what was left by a disaster.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use kennel_sys::lock::{self, Probe};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::tree;

use super::Finding;
use crate::meeting::{DAEMON_LOCK, Meeting};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SOLO: &str = "solo";
/// No record of ours is longer.
const LONGEST: usize = 1 << 20;

/// The directory, if there is one that can be used.
pub(super) fn user() -> Option<RuntimeDir> {
    RuntimeDir::find_of_user().ok().flatten()
}

pub(super) fn directory() -> Vec<Finding> {
    match RuntimeDir::find_of_user() {
        Ok(_) => Vec::new(),
        Err(error) => vec![Finding {
            check: "runtime directory",
            what: error.to_string(),
            why: "sessions cannot meet there: each has a server of its own",
            mend: error.fix().unwrap_or_else(|| "see the message".to_owned()),
            pid: None,
        }],
    }
}

pub(super) fn daemons() -> Vec<Finding> {
    let meetings = Meeting::all().unwrap_or_default();
    meetings.iter().flat_map(daemon).collect()
}

fn daemon(meeting: &Meeting) -> Vec<Finding> {
    let key = meeting.key();
    let finding = |what: String, why, mend: String, pid| Finding {
        check: "daemons",
        what,
        why,
        mend,
        pid,
    };
    let held = lock::probe(meeting.dir(), DAEMON_LOCK);
    let record = meeting.record();
    let process = record.as_ref().and_then(|record| record.process());
    match (held, record, process) {
        (Probe::Held { by }, Some(record), Some(process)) => {
            let pid = process.pid();
            let other = by
                .as_ref()
                .filter(|holder| !holder.process.identity().same_process(process.identity()));
            if let Some(other) = other {
                return vec![finding(
                    format!(
                        "the lock of {} ({key}) is held by pid {}, not by its daemon",
                        record.name,
                        other.process.pid()
                    ),
                    "no daemon of this server can be started while it is held",
                    format!("kill {}", other.process.pid()),
                    Some(other.process.pid()),
                )];
            }
            let mut found = Vec::new();
            if record.version != VERSION {
                found.push(finding(
                    format!(
                        "the daemon of {} (pid {pid}) is version {}, this program is {VERSION}",
                        record.name, record.version
                    ),
                    "what runs is not what is installed",
                    format!("kennel stop {key}"),
                    Some(pid),
                ));
            }
            let reached = meeting
                .socket_path(&record.generation)
                .is_ok_and(|path| UnixStream::connect(path).is_ok());
            if !reached {
                found.push(finding(
                    format!(
                        "the daemon of {} (pid {pid}) cannot be reached at its socket",
                        record.name
                    ),
                    "new sessions cannot join it",
                    format!("kennel stop {key}"),
                    Some(pid),
                ));
            }
            found
        }
        (Probe::Held { by: Some(holder) }, _, None) if !is_starting(&holder.process) => {
            vec![finding(
                format!(
                    "the lock of {key} is held by pid {}, which is no daemon on record",
                    holder.process.pid()
                ),
                "no daemon of this server can be started while it is held",
                format!("kill {}", holder.process.pid()),
                Some(holder.process.pid()),
            )]
        }
        _ => Vec::new(),
    }
}

/// A daemon writes its record a moment after it has its lock.
fn is_starting(process: &ProcessRef) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
    line.split(|&byte| byte == 0).nth(1) == Some(b"daemon")
}

/// Records of sessions that were killed.
pub(super) fn records() -> Vec<Finding> {
    let stale = stale_sessions();
    if stale.is_empty() {
        return Vec::new();
    }
    let count = stale.len();
    vec![Finding {
        check: "records",
        what: format!(
            "{count} record{} of sessions that are gone",
            if count == 1 { "" } else { "s" }
        ),
        why: "nobody believes them; they only take up room",
        mend: "kennel reap".to_owned(),
        pid: None,
    }]
}

/// The names of solo sessions' records whose session is gone.
pub(super) fn stale_sessions() -> Vec<std::ffi::OsString> {
    let Some(solo) = user().and_then(|user| user.existing_subdir(SOLO).ok().flatten()) else {
        return Vec::new();
    };
    let is_stale = |name: &std::ffi::OsString| {
        let text = solo
            .read_small(name, LONGEST)
            .ok()
            .flatten()
            .unwrap_or_default();
        let entry: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let identity = entry["identity"]
            .as_str()
            .and_then(|text| text.parse::<Identity>().ok());
        // What cannot be told stays.
        identity.is_some_and(|identity| matches!(ProcessRef::find(&identity), Ok(None)))
    };
    let names = solo.entries().unwrap_or_default();
    names.into_iter().filter(is_stale).collect()
}

/// Removes the record of a session that is gone.
pub(super) fn forget_session(name: &std::ffi::OsStr) -> bool {
    let solo = user().and_then(|user| user.existing_subdir(SOLO).ok().flatten());
    solo.is_some_and(|solo| solo.unlink(name).is_ok())
}

pub(super) fn leftovers() -> Vec<Finding> {
    let finding = |process: &ProcessRef| Finding {
        check: "leftovers",
        what: format!(
            "pid {} is left of a server whose warden and session were killed",
            process.pid()
        ),
        why: "nobody can use it any more, and nobody looks after it",
        mend: "kennel reap".to_owned(),
        pid: Some(process.pid()),
    };
    left().iter().map(finding).collect()
}

/// What is left of trees nobody is in charge of.
pub(super) fn left() -> Vec<ProcessRef> {
    let trees = user().and_then(|user| user.existing_subdir("trees").ok().flatten());
    let found = trees.map(|trees| tree::find_leftovers(trees.as_fd()));
    found.and_then(Result::ok).unwrap_or_default()
}
