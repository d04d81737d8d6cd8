//! A stopped server (SIGSTOP, or a debugger): when to look for it, and how to report it. It is not killed, and its
//! requests stay pending: whoever stopped it may continue it.

use std::time::{Duration, Instant};

use kennel_sys::tree::Stopped;
use serde::{Deserialize, Serialize};

/// Time without an answer before the timer for the first check is set. Most requests are answered earlier, and cost no
/// timer of their own.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// Time without an answer before the first check. The distance of checks doubles with each, up to [`LONGEST`]: the
/// kernel tells only its parent that a process was stopped (rule 10).
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);

/// When to check whether a server that answers nothing is stopped: 10 s after it last spoke, then 20 s, 40 s and so on
/// later, at most 5 min.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checks {
    next: Instant,
    distance: Duration,
}

impl Checks {
    /// For a request that is pending, and a server that is silent, since this moment.
    pub(crate) fn since(moment: Instant) -> Checks {
        Checks {
            next: moment + FIRST,
            distance: FIRST,
        }
    }

    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// It was checked.
    pub(crate) fn checked(&mut self, now: Instant) {
        self.distance = LONGEST.min(self.distance * 2);
        self.next = now + self.distance;
    }
}

/// Which stop was reported, so that each is reported once.
#[derive(Debug, Default)]
pub(crate) struct Reported(Option<u32>);

impl Reported {
    /// What to report of a check, if it is news.
    pub(crate) fn news(&mut self, stopped: Option<Stopped>) -> Option<String> {
        let pid = stopped.map(|stopped| stopped.pid);
        let is_news = std::mem::replace(&mut self.0, pid) != pid;
        let stopped = stopped.filter(|_| is_news)?;
        Some(StoppedProcess::from(stopped).report())
    }

    /// The server runs: another stop is news.
    pub(crate) fn runs(&mut self) {
        self.0 = None;
    }
}

/// A stopped process of a server, as `kennel ps --json` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoppedProcess {
    pub(crate) pid: u32,
    /// The debugger that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) debugger: Option<u32>,
}

impl From<Stopped> for StoppedProcess {
    fn from(Stopped { pid, tracer }: Stopped) -> StoppedProcess {
        StoppedProcess {
            pid,
            debugger: tracer,
        }
    }
}

impl StoppedProcess {
    /// What it is, after "the server is".
    pub(crate) fn state(self) -> String {
        match self.debugger {
            None => format!("stopped (SIGSTOP, pid {})", self.pid),
            Some(debugger) => format!("stopped (by debugger {debugger}, pid {})", self.pid),
        }
    }

    /// The command that continues it, or what to do.
    pub(crate) fn fix(self) -> String {
        match self.debugger {
            None => format!("kill -CONT {}", self.pid),
            Some(debugger) => format!("continue it in the debugger (pid {debugger})"),
        }
    }

    /// Both in a line.
    pub(crate) fn report(self) -> String {
        match self.debugger {
            None => format!(
                "server is {}; continue it with: {}",
                self.state(),
                self.fix()
            ),
            Some(_) => format!("server is {}; {}", self.state(), self.fix()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_come_after_10_s_and_then_at_doubling_distance_up_to_5_minutes() {
        let start = Instant::now();
        let mut checks = Checks::since(start);
        let mut last = start;
        let distances = (0..8).map(|_| {
            let distance = checks.next() - last;
            last = checks.next();
            checks.checked(last);
            distance.as_secs()
        });
        let distances: Vec<u64> = distances.collect();
        assert_eq!(distances, [10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn each_stop_is_reported_once() {
        let stop = |pid| Some(Stopped { pid, tracer: None });
        let mut reported = Reported::default();
        assert_eq!(reported.news(None), None);
        let words = "server is stopped (SIGSTOP, pid 7); continue it with: kill -CONT 7";
        assert_eq!(reported.news(stop(7)).as_deref(), Some(words));
        assert_eq!(reported.news(stop(7)), None);
        assert!(reported.news(stop(8)).is_some());
        assert_eq!(reported.news(None), None);
        assert!(reported.news(stop(8)).is_some());
        reported.runs();
        assert!(reported.news(stop(8)).is_some());
    }

    #[test]
    fn a_debugged_server_is_not_continued_by_a_signal() {
        let stopped = Stopped {
            pid: 7,
            tracer: Some(9),
        };
        let words = StoppedProcess::from(stopped).report();
        assert!(!words.contains("CONT"), "{words}");
        assert!(words.contains("debugger (pid 9)"), "{words}");
    }
}
