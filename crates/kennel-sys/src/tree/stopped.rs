//! Whether a server is stopped: by a signal (SIGSTOP, SIGTSTP) or by a debugger.

use std::io;

use super::{ProcessTable, Tree};
use crate::os;

/// A stopped process of a server, which reads no requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// The pid.
    pub pid: u32,
    /// The debugger that traces it, if any. Then SIGCONT does not continue it.
    pub tracer: Option<u32>,
}

impl Tree {
    /// The stopped process of this server, if any. Reads the process table.
    pub fn stopped(&self) -> io::Result<Option<Stopped>> {
        let table = ProcessTable::now()?;
        let tops = table.children(self.warden().pid());
        Ok(stopped(tops, &table))
    }
}

/// The first stopped process among `tops`, the topmost processes of a server, and those descendants that share their stdin
/// if it is a pipe or a socket: a launcher and the server that it started. Other descendants do not count: a server may
/// stop a child on purpose.
pub fn stopped(tops: &[u32], table: &ProcessTable) -> Option<Stopped> {
    tops.iter().find_map(|&top| {
        let stdin = os::stream_identity(top, 0);
        let mut readers = vec![top];
        let mut seen = 0;
        while let Some(&pid) = readers.get(seen) {
            seen += 1;
            if let Some(stopped) = stopped_process(pid) {
                return Some(stopped);
            }
            let shares_stdin = |&pid: &u32| stdin.is_some() && os::stream_identity(pid, 0) == stdin;
            readers.extend(table.children(pid).iter().copied().filter(shares_stdin));
        }
        None
    })
}

/// This process, if it is stopped.
pub fn stopped_process(pid: u32) -> Option<Stopped> {
    let stat = os::stat(pid).ok()?;
    stat.stopped.then(|| Stopped {
        pid,
        tracer: os::tracer_of(pid).ok().flatten(),
    })
}
