//! Kennel's own place: the directory, its records, locks and sockets, and what was left by a disaster.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use kennel_sys::fs::FileFacts;
use kennel_sys::lock::{self, Probe};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::{DirError, MeetingPlace, RuntimeDir, Unwritable};
use kennel_sys::{net, tree};

use super::Finding;
use crate::listing;
use crate::meeting::{DAEMON_LOCK, Meeting};
use crate::wrap::quoted;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SOLO: &str = "solo";
/// Why is what the first check tells.
const UNUSABLE: &str = "the runtime directory cannot be used (see above)";
/// No record of ours is longer.
const LONGEST: usize = 1 << 20;

/// A directory in the user's, if it is there.
pub(super) fn existing(name: &str) -> Result<Option<RuntimeDir>, String> {
    let user = RuntimeDir::find_of_user().map_err(|_| UNUSABLE)?;
    let dir = user.map(|user| user.existing_subdir(name)).transpose();
    Ok(dir.map_err(|error| error.to_string())?.flatten())
}

pub(super) fn directory() -> Result<Vec<Finding>, String> {
    let finding = |what, mend| Finding {
        check: "runtime directory",
        what,
        why: "sessions cannot meet there: each has a server of its own",
        mend,
        pid: None,
    };
    let place = match MeetingPlace::of_user() {
        Ok(place) => place,
        Err(error) => return Ok(vec![refused(&error, finding)]),
    };
    Ok(match place.probe() {
        Ok(()) => unused_directories(),
        Err(Unwritable::Refused(error)) => vec![refused(&error, finding)],
        Err(Unwritable::At(path, error)) => vec![finding(
            format!("cannot write to {}: {error}", path.display()),
            format!(
                "make {} writable with space left on it, or set KENNEL_RUNTIME_DIR for all apps",
                path.display()
            ),
        )],
    })
}

/// Directories in it that are refused.
fn unused_directories() -> Vec<Finding> {
    let finding = |what, mend| Finding {
        check: "runtime directory",
        what,
        why: "what is in it is neither listed nor used, and sessions of its server cannot share",
        mend,
        pid: None,
    };
    let all = crate::refused::all();
    all.iter().map(|error| refused(error, finding)).collect()
}

fn refused(error: &DirError, finding: impl Fn(String, String) -> Finding) -> Finding {
    let mend = error.fix().unwrap_or_else(|| "see the message".to_owned());
    finding(error.to_string(), mend)
}

pub(super) fn daemons() -> Result<Vec<Finding>, String> {
    RuntimeDir::find_of_user().map_err(|_| UNUSABLE)?;
    let meetings = Meeting::all().map_err(|error| error.to_string())?;
    Ok(meetings.iter().flat_map(daemon).collect())
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
                    format!("kennel stop {}", quoted(Path::new(key))),
                    Some(pid),
                ));
            }
            if !listens(meeting, &record.generation, &process) {
                found.push(finding(
                    format!(
                        "the daemon of {} (pid {pid}) cannot be reached at its socket",
                        record.name
                    ),
                    "new sessions cannot join it",
                    format!("kennel stop {}", quoted(Path::new(key))),
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

/// Whether somebody can connect to a daemon. Nobody does: a daemon counts who connects as a client, and a client that
/// leaves begins its linger anew.
fn listens(meeting: &Meeting, generation: &str, daemon: &ProcessRef) -> bool {
    let Ok(path) = meeting.socket_path(generation) else {
        return false;
    };
    let is_socket = path.symlink_metadata();
    let is_socket = is_socket.is_ok_and(|meta| FileFacts::from(&meta).is_socket());
    // Sockets of another network namespace are not listed in ours; what cannot be seen is not complained about.
    is_socket && net::listens_at(&path, daemon).unwrap_or(true)
}

/// A daemon writes its record a moment after it has its lock.
fn is_starting(process: &ProcessRef) -> bool {
    let line = process.command_line().unwrap_or_default();
    line.get(1).is_some_and(|word| word == "daemon")
}

/// Servers that are stopped, and sessions, daemons and guards that are.
pub(super) fn servers() -> Result<Vec<Finding>, String> {
    let entries = listing::all().map_err(|_| UNUSABLE)?;
    let stopped = entries.iter().flat_map(|entry| {
        let stopped = entry.servers.iter().filter_map(|server| server.stopped);
        stopped.map(|stopped| Finding {
            check: "server processes",
            what: format!("the server of {} is {}", entry.name, stopped.state()),
            why: "its requests wait until it is continued",
            mend: stopped.fix(),
            pid: Some(stopped.pid),
        })
    });
    let itself = entries.iter().filter_map(|entry| {
        let stopped = entry.stopped?;
        Some(Finding {
            check: "server processes",
            what: format!(
                "the {} of {} is {}",
                entry.keeper(),
                entry.name,
                stopped.state()
            ),
            why: "nobody is served by it, and what it started does not end with its last session",
            mend: stopped.fix(),
            pid: Some(stopped.pid),
        })
    });
    Ok(stopped.chain(itself).collect())
}

/// Records of sessions that were killed, and what is no record.
pub(super) fn records() -> Result<Vec<Finding>, String> {
    let Sessions { stale, unread } = sessions()?;
    let count = stale.len();
    let mut findings = Vec::new();
    if count > 0 {
        findings.push(Finding {
            check: "records",
            what: format!(
                "{count} record{} of sessions that are gone",
                if count == 1 { "" } else { "s" }
            ),
            why: "nobody believes them; they only take up room",
            mend: "kennel reap".to_owned(),
            pid: None,
        });
    }
    findings.extend(unread.iter().map(|path| Finding {
        check: "records",
        what: format!("{} cannot be read as a session's record", path.display()),
        why: "whether that session runs cannot be told",
        mend: format!("rm -- {}", crate::wrap::quoted(path)),
        pid: None,
    }));
    Ok(findings)
}

/// What there is of solo sessions that nobody should believe.
#[derive(Default)]
struct Sessions {
    /// The names of records whose session is gone.
    stale: Vec<OsString>,
    /// What says of nobody that it runs.
    unread: Vec<PathBuf>,
}

fn sessions() -> Result<Sessions, String> {
    let mut sessions = Sessions::default();
    let Some(solo) = existing(SOLO)? else {
        return Ok(sessions);
    };
    for name in solo.entries().map_err(|error| error.to_string())? {
        // What is written aside takes its name a moment later.
        let aside = name.as_encoded_bytes().starts_with(b".");
        let text = match solo.read_small(&name, LONGEST) {
            _ if aside => continue,
            // It ended while we looked.
            Ok(None) => continue,
            Ok(Some(text)) => text,
            Err(_) => Vec::new(),
        };
        let entry: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let identity = entry["identity"]
            .as_str()
            .and_then(|text| text.parse::<Identity>().ok());
        match identity.map(|identity| ProcessRef::find(&identity)) {
            None => sessions.unread.push(solo.path().join(name)),
            Some(Ok(None)) => sessions.stale.push(name),
            // What cannot be told stays.
            Some(Ok(Some(_)) | Err(_)) => {}
        }
    }
    Ok(sessions)
}

/// The names of solo sessions' records whose session is gone.
pub(super) fn stale_sessions() -> Vec<OsString> {
    sessions().unwrap_or_default().stale
}

/// Removes the record of a session that is gone.
pub(super) fn forget_session(name: &OsStr) -> bool {
    let solo = existing(SOLO).ok().flatten();
    solo.is_some_and(|solo| solo.unlink(name).is_ok())
}

pub(super) fn leftovers() -> Result<Vec<Finding>, String> {
    let left = look_for_left()?;
    let pids: Vec<String> = left.iter().map(|it| it.pid().to_string()).collect();
    let what = match &pids[..] {
        [] => return Ok(Vec::new()),
        [pid] => format!(
            "pid {pid} is left of a server whose session is gone and whose warden was killed or stopped"
        ),
        pids => format!(
            "pids {} are left of servers whose session is gone and whose warden was killed or stopped",
            pids.join(", ")
        ),
    };
    Ok(vec![Finding {
        check: "leftovers",
        what,
        why: "nobody can use it any more, and nobody looks after it",
        mend: "kennel reap".to_owned(),
        pid: left.first().map(ProcessRef::pid),
    }])
}

/// What is left of trees nobody is in charge of, as far as it can be seen.
pub(super) fn left() -> Vec<ProcessRef> {
    look_for_left().unwrap_or_default()
}

fn look_for_left() -> Result<Vec<ProcessRef>, String> {
    let found = existing("trees")?.map(|trees| tree::find_leftovers(&trees));
    let found = found.transpose().map_err(|error| error.to_string())?;
    Ok(found.unwrap_or_default())
}
