//! A process that `kennel reap --foreign` is to judge.

use std::io;

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};

/// A process that a test watches by its identity. A pidfd in the test would be a reason to spare the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject(Identity);

impl Subject {
    /// The process that has `pid` now; `None` if there is none.
    pub fn open(pid: u32) -> Option<Subject> {
        ProcessRef::open(pid).ok().map(Subject::from)
    }

    fn find(&self) -> Option<ProcessRef> {
        ProcessRef::find(&self.0).ok().flatten()
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Its identity.
    pub fn identity(&self) -> &Identity {
        &self.0
    }

    /// Whether it lives.
    pub fn is_alive(&self) -> bool {
        self.find().is_some()
    }

    /// Sends a signal; `false` if it is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        self.find().map_or(Ok(false), |it| it.signal(signal))
    }

    /// Its command line.
    pub fn command_line(&self) -> Option<Vec<String>> {
        self.find()?.command_line()
    }
}

impl From<ProcessRef> for Subject {
    fn from(process: ProcessRef) -> Subject {
        Subject(*process.identity())
    }
}
