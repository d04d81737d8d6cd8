//! How a server's process ended, for the errors of those who waited for it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the first process of a server ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Ending {
    /// Members for the data of an error.
    pub(super) fn data(self) -> String {
        match self {
            Ending::Code(code) => format!(r#""exitCode":{code}"#),
            Ending::Signal(signal) => format!(r#""signal":"{}""#, name(signal)),
        }
    }
}

/// Completes "the server ended: …".
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "exited with code {code}"),
            // The kernel sends it where memory runs out.
            Ending::Signal(9) => write!(f, "killed by SIGKILL (possibly out of memory)"),
            Ending::Signal(signal) => write!(f, "killed by {}", name(*signal)),
        }
    }
}

/// The name of a signal, as Linux numbers them.
fn name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
