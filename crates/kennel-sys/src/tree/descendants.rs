//! The descendants of a process: listing, signalling and killing them.

use std::collections::HashSet;
use std::io;

use rustix::process::Signal;

use super::daemons::{hidden_below, is_daemon, is_warden_of};
use super::process_table::{ProcessTable, Step};
use crate::os;
use crate::process::{Identity, ProcessRef};

/// Maximum number of walks for one purpose. A process that starts another one on SIGTERM would keep us busy for ever.
const MAX_WALKS: usize = 32;

/// Sends `signal` to each descendant of this process, once. Those in `spared`, and their descendants, are left alone.
///
/// Lists all of them before it signals the first: the children of a process that ends could not be found any more. The next
/// walk finds processes that were forked meanwhile, below their parent or, since this process is a subreaper, below this
/// process.
pub(super) fn signal_all(signal: Signal, spared: &[Identity]) -> io::Result<()> {
    let mut signalled: HashSet<Identity> = HashSet::new();
    for _ in 0..MAX_WALKS {
        let mut found = all(spared)?;
        found.retain(|identity| !signalled.contains(identity));
        if found.is_empty() {
            break;
        }
        for identity in found {
            // A process that changed its user cannot be signalled. The last step, SIGKILL, tries all of them again.
            if let Ok(Some(process)) = ProcessRef::find(&identity) {
                let _ = process.signal(signal);
            }
            signalled.insert(identity);
        }
    }
    Ok(())
}

/// The descendants of this process, parents before their children. Those in `spared`, and their descendants, are left out.
///
/// If a process ends during the walk, its descendants are missed: so the walk is repeated until it finds no new process.
pub(super) fn all(spared: &[Identity]) -> io::Result<Vec<Identity>> {
    let mut all: Vec<Identity> = Vec::new();
    for _ in 0..MAX_WALKS {
        let mut daemons: HashSet<u32> = HashSet::new();
        let judge = |process: &ProcessRef, parent: Option<&ProcessRef>| {
            let pid = process.pid();
            // The servers of a Kennel daemon have wardens, and are spared.
            let server_of_a_daemon = parent
                .is_some_and(|parent| daemons.contains(&parent.pid()) && is_warden_of(pid, parent));
            if server_of_a_daemon || is_one_of(process, spared) {
                return Step::Skip;
            }
            match is_daemon(pid) {
                true => {
                    daemons.insert(pid);
                    Step::Pass
                }
                false => Step::Collect,
            }
        };
        let (found, incomplete) = ProcessTable::now()?.own_descendants(judge);
        let known = all.len();
        for identity in found {
            if !all.contains(&identity) {
                all.push(identity);
            }
        }
        if all.len() == known && !incomplete {
            break;
        }
    }
    Ok(all)
}

fn is_one_of(process: &ProcessRef, spared: &[Identity]) -> bool {
    spared
        .iter()
        .any(|identity| process.identity().same_process(identity))
}

/// Whether `pid` is a living process in `spared`.
pub(super) fn is_spared(pid: u32, spared: &[Identity]) -> bool {
    spared.iter().any(|identity| identity.pid() == pid)
        && ProcessRef::open(pid).is_ok_and(|process| is_one_of(&process, spared))
}

/// Kills direct children of this process, and processes that hide below Kennel's daemons. The daemons are left alone.
/// Returns the pids that could be signalled: not those of processes that changed their user.
///
/// No identity is needed: an unreaped child keeps its pid, and only this thread reaps.
pub(super) fn kill_children(mut children: Vec<u32>) -> Vec<u32> {
    let hidden = hidden_below(&children);
    children.retain(|&pid| !is_daemon(pid));
    children.retain(|&pid| {
        #[expect(
            clippy::disallowed_methods,
            reason = "the pid of an unreaped child cannot have been reused"
        )]
        os::pid_of(pid).is_ok_and(|pid| rustix::process::kill_process(pid, Signal::KILL).is_ok())
    });
    let reached = |process: &&ProcessRef| process.signal(Signal::KILL).unwrap_or(false);
    children.extend(hidden.iter().filter(reached).map(ProcessRef::pid));
    children
}

/// Whether the only children left of this process are daemons of Kennel and processes in `spared`.
pub(super) fn only_spared_left(spared: &[Identity]) -> bool {
    let is_spared = |&pid: &u32| is_spared(pid, spared) || is_daemon(pid);
    let children = os::children_of_this_process();
    children
        .is_ok_and(|children| children.iter().all(is_spared) && hidden_below(&children).is_empty())
}

/// The descendants of `root`, parents before their children. Daemons of Kennel and their descendants are left out. A process
/// that is forked during the walk may be missing.
pub fn below(root: &ProcessRef) -> io::Result<Vec<ProcessRef>> {
    let judge = |process: &ProcessRef, _: &ProcessRef| match is_daemon(process.pid()) {
        true => Step::Skip,
        false => Step::Collect,
    };
    Ok(ProcessTable::now()?.descendants(root, judge))
}
