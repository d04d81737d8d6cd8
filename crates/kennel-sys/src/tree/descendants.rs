//! Everyone below this process.

use std::collections::HashSet;
use std::io;

use rustix::process::Signal;

use super::daemons::{hidden_below, is_daemon, is_warden_of};
use super::walk::{Children, Step, Walk, children_by_parent};
use crate::os;
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
        let children = children_by_parent()?;
        let mut daemons: HashSet<u32> = HashSet::new();
        let judge = |process: &ProcessRef, parent: Option<&ProcessRef>| {
            let pid = process.pid();
            // The servers of a daemon of ours have wardens, and are spared.
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
        let mut found: Vec<Identity> = Vec::new();
        let collect = |process: ProcessRef| found.push(*process.identity());
        let lost = Walk::new(&children, judge, collect).below_this_process();
        let known = everyone.len();
        // Parents before their children.
        for identity in found.into_iter().rev() {
            if !everyone.contains(&identity) {
                everyone.push(identity);
            }
        }
        if everyone.len() == known && !lost {
            break;
        }
    }
    Ok(everyone)
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
    let judge = |process: &ProcessRef, _: Option<&ProcessRef>| match is_daemon(process.pid()) {
        true => Step::Skip,
        false => Step::Collect,
    };
    let mut everyone = Vec::new();
    Walk::new(&children, judge, |process| everyone.push(process)).below(root);
    everyone.reverse();
    Ok(everyone)
}

/// Who is below whom, as it was at one moment: for looking. A pid in it may be another's by now.
#[derive(Debug)]
pub struct Families(Children);

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
