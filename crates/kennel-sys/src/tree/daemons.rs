//! Kennel daemons and guardians below a warden.
//!
//! A server can start a shim (an app may itself be a server), and the shim a daemon. That daemon is then a descendant of
//! the server's warden, as is a guardian, which guards a detached server. Neither belongs to the process tree: the stop
//! ladder spares them and the daemon's servers, which have wardens. Other descendants of a daemon are not spared: a server
//! could have started them there to hide.

use std::ffi::OsStr;

use super::process_table::{ProcessTable, Step};
use super::server_start::START_NAME;
use super::warden_args::WardenArgs;
use crate::lock::{is_daemon_of, is_guard_of};
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::runtime_dir::RuntimeDirPaths;

/// Whether `pid` is a daemon or a guardian of any build: it is on record in the user's runtime directory, and the kernel
/// confirms that it holds the lock of that record. Its program, name, arguments and other locks prove nothing.
pub(super) fn is_daemon(pid: u32) -> bool {
    let words = os::command_line(pid).unwrap_or_default();
    let proof = match words.get(1).map(String::as_str) {
        Some("daemon") => is_daemon_of,
        Some("guardian") => is_guard_of,
        _ => return false,
    };
    let Ok(process) = ProcessRef::open(pid) else {
        return false;
    };
    // A server gets no `KENNEL_RUNTIME_DIR`, so processes in its tree may use the default runtime directory.
    let uid = rustix::process::geteuid().as_raw();
    let places = [RuntimeDirPaths::of_user(), RuntimeDirPaths::of(uid, None)];
    let mut dirs = places
        .into_iter()
        .filter_map(|place| place.ok()?.find().ok()?);
    dirs.any(|user| proof(&user, &process))
}

/// Whether a process is a warden of any build.
pub(super) fn is_warden(pid: u32) -> bool {
    warden_args_of(pid).is_some()
}

/// The cookie of the tree whose warden a process is; `None` if it is not a warden.
pub(super) fn tree_of_warden(pid: u32) -> Option<String> {
    Some(warden_args_of(pid)?.place.cookie)
}

/// The cookie of the tree whose server a process is to become: the child of a warden before its exec. `None` for any other
/// process, also for the warden.
pub(super) fn tree_to_start(pid: u32) -> Option<String> {
    let is_child = os::command_name(pid)?.as_bytes() == START_NAME.to_bytes();
    is_child.then(|| tree_of_warden(pid))?
}

/// The process that a warden serves, according to its arguments; `None` if it is not a warden.
pub(super) fn served_by_warden(pid: u32) -> Option<Identity> {
    Some(warden_args_of(pid)?.served)
}

/// Whether a process is a warden that serves `served`.
pub(super) fn is_warden_of(pid: u32, served: &ProcessRef) -> bool {
    warden_args_of(pid)
        .is_some_and(|warden_args| warden_args.served.same_process(served.identity()))
}

pub(super) fn warden_args_of(pid: u32) -> Option<WardenArgs> {
    let words = os::command_line(pid)?;
    let is_called_so = words.get(1).is_some_and(|word| word == "warden");
    let warden_args = words.get(2).filter(|_| is_called_so && os::is_kennel(pid));
    WardenArgs::parse(OsStr::new(warden_args?))
}

/// Descendants of Kennel's daemons that are not servers of those daemons. `pids` are unreaped children of this process.
pub(super) fn hidden_below(pids: &[u32]) -> Vec<ProcessRef> {
    let daemons = pids.iter().filter(|&&pid| is_daemon(pid));
    let daemons: Vec<ProcessRef> = daemons
        .filter_map(|&pid| ProcessRef::open(pid).ok())
        .collect();
    let Some(Ok(table)) = (!daemons.is_empty()).then(ProcessTable::now) else {
        return Vec::new();
    };
    let hidden_below = |daemon: &ProcessRef| {
        table.descendants(daemon, |process, parent| {
            let pid = process.pid();
            let spared = match parent.pid() == daemon.pid() {
                true => is_warden_of(pid, daemon),
                false => is_daemon(pid),
            };
            if spared { Step::Skip } else { Step::Collect }
        })
    };
    daemons.iter().flat_map(hidden_below).collect()
}
