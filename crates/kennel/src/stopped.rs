//! A stopped server (SIGSTOP, or a debugger), and how to report it. It is not killed, and its requests stay pending,
//! because it may be continued.

use kennel_sys::tree::Stopped;
use serde::{Deserialize, Serialize};

/// A stopped process of a server, as `kennel ps --json` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoppedProcess {
    pub(crate) pid: u32,
    /// The pid of the debugger that stopped it.
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
    /// Its state, to follow "the server is".
    pub(crate) fn state(self) -> String {
        match self.debugger {
            None => format!("stopped (SIGSTOP, pid {})", self.pid),
            Some(debugger) => format!("stopped (by debugger {debugger}, pid {})", self.pid),
        }
    }

    /// The command that continues it, or other instructions.
    pub(crate) fn fix(self) -> String {
        match self.debugger {
            None => format!("kill -CONT {}", self.pid),
            Some(debugger) => format!("continue it in the debugger (pid {debugger})"),
        }
    }

    /// State and fix in one line.
    pub(crate) fn report(self) -> String {
        self.report_of("server")
    }

    /// The same for another kind of process than a server.
    pub(crate) fn report_of(self, what: &str) -> String {
        let (state, fix) = (self.state(), self.fix());
        match self.debugger {
            None => format!("{what} is {state}; continue it with: {fix}"),
            Some(_) => format!("{what} is {state}; {fix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_server_is_reported_with_the_command_that_continues_it() {
        let stopped = Stopped {
            pid: 7,
            tracer: None,
        };
        let words = "server is stopped (SIGSTOP, pid 7); continue it with: kill -CONT 7";
        assert_eq!(StoppedProcess::from(stopped).report(), words);
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
