//! The process trees on record, for commands that list them.

use std::io;
use std::os::fd::AsFd;

use super::Ladder;
use super::daemons::warden_args_of;
use super::record::{Record, cookies};
use crate::process::{Identity, ProcessRef};

/// A process tree on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The process that its warden serves.
    pub served: Identity,
    /// The warden, the parent of all remaining processes of the tree.
    pub warden: Identity,
    /// The pid of the first process of the tree, which may have ended.
    pub first: u32,
}

impl Recorded {
    /// The durations of its stop ladder, if the warden lives.
    pub fn ladder(&self) -> Option<Ladder> {
        let warden = ProcessRef::find(&self.warden).ok()??;
        let warden_args = warden_args_of(warden.pid())?;
        // The pid may belong to another process by now (rule 6).
        let is_its_own = warden_args.served.same_process(&self.served) && warden.is_alive();
        is_its_own.then_some(warden_args.ladder)
    }
}

/// The process trees on record in `dir`, including those whose warden is gone.
pub fn recorded(dir: impl AsFd) -> io::Result<Vec<Recorded>> {
    let dir = dir.as_fd();
    let mut trees = Vec::new();
    for cookie in cookies(dir)? {
        if let Ok(Some(record)) = Record::read(dir, &cookie) {
            trees.push(Recorded {
                served: record.served,
                warden: record.warden,
                first: record.session,
            });
        }
    }
    Ok(trees)
}
