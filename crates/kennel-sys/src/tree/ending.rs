//! Ending processes that are not our children: signal them, and wait.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::ProcessRef;

/// Maximum time to wait for killed processes. A process that waits for a stuck disk takes longer, and is left.
pub(crate) const AFTER_KILL: Duration = Duration::from_secs(5);

/// Sends SIGTERM to processes, waits for them for `after_term`, kills those that are left, and waits for [`AFTER_KILL`].
pub(crate) fn end_all<'a>(
    processes: impl Iterator<Item = &'a ProcessRef> + Clone,
    after_term: Duration,
) -> io::Result<()> {
    for (signal, time) in [(Signal::TERM, after_term), (Signal::KILL, AFTER_KILL)] {
        for process in processes.clone().filter(|process| process.is_alive()) {
            // A process that changed its user cannot be signalled; the others can.
            let _ = process.signal(signal);
        }
        wait_for_all(processes.clone(), time)?;
    }
    Ok(())
}

/// Waits until processes have ended, for at most `time` in total.
pub(crate) fn wait_for_all<'a>(
    processes: impl IntoIterator<Item = &'a ProcessRef>,
    time: Duration,
) -> io::Result<()> {
    let started = Instant::now();
    for process in processes {
        process.wait(Some(time.saturating_sub(started.elapsed())))?;
    }
    Ok(())
}
