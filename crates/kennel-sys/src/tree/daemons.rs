//! Kennel's own processes below a warden.
//!
//! A daemon that was first needed inside a server (an app may itself be one) lands below that server's warden, and so
//! does a guardian, which guards a detached server. It belongs to nobody's tree: the ladder spares it, and its servers, which
//! have wardens. Nothing else below it is spared: a server could have started it to hide there.

use std::ffi::OsStr;

use super::walk::children_by_parent;
use super::warden::Orders;
use crate::lock::{is_daemon_of, is_guard_of};
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::runtime_dir::MeetingPlace;

/// Whether `pid` is a daemon or a guardian, of this build or of another: it is on record in the user's runtime directory,
/// and the kernel says that it holds the lock which that record is about. Its program, name and arguments prove nothing, nor
/// does another lock.
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
    // A server gets no `KENNEL_RUNTIME_DIR` of ours: what was started in its tree may have met at the usual place.
    let uid = rustix::process::geteuid().as_raw();
    let places = [MeetingPlace::of_user(), MeetingPlace::of(uid, None)];
    let mut dirs = places
        .into_iter()
        .filter_map(|place| place.ok()?.find().ok()?);
    dirs.any(|user| proof(&user, &process))
}

/// Whether a process is a warden, of this build or of another.
pub(super) fn is_warden(pid: u32) -> bool {
    orders_of(pid).is_some()
}

/// The cookie of the tree that a process is the warden of; `None` if it is no warden.
pub(super) fn tree_of_warden(pid: u32) -> Option<String> {
    Some(orders_of(pid)?.place.cookie)
}

/// The process that a warden serves, as its arguments say; `None` if it is no warden.
pub(super) fn served_by_warden(pid: u32) -> Option<Identity> {
    Some(orders_of(pid)?.served)
}

/// Whether a process is a warden that serves `served`.
pub(super) fn is_warden_of(pid: u32, served: &ProcessRef) -> bool {
    orders_of(pid).is_some_and(|orders| orders.served.same_process(served.identity()))
}

pub(super) fn orders_of(pid: u32) -> Option<Orders> {
    let words = os::command_line(pid)?;
    let is_called_so = words.get(1).is_some_and(|word| word == "warden");
    let orders = words.get(2).filter(|_| is_called_so && os::is_kennel(pid));
    Orders::parse(OsStr::new(orders?))
}

/// Processes below daemons that are no servers of theirs. `pids` are children of this process, which it has not reaped.
pub(super) fn hidden_below(pids: &[u32]) -> Vec<ProcessRef> {
    let mut hidden: Vec<ProcessRef> = Vec::new();
    let daemons = pids.iter().filter(|&&pid| is_daemon(pid));
    let daemons: Vec<ProcessRef> = daemons
        .filter_map(|&pid| ProcessRef::open(pid).ok())
        .collect();
    let Some(Ok(children)) = (!daemons.is_empty()).then(children_by_parent) else {
        return hidden;
    };
    for daemon in &daemons {
        let below = children.get(&daemon.pid()).into_iter().flatten();
        let others = below.filter(|&&pid| !is_warden_of(pid, daemon));
        let others = others.filter_map(|&pid| ProcessRef::open(pid).ok());
        let is_child = |process: &ProcessRef| {
            os::stat(process.pid()).is_ok_and(|stat| stat.parent == daemon.pid())
                && process.is_alive()
                && daemon.is_alive()
        };
        hidden.extend(others.filter(is_child));
    }
    let below: Vec<ProcessRef> = hidden
        .iter()
        .flat_map(|process| super::below(process).unwrap_or_default())
        .collect();
    hidden.extend(below);
    hidden
}
