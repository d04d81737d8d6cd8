//! Which process trees are on record, for whoever shows them.

use std::io;
use std::os::fd::AsFd;

use super::Ladder;
use super::daemons::orders_of;
use super::record::{Record, cookies};
use crate::process::{Identity, ProcessRef};

/// A process tree that is on record, for whoever shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Whom its warden serves.
    pub served: Identity,
    /// The warden, the parent of all that is left of the tree.
    pub warden: Identity,
    /// The pid that the first process of the tree has or had.
    pub first: u32,
}

impl Recorded {
    /// The time that its warden gives the tree to end, if the warden lives.
    pub fn ladder(&self) -> Option<Ladder> {
        let warden = ProcessRef::find(&self.warden).ok()??;
        let orders = orders_of(warden.pid())?;
        // The pid may be another's by now (rule 6).
        let is_its_own = orders.served.same_process(&self.served) && warden.is_alive();
        is_its_own.then_some(orders.ladder)
    }
}

/// The process trees that are on record in `dir`, those whose warden is gone included.
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
