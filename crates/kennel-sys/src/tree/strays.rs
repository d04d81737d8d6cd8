//! The served process as its wardens' subreaper: what a killed warden leaves becomes its child.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::WaitOptions;

use super::descendants;
use crate::events;
use crate::linux as os;
use crate::signals::reap_children_ourselves;

/// How long a killed stray may take to be gone. One in the middle of a disk's answer may take longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Children that were there before any warden: started by whoever we were before an exec.
static ELDER: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Makes orphans below this process its children instead of init's. Call it before the first start: the
/// children it has by then are no strays (`helper & exec kennel …` leaves us one).
pub fn become_subreaper() -> io::Result<()> {
    reap_children_ourselves();
    *ELDER.lock().unwrap_or_else(PoisonError::into_inner) =
        os::children_of_this_process().unwrap_or_default();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// The children that are no strays.
pub(crate) fn elders() -> Vec<u32> {
    ELDER.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// As [`become_subreaper`] after an exec of one that was it already, with the elders it knew.
pub(crate) fn remain_subreaper(elders: Vec<u32>) -> io::Result<()> {
    reap_children_ourselves();
    *ELDER.lock().unwrap_or_else(PoisonError::into_inner) = elders;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Kills and reaps every child of this process but `known` ones and those from before, with all that is
/// below them; returns how many that were. Due when a warden's exit was not announced by it.
///
/// For a process whose only children are wardens: any other child is a stray. Call it on the thread that
/// starts them. One that cannot be killed (it changed its user) stays, and is not waited for.
pub fn end_strays(known: &[u32]) -> io::Result<usize> {
    let elder = ELDER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let deadline = Instant::now() + PATIENCE;
    let mut ended = 0;
    loop {
        let mut strays =
            descendants::kill_children(|pid| !known.contains(&pid) && !elder.contains(&pid))?;
        if strays.is_empty() {
            return Ok(ended);
        }
        let killed = strays.len();
        // What was below them becomes ours as they go: look again when they are gone.
        while !strays.is_empty() {
            strays.retain(|&pid| !is_reaped(pid));
            if Instant::now() >= deadline {
                return Ok(ended + killed - strays.len());
            }
            if !strays.is_empty() {
                events::sleep(&[], &[], Some(Duration::from_millis(1)))?;
            }
        }
        ended += killed;
    }
}

fn is_reaped(pid: u32) -> bool {
    let Ok(pid) = os::pid_of(pid) else {
        return true;
    };
    match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
        Ok(None) | Err(rustix::io::Errno::INTR) => false,
        Ok(Some(_)) | Err(_) => true,
    }
}
