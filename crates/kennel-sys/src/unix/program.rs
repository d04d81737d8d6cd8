//! The program of this process, executing another one, and why a program could not be started.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;

use crate::os;

/// The path to start the program of this process again, even if its file was replaced.
pub fn this_program() -> PathBuf {
    os::this_program()
}

/// Executes `command` in this process. Returns only if that fails.
pub fn become_program(command: &mut Command) -> io::Error {
    command.exec()
}

/// Sets the name under which `ps` shows a process.
pub fn set_shown_name(command: &mut Command, name: &str) {
    command.arg0(name);
}

/// Why the system did not start a program.
#[derive(Debug)]
pub enum StartFailure {
    /// The program, its interpreter or its working directory is missing.
    NotFound,
    /// This user may not execute it.
    AccessDenied,
    /// There are not enough processes, memory or descriptors at the moment. That says nothing about the program.
    Shortage(io::Error),
    /// Another error.
    Other(io::Error),
}

impl StartFailure {
    /// The failure for an error number of the system.
    pub fn of(number: i32) -> StartFailure {
        match Errno::from_raw_os_error(number) {
            Errno::NOENT => StartFailure::NotFound,
            Errno::ACCESS => StartFailure::AccessDenied,
            errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => {
                StartFailure::Shortage(errno.into())
            }
            errno => StartFailure::Other(errno.into()),
        }
    }
}

/// CPU time of this thread.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
