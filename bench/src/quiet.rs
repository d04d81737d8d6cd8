//! One processor, and nobody interrupted by whom he wakes.
//!
//! A round trip is a chain of processes that wake each other. On several processors most of its time is
//! where the scheduler puts whom; on one, it is whether the one that wakes another is interrupted by it, which
//! depends on who has worked how much before. Neither is Kennel's work, and both change from one minute to the
//! next. On one processor and as batch work (`SCHED_BATCH`), each works until it waits.

use std::process::{Command, Stdio};

/// As long as this lives, this process and those it starts stay on one processor. Where that cannot be had,
/// the times mean the same, and are less steady.
#[derive(Debug)]
pub(crate) struct Quiet(());

impl Quiet {
    pub(crate) fn here() -> Quiet {
        processor::stay_on_one();
        change(&["chrt", "--batch", "--pid", "0"]);
        Quiet(())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        change(&["chrt", "--other", "--pid", "0"]);
        processor::go_anywhere();
    }
}

/// By a tool that is everywhere: no safe function does it.
fn change(command: &[&str]) {
    let _ = Command::new(command[0])
        .args(&command[1..])
        .arg(std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

#[cfg(target_os = "linux")]
mod processor {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The last of those we may use: the first has the most other work to do.
    pub(super) fn stay_on_one() {
        let Ok(allowed) = sched_getaffinity(None) else {
            return;
        };
        if let Some(last) = (0..CpuSet::MAX_CPU).rfind(|&cpu| allowed.is_set(cpu)) {
            let mut one = CpuSet::new();
            one.set(last);
            let _ = sched_setaffinity(None, &one);
        }
    }

    pub(super) fn go_anywhere() {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        let _ = sched_setaffinity(None, &all);
    }
}

#[cfg(not(target_os = "linux"))]
mod processor {
    pub(super) fn stay_on_one() {}
    pub(super) fn go_anywhere() {}
}
