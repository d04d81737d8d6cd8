//! Programs: which one this process runs, becoming another, and why one could not be started.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;

use crate::os;

/// What to execute to start the program of this process again, whatever became of its file.
pub fn this_program() -> PathBuf {
    os::this_program()
}

/// Becomes the program that `command` names, in this process. Returns only if that fails.
pub fn become_program(command: &mut Command) -> io::Error {
    command.exec()
}

/// Lets a process be shown under another name than its program has.
pub fn set_shown_name(command: &mut Command, name: &str) {
    command.arg0(name);
}

/// Why the operating system did not start a program.
#[derive(Debug)]
pub enum StartFailure {
    /// The program, its interpreter or its working directory is missing.
    NotFound,
    /// This user may not execute it.
    AccessDenied,
    /// Processes, memory or descriptors are short for now. That says nothing about the program.
    Shortage(io::Error),
    /// Anything else.
    Other(io::Error),
}

impl StartFailure {
    /// The failure that this error number of the operating system stands for.
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

/// Processor time that this thread has used.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
