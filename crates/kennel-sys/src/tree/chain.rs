//! Chains: processes of an abandoned tree, each of which forks and exits at once. A list of all processes contains a process
//! of the chain that has exited before it is checked, so an empty result proves nothing. But a chain always has a process that
//! has just started, and the kernel tells the pid that it gave last.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::members::{Newborn, Newborns};
use crate::os;
use crate::process::Identity;

/// Time without a new process of the tree after which the chase ends. A process that sleeps for longer is found in the process
/// table.
const QUIET_TIME: Duration = Duration::from_millis(30);
/// Maximum time to chase a chain.
const MAX_CHASE: Duration = Duration::from_secs(2);
/// Maximum number of new processes to check at once: while older ones are checked, the chain forks on.
const MAX_CHECKED: u32 = 3;

/// The result of a chase.
pub(super) struct Chase {
    /// The processes that were killed.
    pub(super) killed: HashSet<Identity>,
    /// Whether the tree has no new processes any more.
    pub(super) is_over: bool,
}

/// Kills the processes of the abandoned tree `cookie` that start now, until none starts for [`QUIET_TIME`]. `members` confirms
/// each of them as a member of the tree.
///
/// Polls, because the kernel has no event for a fork of another process.
pub(super) fn end(cookie: &str) -> io::Result<Chase> {
    let newborns = Newborns::of(cookie)?;
    let mut chase = Chase {
        killed: HashSet::new(),
        is_over: true,
    };
    let deadline = Instant::now() + MAX_CHASE;
    let mut last_seen = Instant::now();
    let mut before = os::newest_pid()?;
    while last_seen.elapsed() < QUIET_TIME {
        if Instant::now() >= deadline {
            chase.is_over = false;
            break;
        }
        let newest = os::newest_pid()?;
        // After the largest pid, small ones follow.
        let first = match before < newest {
            true => newest.saturating_sub(MAX_CHECKED - 1).max(before + 1),
            false => newest,
        };
        let is_new = newest != before;
        for pid in (first..=newest).rev().filter(|_| is_new) {
            match newborns.judge(pid) {
                Newborn::Member(process) => {
                    last_seen = Instant::now();
                    if process.signal(Signal::KILL).unwrap_or(false) {
                        chase.killed.insert(*process.identity());
                    }
                }
                Newborn::Gone => last_seen = Instant::now(),
                Newborn::Other => {}
            }
        }
        before = newest;
    }
    Ok(chase)
}
