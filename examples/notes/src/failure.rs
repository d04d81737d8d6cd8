//! How a command ends when it does not end well: one line for the person, one code for the script.

use std::fmt::Display;
use std::process::ExitCode;

/// What went wrong, and the exit code that says so.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// It did not work: exit code 1.
    pub(crate) fn failed(message: impl Display) -> Failure {
        Failure::with_code(1, message)
    }

    /// A mistake on the command line, or a destructive act that must not happen now: exit code 2.
    pub(crate) fn refused(message: impl Display) -> Failure {
        Failure::with_code(2, message)
    }

    /// There was nothing to do it to: exit code 3.
    pub(crate) fn nothing_found(message: impl Display) -> Failure {
        Failure::with_code(3, message)
    }

    /// Says it on stderr, and gives `main` its exit code.
    pub(crate) fn report(self) -> ExitCode {
        crate::failure::say(&self.message);
        ExitCode::from(self.code)
    }

    fn with_code(code: u8, message: impl Display) -> Failure {
        Failure {
            code,
            message: message.to_string(),
        }
    }
}

/// Tells the person something on stderr; stdout is the protocol (rule 12).
#[expect(
    clippy::print_stderr,
    reason = "the one place where notes speaks to the person"
)]
pub(crate) fn say(message: &str) {
    eprintln!("notes: {message}");
}
