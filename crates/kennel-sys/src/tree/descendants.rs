//! Everyone below this process.

use std::collections::HashMap;
use std::io;

use rustix::process::Signal;

use crate::linux as os;
use crate::process::ProcessRef;

/// Sends `signal` to every descendant of this process, once.
pub(super) fn signal_all(signal: Signal) -> io::Result<()> {
    let children = children_by_parent()?;
    let mut line: Vec<(u32, Option<ProcessRef>)> = vec![(std::process::id(), None)];
    while let Some((parent_pid, parent)) = line.pop() {
        for &pid in children.get(&parent_pid).into_iter().flatten() {
            let Ok(process) = ProcessRef::open(pid) else {
                continue;
            };
            if is_a_daemon_of_ours(pid) {
                continue;
            }
            // A grandchild may have been reaped, and its pid given away, since the list was made. This
            // one is who it seems if its parent is still the one we hold, and is so now (rule 6).
            let is_child = os::stat(pid).is_ok_and(|stat| stat.parent == parent_pid)
                && process.is_alive()
                && parent.as_ref().is_none_or(ProcessRef::is_alive);
            if is_child {
                // One that changed its user cannot be asked; the last rung does not ask.
                let _ = process.signal(signal);
                line.push((pid, Some(process)));
            }
        }
    }
    Ok(())
}

/// Kills the direct children that `condemned` names; returns those that the kill could reach. One that
/// changed its user is out of reach.
///
/// No identity is needed: an unreaped child keeps its pid, and only this thread reaps.
pub(super) fn kill_children(condemned: impl Fn(u32) -> bool) -> io::Result<Vec<u32>> {
    let mut children = os::children_of_this_process()?;
    children.retain(|&pid| condemned(pid) && !is_a_daemon_of_ours(pid));
    children.retain(|&pid| {
        #[expect(
            clippy::disallowed_methods,
            reason = "an unreaped child of ours: its pid cannot have been given away"
        )]
        os::pid_of(pid).is_ok_and(|pid| rustix::process::kill_process(pid, Signal::KILL).is_ok())
    });
    Ok(children)
}

/// Whether only daemons of ours are left among the children of this process, or nobody.
pub(super) fn only_daemons_left() -> bool {
    let children = os::children_of_this_process();
    children.is_ok_and(|children| children.iter().all(|&pid| is_a_daemon_of_ours(pid)))
}

/// A daemon that was first needed inside a server (an app may itself be one) lands below that server's
/// warden, and so does a guardian, which guards a detached server. It is nobody's: the ladder spares it, and
/// what is below it.
pub(super) fn is_a_daemon_of_ours(pid: u32) -> bool {
    os::runs_our_program(pid)
        && os::first_argument(pid).is_some_and(|word| word == b"daemon" || word == b"guardian")
}

/// Everyone below `root`, each held as a reference, but for daemons of ours and what is below them. A snapshot:
/// what is forked meanwhile may be missing.
pub fn below(root: &ProcessRef) -> io::Result<Vec<ProcessRef>> {
    let children = children_by_parent()?;
    let mut everyone: Vec<ProcessRef> = Vec::new();
    let mut line: Vec<(u32, Option<usize>)> = vec![(root.pid(), None)];
    while let Some((parent_pid, parent)) = line.pop() {
        for &pid in children.get(&parent_pid).into_iter().flatten() {
            let Ok(process) = ProcessRef::open(pid) else {
                continue;
            };
            if is_a_daemon_of_ours(pid) {
                continue;
            }
            // As in `signal_all`: below the one we hold, and so now (rule 6).
            let is_child = os::stat(pid).is_ok_and(|stat| stat.parent == parent_pid)
                && process.is_alive()
                && parent.map_or(root, |index| &everyone[index]).is_alive();
            if is_child {
                line.push((pid, Some(everyone.len())));
                everyone.push(process);
            }
        }
    }
    Ok(everyone)
}

/// Who is below whom, as it was at one moment: for looking. A pid in it may be another's by now.
#[derive(Debug)]
pub struct Families(HashMap<u32, Vec<u32>>);

impl Families {
    /// One look at the process table.
    pub fn now() -> io::Result<Families> {
        children_by_parent().map(Families)
    }

    /// A process and everyone below it.
    pub fn of(&self, pid: u32) -> Vec<u32> {
        let mut everyone = vec![pid];
        let mut seen = 0;
        while let Some(&parent) = everyone.get(seen) {
            seen += 1;
            everyone.extend(self.0.get(&parent).into_iter().flatten());
        }
        everyone
    }
}

/// Everyone's children, in one look at the process table.
pub(crate) fn children_by_parent() -> io::Result<HashMap<u32, Vec<u32>>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in os::processes()? {
        if let Ok(stat) = os::stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    Ok(children)
}
