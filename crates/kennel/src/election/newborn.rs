//! A daemon that was stopped on its way to being ready: no record names it yet, and its own alarm is stopped
//! with it. But it holds `spawn.lock`, which nobody else can take meanwhile.

use std::time::{Duration, Instant};

use kennel_sys::lock::holders;
use kennel_sys::process::ProcessRef;

use super::stuck::{self, Patience, StuckCheck, Watch};
use crate::key_dir::{KeyDir, SPAWN_LOCK};

/// Most are ready long before anybody looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A look now and then at whoever is about to be the daemon.
#[derive(Debug)]
pub(super) struct Newborn {
    looked: Instant,
    watch: Option<Watch>,
}

impl Newborn {
    /// The first look is not now.
    pub(super) fn new() -> Newborn {
        Newborn {
            looked: Instant::now(),
            watch: None,
        }
    }

    /// When to look again.
    pub(super) fn next_look(&self) -> Duration {
        LOOK_EVERY.saturating_sub(self.looked.elapsed())
    }

    /// Ends it if it is stuck, by reference (rule 6); `true` if it is gone for that reason.
    pub(super) fn end_if_stuck(&mut self, key_dir: &KeyDir) -> Result<bool, String> {
        if !self.next_look().is_zero() {
            return Ok(false);
        }
        self.looked = Instant::now();
        if self.watch.is_none() {
            let found = holders(key_dir.dir(), SPAWN_LOCK, is_daemon)
                .into_iter()
                .find(|process| is_daemon(process.pid()) && process.is_alive());
            self.watch = found.map(|process| Watch::new(Some(process), Patience::First));
        }
        let Some(watch) = &mut self.watch else {
            return Ok(false);
        };
        if watch.look() != StuckCheck::Stuck {
            return Ok(false);
        }
        let process = watch.take_process();
        self.watch = None;
        // It may have got ready since: then it is on record, and others decide about it.
        let is_ours =
            |process: &ProcessRef| still_holds(key_dir, process) && key_dir.is_daemon(process);
        match process.filter(is_ours) {
            Some(process) => stuck::kill(&process).map(|()| true),
            None => Ok(false),
        }
    }
}

/// A shim that holds the lock is none: it may be stopped for as long as its person likes.
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
