//! Servers that no process can talk to any more, whichever program started them: the process that started the server is
//! gone, and so is every process that could write to its stdin or read its stdout.

use std::io;
use std::time::Duration;

use crate::os;
use crate::process::ProcessRef;

/// A suspected server, with its descendants.
#[derive(Debug)]
pub struct Orphan {
    /// The server, or the launcher before it.
    pub process: ProcessRef,
    /// Its descendants.
    pub below: Vec<ProcessRef>,
    /// Why it is suspected.
    pub evidence: Evidence,
    /// Reasons why a process may need it nevertheless. With any of these it is never ended.
    pub doubts: Vec<String>,
    /// Whether one of the doubts is that this user may not look: root sees more.
    pub hidden: bool,
    /// Its command line.
    pub command: Vec<String>,
    /// The resident memory of the whole tree in bytes.
    pub memory: u64,
    /// The time since it was started.
    pub age: Duration,
    /// The user of these processes: another user than ours if any of them belongs to one. `None` if hidden.
    pub user: Option<u32>,
    /// Facts for the platform's second examination.
    pub(crate) facts: os::OrphanFacts,
}

/// Why no process can talk to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// The process that adopted it after its starter ended.
    pub adopted_by: u32,
    /// No process can write to its stdin.
    pub no_writer: bool,
    /// No process can read its stdout.
    pub no_reader: bool,
}

/// The result of [`end`] for one orphan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of processes that are gone.
    pub gone: usize,
    /// Number of processes that did not end.
    pub left: usize,
}

impl Orphan {
    /// Whether there is no doubt about it. Only then it may be ended.
    pub fn is_certain(&self) -> bool {
        self.evidence.no_writer && self.evidence.no_reader && self.doubts.is_empty()
    }
}

/// Finds all suspected servers, orphans among them. `only` restricts the search to processes whose environment has this
/// `NAME=value`, for callers that share the machine with other tests of the same user.
pub fn find(only: Option<&str>) -> io::Result<Vec<Orphan>> {
    os::find_orphans(only)
}

/// Ends orphans with their descendants: SIGTERM, `after_term` for all of them to exit, then SIGKILL. A server that is no
/// orphan any more, or is in doubt, is spared. Returns one result per orphan.
pub fn end(orphans: &[Orphan], after_term: Duration) -> io::Result<Vec<Ended>> {
    os::end_orphans(orphans, after_term)
}
