//! How a server's process ended, for errors to pending requests.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the first process of a server ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerExit {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl ServerExit {
    /// Members for the data of an error response.
    pub(super) fn data(self) -> String {
        match self {
            ServerExit::Code(code) => format!(r#""exitCode":{code}"#),
            ServerExit::Signal(signal) => format!(r#""signal":"{}""#, name(signal)),
        }
    }
}

/// Completes "the server ended: …".
impl fmt::Display for ServerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerExit::Code(code) => write!(f, "exited with code {code}"),
            // The kernel sends it when memory runs out.
            ServerExit::Signal(9) => write!(f, "killed by SIGKILL (possibly out of memory)"),
            ServerExit::Signal(signal) => write!(f, "killed by {}", name(*signal)),
        }
    }
}

/// The name of a signal, by Linux numbers.
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
