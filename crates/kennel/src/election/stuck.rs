//! Checks whether a daemon that does not answer is stuck, and kills it if it is verified to be the daemon of its key.
//!
//! `kennel_core::election` decides how long a daemon may be silent.

use std::time::{Duration, Instant};

use kennel_core::election::{self, Activity};
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};

use super::connect::is_holder;
use crate::key_dir::KeyDir;

pub(crate) use kennel_core::election::{Patience, StuckCheck};

/// Maximum wait for a process to exit after SIGKILL. A process blocked in the kernel may not exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Checks a process that has not answered. Create it when the wait begins.
#[derive(Debug)]
pub(crate) struct Watch {
    process: Option<ProcessRef>,
    start: Instant,
    watch: election::StuckWatch,
}

impl Watch {
    pub(crate) fn new(process: Option<ProcessRef>, patience: Patience) -> Watch {
        Watch {
            process,
            start: Instant::now(),
            watch: election::StuckWatch::new(patience, Moment::START),
        }
    }

    /// Checks the process now.
    pub(crate) fn check(&mut self) -> StuckCheck {
        let work = self.process.as_ref().and_then(activity_of);
        let now = Moment::START + self.start.elapsed();
        self.watch.check(work, now)
    }

    /// The checked process.
    pub(crate) fn process(&self) -> Option<&ProcessRef> {
        self.process.as_ref()
    }

    /// Takes the checked process.
    pub(crate) fn take_process(&mut self) -> Option<ProcessRef> {
        self.process.take()
    }
}

/// The activity of a process; `None` if that cannot be read.
pub(crate) fn activity_of(process: &ProcessRef) -> Option<Activity> {
    let work = process.work()?;
    let (state, cpu) = (work.state, work.cpu_ticks);
    Some(Activity { state, cpu })
}

/// Whether the record in this directory names this process.
pub(super) fn is_recorded(key_dir: &KeyDir, suspect: &ProcessRef) -> bool {
    let recorded = key_dir
        .record()
        .and_then(|record| record.identity.parse::<Identity>().ok());
    recorded.is_some_and(|recorded| recorded.same_process(suspect.identity()))
}

/// Kills a stuck daemon by reference (rule 6), if it is on record and holds `daemon.lock`. `Err`: why the session goes
/// dedicated instead.
pub(super) fn kill_if_verified(key_dir: &KeyDir, suspect: &ProcessRef) -> Result<(), String> {
    if !suspect.is_alive() {
        return Ok(());
    }
    let is_verified = is_recorded(key_dir, suspect) && is_holder(key_dir, suspect);
    if !is_verified || !key_dir.is_daemon(suspect) {
        return Err(not_verified(key_dir, suspect));
    }
    kill(suspect)
}

/// Kills a verified daemon and waits for its exit.
pub(super) fn kill(suspect: &ProcessRef) -> Result<(), String> {
    let pid = suspect.pid();
    suspect
        .signal(Signal::KILL)
        .and_then(|_| suspect.wait(Some(KILL_TIMEOUT)))
        .map_err(|error| format!("the daemon (pid {pid}) is stuck and cannot be killed: {error}"))?
        .then_some(())
        .ok_or_else(|| {
            format!("the daemon (pid {pid}) is stuck in the kernel and does not exit after SIGKILL")
        })
}

/// The error for a silent daemon that is not killed because it is not verified.
pub(super) fn not_verified(key_dir: &KeyDir, suspect: &ProcessRef) -> String {
    format!(
        "the daemon (pid {}) does not answer, but cannot be verified as the daemon of {}; if it is, kill it",
        suspect.pid(),
        key_dir.dir().path().display()
    )
}
