//! Checks of the runtime directory: the directory itself, its records, locks and sockets, and processes left over.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use kennel_sys::fs::FileFacts;
use kennel_sys::lock::{self, Probe};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::{DirError, RuntimeDir, RuntimeDirPaths, Unwritable};
use kennel_sys::{net, tree};

use super::Finding;
use crate::json_record::MAX_RECORD;
use crate::key_dir::{DAEMON_LOCK, DaemonRecord, KeyDir};
use crate::listing::{self, SOLO, TREES};
use crate::ps::words::counted;
use crate::wrap::quoted;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Reported by all checks but the first, which says why.
const UNUSABLE: &str = "the runtime directory cannot be used (see above)";

/// An existing subdirectory of the user's runtime directory.
pub(super) fn existing(name: &str) -> Result<Option<RuntimeDir>, String> {
    let user = RuntimeDir::find_of_user().map_err(|_| UNUSABLE)?;
    let dir = user.map(|user| user.existing_subdir(name)).transpose();
    Ok(dir.map_err(|error| error.to_string())?.flatten())
}

pub(super) fn directory() -> Result<Vec<Finding>, String> {
    let finding = |what, fix| {
        let why = "sessions cannot share: each has a dedicated server";
        Finding::new(what, why, fix)
    };
    let place = match RuntimeDirPaths::of_user() {
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

/// Its subdirectories that are refused.
fn unused_directories() -> Vec<Finding> {
    let finding = |what, fix| {
        let why = "its content is ignored, and sessions of its server cannot share";
        Finding::new(what, why, fix)
    };
    let all = crate::refused::all();
    all.iter().map(|error| refused(error, finding)).collect()
}

fn refused(error: &DirError, finding: impl Fn(String, String) -> Finding) -> Finding {
    let fix = error
        .fix()
        .unwrap_or_else(|| "follow the message".to_owned());
    finding(error.to_string(), fix)
}

pub(super) fn daemons() -> Result<Vec<Finding>, String> {
    RuntimeDir::find_of_user().map_err(|_| UNUSABLE)?;
    let key_dirs = KeyDir::all().map_err(|error| error.to_string())?;
    Ok(key_dirs.iter().flat_map(daemon).collect())
}

fn daemon(key_dir: &KeyDir) -> Vec<Finding> {
    let key = key_dir.key();
    let held_by_other = |what: String, pid: u32| {
        let why = "no daemon of this server can be started while it is held";
        vec![Finding::new(what, why, format!("kill {pid}")).of_process(pid)]
    };
    let held = lock::probe(key_dir.dir(), DAEMON_LOCK);
    let record = key_dir.record();
    let process = record.as_ref().and_then(|record| record.process());
    match (held, record, process) {
        (Probe::Held { by }, Some(record), Some(process)) => {
            let is_other =
                |holder: &ProcessRef| !holder.identity().same_process(process.identity());
            match by.filter(|holder| is_other(&holder.process)) {
                None => running_daemon(key_dir, &record, &process),
                Some(other) => {
                    let (name, pid) = (record.name, other.process.pid());
                    held_by_other(
                        format!(
                            "the lock of {name} ({key}) is held by pid {pid}, not by its daemon"
                        ),
                        pid,
                    )
                }
            }
        }
        (Probe::Held { by: Some(holder) }, _, None) if !is_starting(&holder.process) => {
            let pid = holder.process.pid();
            held_by_other(
                format!(
                    "the lock of {key} is held by pid {pid}, which is not a daemon with a record"
                ),
                pid,
            )
        }
        _ => Vec::new(),
    }
}

fn running_daemon(key_dir: &KeyDir, record: &DaemonRecord, process: &ProcessRef) -> Vec<Finding> {
    let (name, version, pid) = (&record.name, &record.version, process.pid());
    let finding = |what: String, why| {
        let fix = format!("kennel stop {}", quoted(Path::new(key_dir.key())));
        Finding::new(what, why, fix).of_process(pid)
    };
    let other_version = (version != VERSION).then(|| {
        let what = format!(
            "the daemon of {name} (pid {pid}) is version {version}, this program is {VERSION}"
        );
        finding(what, "the running version is not the installed one")
    });
    let unreachable = (!listens(key_dir, &record.generation, process)).then(|| {
        let what = format!("the daemon of {name} (pid {pid}) cannot be reached at its socket");
        finding(what, "new sessions cannot join it")
    });
    other_version.into_iter().chain(unreachable).collect()
}

/// Whether a daemon listens on its socket. Does not connect: the daemon would count that as a client, and its linger
/// would start again when the client leaves.
fn listens(key_dir: &KeyDir, generation: &str, daemon: &ProcessRef) -> bool {
    let Ok(path) = key_dir.socket_path(generation) else {
        return false;
    };
    let is_socket = path.symlink_metadata();
    let is_socket = is_socket.is_ok_and(|meta| FileFacts::from(&meta).is_socket());
    // Sockets of another network namespace are not listed in this one; what cannot be seen is not reported.
    is_socket && net::listens_at(&path, daemon).unwrap_or(true)
}

/// Whether the daemon may just have started: it writes its record a moment after it takes its lock.
fn is_starting(process: &ProcessRef) -> bool {
    let line = process.command_line().unwrap_or_default();
    line.get(1).is_some_and(|word| word == "daemon")
}

/// Stopped servers, and stopped sessions, daemons and guards (SIGSTOP or a debugger).
pub(super) fn servers() -> Result<Vec<Finding>, String> {
    let entries = listing::all().map_err(|_| UNUSABLE)?;
    let stopped = entries.iter().flat_map(|entry| {
        let stopped = entry.servers.iter().filter_map(|server| server.stopped);
        stopped.map(|stopped| {
            let what = format!("the server of {} is {}", entry.name, stopped.state());
            let why = "its requests wait until it is continued";
            Finding::new(what, why, stopped.fix()).of_process(stopped.pid)
        })
    });
    let itself = entries.iter().filter_map(|entry| {
        let stopped = entry.stopped?;
        let (process_kind, name, state) = (entry.process_kind(), &entry.name, stopped.state());
        let what = format!("the {process_kind} of {name} is {state}");
        let why = "it serves no client, and the server does not end with its last session";
        Some(Finding::new(what, why, stopped.fix()).of_process(stopped.pid))
    });
    Ok(stopped.chain(itself).collect())
}

/// Records of killed sessions, and files that are no record.
pub(super) fn records() -> Result<Vec<Finding>, String> {
    let Sessions { stale, unread } = sessions()?;
    let stale = (!stale.is_empty()).then(|| {
        let what = format!(
            "{} of sessions that have ended",
            counted(stale.len(), "record")
        );
        Finding::new(what, "stale session records; safe to delete", "kennel reap")
    });
    let unread = unread.iter().map(|path| {
        let what = format!("{} cannot be read as a session's record", path.display());
        let why = "it is unknown whether that session runs";
        Finding::new(what, why, format!("rm -- {}", quoted(path)))
    });
    Ok(stale.into_iter().chain(unread).collect())
}

/// The unusable files among the records of sessions.
#[derive(Default)]
struct Sessions {
    /// Names of records whose session has ended.
    stale: Vec<OsString>,
    /// Files that are not readable as a record.
    unread: Vec<PathBuf>,
}

fn sessions() -> Result<Sessions, String> {
    let mut sessions = Sessions::default();
    let Some(solo) = existing(SOLO)? else {
        return Ok(sessions);
    };
    for name in solo.entries().map_err(|error| error.to_string())? {
        // A temporary file is renamed a moment after it was written.
        let aside = name.as_encoded_bytes().starts_with(b".");
        let text = match solo.read_small(&name, MAX_RECORD) {
            _ if aside => continue,
            // The session ended during this search.
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
            // If it cannot be told whether the process lives, the record stays.
            Some(Ok(Some(_)) | Err(_)) => {}
        }
    }
    Ok(sessions)
}

/// The names of sessions' records whose session has ended.
pub(super) fn stale_sessions() -> Vec<OsString> {
    sessions().unwrap_or_default().stale
}

/// Removes the record of a session that has ended.
pub(super) fn forget_session(name: &OsStr) -> bool {
    let solo = existing(SOLO).ok().flatten();
    solo.is_some_and(|solo| solo.unlink(name).is_ok())
}

pub(super) fn leftovers() -> Result<Vec<Finding>, String> {
    let left = find_leftover_processes()?;
    let pids: Vec<String> = left.iter().map(|it| it.pid().to_string()).collect();
    let what = match &pids[..] {
        [] => return Ok(Vec::new()),
        [pid] => format!(
            "pid {pid} is left over from a server whose session has ended and whose warden was killed or stopped"
        ),
        pids => format!(
            "pids {} are left over from servers whose session has ended and whose warden was killed or stopped",
            pids.join(", ")
        ),
    };
    let why = "no client can use it any more, and nothing will end it";
    let finding = Finding::new(what, why, "kennel reap");
    Ok(vec![Finding {
        pid: left.first().map(ProcessRef::pid),
        ..finding
    }])
}

/// Processes left over from trees without a warden, as far as they can be seen.
pub(super) fn left() -> Vec<ProcessRef> {
    find_leftover_processes().unwrap_or_default()
}

fn find_leftover_processes() -> Result<Vec<ProcessRef>, String> {
    let found = existing(TREES)?.map(|trees| tree::find_leftovers(&trees));
    let found = found.transpose().map_err(|error| error.to_string())?;
    Ok(found.unwrap_or_default())
}
