//! Finds a daemon that was stopped (SIGSTOP) before it was ready: no record names it yet, and its own start timeout is
//! stopped, too. But it holds `spawn.lock`, so no other process can take that lock.

use std::time::{Duration, Instant};

use kennel_sys::lock::holders;
use kennel_sys::process::ProcessRef;

use super::stuck::{self, Patience, StuckCheck, Watch};
use crate::key_dir::{KeyDir, SPAWN_LOCK};

/// Interval between checks. Most daemons are ready before the first one.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Checks the process that is starting as the daemon.
#[derive(Debug)]
pub(super) struct StartingDaemon {
    checked_at: Instant,
    watch: Option<Watch>,
}

impl StartingDaemon {
    /// The first check is due after one interval.
    pub(super) fn new() -> StartingDaemon {
        StartingDaemon {
            checked_at: Instant::now(),
            watch: None,
        }
    }

    /// Time until the next check.
    pub(super) fn until_next_check(&self) -> Duration {
        CHECK_INTERVAL.saturating_sub(self.checked_at.elapsed())
    }

    /// Kills the daemon by reference (rule 6) if it is stuck. Returns whether it was killed.
    pub(super) fn kill_if_stuck(&mut self, key_dir: &KeyDir) -> Result<bool, String> {
        if !self.until_next_check().is_zero() {
            return Ok(false);
        }
        self.checked_at = Instant::now();
        if self.watch.is_none() {
            let found = holders(key_dir.dir(), SPAWN_LOCK, is_daemon)
                .into_iter()
                .find(|process| is_daemon(process.pid()) && process.is_alive());
            self.watch = found.map(|process| Watch::new(Some(process), Patience::First));
        }
        let Some(watch) = &mut self.watch else {
            return Ok(false);
        };
        if watch.check() != StuckCheck::Stuck {
            return Ok(false);
        }
        let process = watch.take_process();
        self.watch = None;
        // It may be ready by now: then it is on record, and the election decides about it.
        let is_ours =
            |process: &ProcessRef| still_holds(key_dir, process) && key_dir.is_daemon(process);
        match process.filter(is_ours) {
            Some(process) => stuck::kill(&process).map(|()| true),
            None => Ok(false),
        }
    }
}

/// Whether a process is a daemon. A shim that holds the lock is not: a person may have stopped it on purpose.
fn is_daemon(pid: u32) -> bool {
    let words = ProcessRef::open(pid)
        .ok()
        .and_then(|process| process.command_line());
    words.is_some_and(|words| words.get(1).is_some_and(|word| word == "daemon"))
}

fn still_holds(key_dir: &KeyDir, process: &ProcessRef) -> bool {
    holders(key_dir.dir(), SPAWN_LOCK, |pid| pid == process.pid())
        .iter()
        .any(|holder| holder.identity().same_process(process.identity()))
}
