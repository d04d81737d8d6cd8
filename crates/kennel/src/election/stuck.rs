//! A daemon that does not answer: is it stuck, is it the one, and then it is ended.
//!
//! How long silence is borne, and what is no silence, is `kennel_core::election`'s to say.

use std::time::{Duration, Instant};

use kennel_core::election::{self, Activity};
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};

use super::connect::is_holder;
use crate::key_dir::KeyDir;

pub(crate) use kennel_core::election::{Patience, StuckCheck};

/// How long it may take to end a process that was sent SIGKILL. One that sleeps in the kernel may not.
const KILL_TAKES: Duration = Duration::from_secs(1);

/// A look now and then at a process that owes an answer. Begin it when the wait begins.
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

    /// Takes a look at it.
    pub(crate) fn look(&mut self) -> StuckCheck {
        let work = self.process.as_ref().and_then(work_of);
        let now = Moment::START + self.start.elapsed();
        self.watch.check(work, now)
    }

    /// What it looks at.
    pub(crate) fn process(&self) -> Option<&ProcessRef> {
        self.process.as_ref()
    }

    /// What it looked at.
    pub(crate) fn take_process(&mut self) -> Option<ProcessRef> {
        self.process.take()
    }
}

/// What a process does; `None` if that cannot be seen.
pub(crate) fn work_of(process: &ProcessRef) -> Option<Activity> {
    let work = process.work()?;
    let (state, cpu) = (work.state, work.cpu_ticks);
    Some(Activity { state, cpu })
}

/// Whether the record of this place speaks of this very process.
pub(super) fn is_recorded(key_dir: &KeyDir, suspect: &ProcessRef) -> bool {
    let recorded = key_dir
        .record()
        .and_then(|record| record.identity.parse::<Identity>().ok());
    recorded.is_some_and(|recorded| recorded.same_process(suspect.identity()))
}

/// Ends a daemon that is stuck: on record here, the holder of `daemon.lock`, and killed by reference
/// (rule 6). `Err` says why the person gets a server without a daemon.
pub(super) fn end(key_dir: &KeyDir, suspect: &ProcessRef) -> Result<(), String> {
    if !suspect.is_alive() {
        return Ok(());
    }
    let is_the_one = is_recorded(key_dir, suspect) && is_holder(key_dir, suspect);
    if !is_the_one || !key_dir.is_daemon(suspect) {
        return Err(unproven(key_dir, suspect));
    }
    kill(suspect)
}

/// Kills a daemon of which all is proven, and waits for its end.
pub(super) fn kill(suspect: &ProcessRef) -> Result<(), String> {
    let pid = suspect.pid();
    suspect
        .signal(Signal::KILL)
        .and_then(|_| suspect.wait(Some(KILL_TAKES)))
        .map_err(|error| format!("the daemon (pid {pid}) is stuck and cannot be ended: {error}"))?
        .then_some(())
        .ok_or_else(|| format!("the daemon (pid {pid}) is stuck in the kernel and does not end"))
}

/// Why a silent daemon is left alone.
pub(super) fn unproven(key_dir: &KeyDir, suspect: &ProcessRef) -> String {
    format!(
        "the daemon (pid {}) does not answer, and it cannot be proven that it is the one of {}; if it is, end it",
        suspect.pid(),
        key_dir.dir().path().display()
    )
}
