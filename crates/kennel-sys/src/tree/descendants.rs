//! Everyone below this process.

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::process::Signal;

use super::daemons::{hidden_below, is_daemon, is_warden_of};
use crate::linux as os;
use crate::process::{Identity, ProcessRef};

/// Most looks at the process table for one purpose. A process that starts another on SIGTERM would keep us busy for ever.
const MOST_LOOKS: usize = 32;

/// Sends `signal` to every descendant of this process, once. Those in `spared`, and what is below them, are left alone.
///
/// Collects all of them before the first is signalled: a parent that ends on the signal takes the way to its
/// children with it. Whoever was forked meanwhile is found by the next look, below its parent or, since this
/// process is a subreaper, below this process.
pub(super) fn signal_all(signal: Signal, spared: &[Identity]) -> io::Result<()> {
    let mut signalled: HashSet<Identity> = HashSet::new();
    for _ in 0..MOST_LOOKS {
        let mut found = all(spared)?;
        found.retain(|identity| !signalled.contains(identity));
        if found.is_empty() {
            break;
        }
        for identity in found {
            // A process that changed its user cannot be signalled; the last rung does not ask.
            if let Ok(Some(process)) = ProcessRef::find(&identity) {
                let _ = process.signal(signal);
            }
            signalled.insert(identity);
        }
    }
    Ok(())
}

/// Every descendant of this process but those in `spared` and what is below them.
///
/// A process that ends while it is looked at hides what is below it: then, and until nobody new is found, looks again.
pub(super) fn all(spared: &[Identity]) -> io::Result<Vec<Identity>> {
    let mut everyone: Vec<Identity> = Vec::new();
    for _ in 0..MOST_LOOKS {
        let mut look = Look {
            children: children_by_parent()?,
            spared,
            found: Vec::new(),
            lost: false,
        };
        look.collect_below(std::process::id(), None, false);
        let known = everyone.len();
        for identity in look.found {
            if !everyone.contains(&identity) {
                everyone.push(identity);
            }
        }
        if everyone.len() == known && !look.lost {
            break;
        }
    }
    Ok(everyone)
}

/// One look at the descendants of this process.
struct Look<'a> {
    children: HashMap<u32, Vec<u32>>,
    spared: &'a [Identity],
    found: Vec<Identity>,
    /// Somebody in the list was gone, or had another parent, when it was looked at.
    lost: bool,
}

impl Look<'_> {
    /// Collects everyone below `parent`, which is this process if it is not held. Holds no more descriptors than the
    /// tree is deep. `below_daemon`: the parent is a daemon of ours, whose servers have wardens and are spared.
    fn collect_below(&mut self, parent_pid: u32, parent: Option<&ProcessRef>, below_daemon: bool) {
        for pid in self.children.remove(&parent_pid).into_iter().flatten() {
            let Ok(process) = ProcessRef::open(pid) else {
                self.lost = true;
                continue;
            };
            // A grandchild may have been reaped, and its pid given away, since the list was made. This one is who it
            // seems if its parent is still the one we hold, and is so now (rule 6).
            let is_child = os::stat(pid).is_ok_and(|stat| stat.parent == parent_pid)
                && process.is_alive()
                && parent.is_none_or(ProcessRef::is_alive);
            if !is_child {
                self.lost = true;
                continue;
            }
            let server_of_a_daemon =
                below_daemon && parent.is_some_and(|daemon| is_warden_of(pid, daemon));
            if server_of_a_daemon || is_one_of(&process, self.spared) {
                continue;
            }
            let daemon = is_daemon(pid);
            if !daemon {
                self.found.push(*process.identity());
            }
            self.collect_below(pid, Some(&process), daemon);
        }
    }
}

fn is_one_of(process: &ProcessRef, spared: &[Identity]) -> bool {
    spared
        .iter()
        .any(|identity| process.identity().same_process(identity))
}

/// Whether `pid` is a living process of `spared`.
pub(super) fn is_spared(pid: u32, spared: &[Identity]) -> bool {
    spared.iter().any(|identity| identity.pid() == pid)
        && ProcessRef::open(pid).is_ok_and(|process| is_one_of(&process, spared))
}

/// Kills direct children of this process; returns those that the kill could reach. One that changed its user is out of
/// reach. Daemons of ours are left alone, and what hides below them is killed.
///
/// No identity is needed: an unreaped child keeps its pid, and only this thread reaps.
pub(super) fn kill_children(mut children: Vec<u32>) -> Vec<u32> {
    let hidden = hidden_below(&children);
    children.retain(|&pid| !is_daemon(pid));
    children.retain(|&pid| {
        #[expect(
            clippy::disallowed_methods,
            reason = "an unreaped child of ours: its pid cannot have been given away"
        )]
        os::pid_of(pid).is_ok_and(|pid| rustix::process::kill_process(pid, Signal::KILL).is_ok())
    });
    let reached = |process: &&ProcessRef| process.signal(Signal::KILL).unwrap_or(false);
    children.extend(hidden.iter().filter(reached).map(ProcessRef::pid));
    children
}

/// Whether nobody is left among the children of this process but daemons of ours and those in `spared`.
pub(super) fn only_spared_left(spared: &[Identity]) -> bool {
    let is_spared = |&pid: &u32| is_spared(pid, spared) || is_daemon(pid);
    let children = os::children_of_this_process();
    children
        .is_ok_and(|children| children.iter().all(is_spared) && hidden_below(&children).is_empty())
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
            if is_daemon(pid) {
                continue;
            }
            // As in `Look::collect_below`: below the one we hold, and so now (rule 6).
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

    /// The children of a process.
    pub fn children(&self, pid: u32) -> Vec<u32> {
        self.0.get(&pid).cloned().unwrap_or_default()
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

/// Everyone's children, in one look at the process table. A zombie is nobody's, and has none.
pub(crate) fn children_by_parent() -> io::Result<HashMap<u32, Vec<u32>>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in os::processes()? {
        if let Ok(stat) = os::stat(pid)
            && !stat.ended()
        {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    Ok(children)
}
