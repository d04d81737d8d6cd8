//! The served process as its wardens' subreaper: what a killed warden leaves becomes its child.

use std::io;

use rustix::process::{Pid, WaitOptions};

use super::descendants;
use crate::linux as os;

/// Makes orphans below this process its children instead of init's. Call it before the first start.
pub fn become_subreaper() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Kills and reaps every child of this process but `known` ones, with all that is below them;
/// returns how many that were. Due when a warden's exit was not announced by it.
///
/// For a process whose only children are wardens: any other child is a stray.
pub fn end_strays(known: &[u32]) -> io::Result<usize> {
    let mut ended = 0;
    loop {
        let strays = descendants::kill_children(|pid| !known.contains(&pid))?;
        if strays.is_empty() {
            return Ok(ended);
        }
        ended += strays.len();
        for pid in strays {
            reap(os::pid_of(pid)?)?;
        }
        // What was below them is ours by now: look again.
    }
}

fn reap(pid: Pid) -> io::Result<()> {
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
