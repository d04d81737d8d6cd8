//! Doubts from the state of a process, apart from its open files: it may continue by itself, another process may continue
//! it, or it may keep an object alive. A fact that cannot be seen is a doubt too.

use std::io;

use crate::os::{self, Wait};
use crate::process::ProcessRef;

/// Doubts about one process.
#[derive(Debug, Default)]
pub(super) struct StateDoubts {
    pub(super) doubts: Vec<String>,
    /// Whether one of the doubts is that this user may not read something.
    pub(super) hidden: bool,
}

impl StateDoubts {
    /// Doubts about a process; none if it has ended.
    pub(super) fn of(process: &ProcessRef) -> StateDoubts {
        let mut found = StateDoubts::default();
        let pid = process.pid();
        found.status(pid);
        found.waits(pid);
        let what = format!("whether pid {pid} is frozen");
        found.check_fact(pid, &what, os::is_frozen(pid), |frozen| {
            frozen.then_some("is frozen, and may be continued".to_owned())
        });
        let what = format!("the timers of pid {pid}");
        found.check_fact(pid, &what, os::has_timers(pid), |timers| {
            timers.then_some("has a timer, and may wake up by itself".to_owned())
        });
        let what = format!("the signals of pid {pid}");
        found.check_fact(pid, &what, os::catches_alarm(pid), |catches| {
            catches.then_some("catches SIGALRM, and may wake up by itself".to_owned())
        });
        let what = format!("the namespaces of pid {pid}");
        found.check_fact(pid, &what, os::foreign_namespace(pid), |kind| {
            kind.map(|kind| format!("is in another {kind} namespace, which it may keep for others"))
        });
        match process.is_alive() {
            true => found,
            false => StateDoubts::default(),
        }
    }

    fn status(&mut self, pid: u32) {
        let stat = os::stat(pid);
        let stopped = stat.as_ref().is_ok_and(|stat| stat.stopped);
        self.check_fact(pid, &format!("the state of pid {pid}"), stat, |stat| {
            let words = "has a controlling terminal".to_owned();
            stat.terminal.then_some(words)
        });
        let what = format!("which process traces pid {pid}");
        self.check_fact(pid, &what, os::tracer_of(pid), |tracer| match tracer {
            Some(tracer) => Some(format!("is traced by pid {tracer}")),
            None => stopped.then_some("is stopped, and may be continued".to_owned()),
        });
    }

    fn waits(&mut self, pid: u32) {
        let waits = match os::waits(pid) {
            Ok(waits) if waits.is_empty() => vec![Wait::Unseen(io::ErrorKind::NotFound.into())],
            Ok(waits) => waits,
            Err(error) => vec![Wait::Unseen(error)],
        };
        let what = format!("what pid {pid} waits for");
        for wait in waits {
            let wait = match wait {
                Wait::Event => Ok(None),
                Wait::Other(words) => Ok(Some(words)),
                Wait::Unseen(error) => Err(error),
            };
            self.check_fact(pid, &what, wait, |words| words);
        }
    }

    /// Adds the doubt that follows from an answer, or that there is no answer. Threads may have the same doubt.
    fn check_fact<T>(
        &mut self,
        pid: u32,
        what: &str,
        answer: io::Result<T>,
        doubt: impl FnOnce(T) -> Option<String>,
    ) {
        let doubt = match answer {
            Ok(answer) => doubt(answer).map(|words| format!("pid {pid} {words}")),
            Err(error) => {
                self.hidden |= error.kind() == io::ErrorKind::PermissionDenied;
                Some(unknown_fact(what, &error))
            }
        };
        let new = doubt.filter(|doubt| !self.doubts.contains(doubt));
        self.doubts.extend(new);
    }
}

/// The doubt about a fact that cannot be seen.
pub(super) fn unknown_fact(what: &str, error: &io::Error) -> String {
    format!("cannot see {what} ({error})")
}
