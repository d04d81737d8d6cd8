//! Finds the children of this process where `/proc` does not list them.
//!
//! `waitid` fails with `ECHILD` for a pid that is not a child's. So pids are tried, in steps: the low ones each time, since
//! pid namespaces and most machines have no others, and a part of the rest.

use std::collections::HashSet;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions};

/// Pids below this are tried in every step: twice as many as the kernel's default limit allows.
const LOW_PIDS: u32 = 1 << 16;
/// No pid is higher than this: `PID_MAX_LIMIT`.
const PID_LIMIT: u32 = 1 << 22;
/// Pids from [`LOW_PIDS`] on that are tried in one step.
const STEP: u32 = 1 << 17;
/// Steps after which every pid was tried.
const STEPS: u32 = (PID_LIMIT - LOW_PIDS).div_ceil(STEP);

/// A search that continues while children are left.
#[derive(Debug, Default)]
pub(crate) struct ChildSearch {
    /// The children found so far.
    found: HashSet<u32>,
    /// Steps since a new child was found.
    steps: u32,
    /// Pid at which the next step begins, counted from [`LOW_PIDS`].
    next: u32,
}

impl ChildSearch {
    /// Tries the next pids; returns the children among them, zombies included.
    pub(crate) fn step(&mut self) -> Vec<u32> {
        let from = LOW_PIDS + self.next;
        let to = (from + STEP).min(PID_LIMIT);
        self.next = if to == PID_LIMIT { 0 } else { self.next + STEP };
        let children: Vec<u32> = (1..LOW_PIDS).chain(from..to).filter(is_child).collect();
        self.steps += 1;
        for &pid in &children {
            if self.found.insert(pid) {
                self.steps = 0;
            }
        }
        children
    }

    /// Whether every pid was tried since the last new child was found.
    pub(crate) fn is_complete(&self) -> bool {
        self.steps >= STEPS
    }
}

fn is_child(pid: &u32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| {
        loop {
            match rustix::process::waitid(WaitId::Pid(pid), options) {
                Err(Errno::INTR) => {}
                answer => break answer.is_ok(),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn trying_pids_finds_living_children_and_zombies_and_no_other_process() {
        let mut living = Command::new("sleep").arg("60").spawn().unwrap();
        let mut zombie = Command::new("true").spawn().unwrap();
        let ids = [living.id(), zombie.id()];
        let mut search = ChildSearch::default();
        let mut found = HashSet::new();
        while !ids.iter().all(|id| found.contains(id)) {
            assert!(!search.is_complete());
            found.extend(search.step());
        }
        assert!(!found.contains(&1) && !found.contains(&std::process::id()));
        living.kill().unwrap();
        living.wait().unwrap();
        zombie.wait().unwrap();
        assert!(!ids.iter().any(is_child));
    }

    #[test]
    fn every_pid_is_tried_once_per_sweep() {
        let mut search = ChildSearch::default();
        let mut tried = LOW_PIDS;
        while !search.is_complete() {
            let from = LOW_PIDS + search.next;
            assert_eq!(from, tried);
            search.steps += 1;
            tried = (from + STEP).min(PID_LIMIT);
            search.next = if tried == PID_LIMIT {
                0
            } else {
                search.next + STEP
            };
        }
        assert_eq!((tried, search.next), (PID_LIMIT, 0));
    }
}
