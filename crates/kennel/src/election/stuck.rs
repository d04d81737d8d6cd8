//! A daemon that does not answer: is it stuck, is it the one, and then it is ended.
//!
//! How long silence is borne, and what is no silence, is `kennel_core::election`'s to say.

use std::time::{Duration, Instant};

use kennel_core::election::{self, Work};
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};

use super::connect::is_holder;
use crate::meeting::Meeting;

pub(crate) use kennel_core::election::{Look, Patience};

/// How long it may take to end a process that was sent SIGKILL. One that sleeps in the kernel may not.
const KILL_TAKES: Duration = Duration::from_secs(1);

/// A look now and then at a process that owes an answer. Begin it when the wait begins.
#[derive(Debug)]
pub(crate) struct Watch {
    process: Option<ProcessRef>,
    start: Instant,
    watch: election::Watch,
}

impl Watch {
    pub(crate) fn new(process: Option<ProcessRef>, patience: Patience) -> Watch {
        Watch {
            process,
            start: Instant::now(),
            watch: election::Watch::new(patience, Moment::START),
        }
    }

    /// Takes a look at it.
    pub(crate) fn look(&mut self) -> Look {
        let work = self.process.as_ref().and_then(work_of);
        let now = Moment::START + self.start.elapsed();
        self.watch.look(work, now)
    }

    /// Whom it looks at.
    pub(crate) fn process(&self) -> Option<&ProcessRef> {
        self.process.as_ref()
    }

    /// Whom it looked at.
    pub(crate) fn take_process(&mut self) -> Option<ProcessRef> {
        self.process.take()
    }
}

/// Read from `/proc` and verified afterwards: the number may be another's by then (rule 6).
pub(crate) fn work_of(process: &ProcessRef) -> Option<Work> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
    let work = parse_stat(&text)?;
    process.is_alive().then_some(work)
}

fn parse_stat(text: &str) -> Option<Work> {
    // The command may hold spaces and parentheses of its own: the fields start behind the last one.
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
    let user: u64 = fields.get(11)?.parse().ok()?;
    let system: u64 = fields.get(12)?.parse().ok()?;
    Some(Work {
        state: fields.first()?.chars().next()?,
        cpu: user + system,
    })
}

/// Whether the record of this place speaks of this very process.
pub(super) fn is_recorded(meeting: &Meeting, suspect: &ProcessRef) -> bool {
    let recorded = meeting
        .record()
        .and_then(|record| record.identity.parse::<Identity>().ok());
    recorded.is_some_and(|recorded| recorded.same_process(suspect.identity()))
}

/// Ends a daemon that is stuck: on record here, the holder of `daemon.lock`, and killed by reference
/// (rule 6). `Err` says why the person gets a server without a daemon.
pub(super) fn end(meeting: &Meeting, suspect: &ProcessRef) -> Result<(), String> {
    if !suspect.is_alive() {
        return Ok(());
    }
    let is_the_one = is_recorded(meeting, suspect) && is_holder(meeting, suspect);
    if !is_the_one || !meeting.is_daemon(suspect) {
        return Err(unproven(meeting, suspect));
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
pub(super) fn unproven(meeting: &Meeting, suspect: &ProcessRef) -> String {
    format!(
        "the daemon (pid {}) does not answer, and it cannot be proven that it is the one of {}; if it is, end it",
        suspect.pid(),
        meeting.dir().path().display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let line = "77 (a) Z 1 (b)) T 42 77 70 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 3 0 991 0 0";
        let work = Work {
            state: 'T',
            cpu: 42,
        };
        assert_eq!(parse_stat(line), Some(work));
    }
}
