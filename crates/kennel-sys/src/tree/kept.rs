//! Records of kept services: detached services that outlived their tree. Cleanup of strays, leftovers and orphans spares
//! them and their descendants, `kennel ps` lists them, and `kennel stop` ends them.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ending::end_all;
use super::mark::TreeMark;
use super::process_table::ProcessTable;
use super::record_file::{self, Fields};
use super::{daemons, descendants, services};
use crate::detached::{Detached, Reason};
use crate::os;
use crate::process::{Identity, ProcessRef};

/// First word of every record.
const KIND: &str = "kennel-kept";
const VERSION: u32 = 1;
/// Start of the name of every record; pid and start of the process follow.
const PREFIX: &str = "kept-";
/// Maximum number of ancestors to search.
const MAX_ANCESTORS: usize = 64;

/// A detached service that outlived the tree it was started in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The service.
    pub identity: Identity,
    /// Why it was kept.
    pub reason: Reason,
    /// The name of its program. Not its arguments: they may hold secrets.
    pub command: String,
    /// When its tree ended, in seconds since 1970.
    pub since: u64,
    /// The cookie of the tree that it was kept from; `None` in the records of earlier builds.
    pub tree: Option<String>,
}

impl Kept {
    pub(super) fn now(identity: Identity, reason: Reason, tree: &str) -> Kept {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Kept {
            identity,
            reason,
            command: os::command_name(identity.pid()).unwrap_or_default(),
            since: since.unwrap_or_default().as_secs(),
            tree: Some(tree.to_owned()),
        }
    }

    /// The process, if it lives in this pid namespace and its environment does not contradict the record about its tree.
    fn process(&self) -> Option<ProcessRef> {
        let process = ProcessRef::find(&self.identity).ok()??;
        let fits = match (TreeMark::of(process.pid()), &self.tree) {
            (Some(mark), Some(tree)) => mark.cookie == *tree,
            // The process removed its environment, or an earlier build kept it.
            _ => true,
        };
        (fits && process.is_alive()).then_some(process)
    }

    /// Whether the kernel confirms the record, which any process of the user can write: the process lives in this pid
    /// namespace and has the cookie of the tree, or still serves others.
    pub fn is_confirmed(&self) -> bool {
        self.process().is_some_and(|process| {
            let marked = self.tree.is_some() && TreeMark::of(process.pid()).is_some();
            (marked || services::still_serves(&process)) && process.is_alive()
        })
    }

    /// The service, if it may be ended; `None` if it is gone. `PermissionDenied`, with the reason, if the kernel does not
    /// confirm that Kennel started it (a record alone is not enough to end a process), or if a living warden is in charge
    /// of it.
    pub fn process_to_end(&self) -> io::Result<Option<ProcessRef>> {
        let Some(process) = ProcessRef::find(&self.identity)? else {
            return Ok(None);
        };
        let reason = self.reason_to_leave_alone(&process);
        // Checked after the facts were read, so they are about this process (rule 6).
        match reason.filter(|_| process.is_alive()) {
            Some(reason) => Err(io::Error::new(io::ErrorKind::PermissionDenied, reason)),
            None => Ok(Some(process)),
        }
    }

    /// Why the process must not be ended, as text for people. `None` if its environment has the cookie of the tree, and no
    /// living warden is in charge of it.
    fn reason_to_leave_alone(&self, process: &ProcessRef) -> Option<String> {
        let pid = process.pid();
        let tree = self.tree.as_ref();
        let mark = TreeMark::of(pid).map(|mark| mark.cookie);
        let Some(mark) = mark.filter(|mark| tree.is_none_or(|tree| mark == tree)) else {
            return Some(format!(
                "the environment of process {pid} does not show that Kennel started it; to end it, run `kill {pid}`"
            ));
        };
        let ancestors = ProcessRef::ancestors_of(process, MAX_ANCESTORS);
        let mut trees = ancestors
            .iter()
            .filter_map(|it| Some((it.pid(), daemons::tree_of_warden(it.pid())?)));
        let (warden, tree) = trees.next()?;
        Some(match tree == mark {
            // The record is written before the first process of the tree is ended.
            true => format!(
                "its server is still being stopped (warden: pid {warden}); try again in a moment"
            ),
            // Kennel ran inside the tree of another server, whose warden adopted the kept service.
            false => format!(
                "it is in the process tree of another server (warden: pid {warden}), which has not ended; \
                 to end it now, run `kill {pid}`"
            ),
        })
    }

    /// Writes the record.
    pub(super) fn write(&self, dir: BorrowedFd<'_>) -> io::Result<()> {
        let name = self.file_name();
        record_file::write(dir, &name, &self.text())
    }

    /// The file name. It is the same for each record of one process, even if a writer cannot read all parts of the
    /// identity.
    fn file_name(&self) -> String {
        let Identity {
            pid, unique, start, ..
        } = self.identity;
        format!("{PREFIX}{pid}-{}", start.or(unique).unwrap_or_default())
    }

    fn text(&self) -> String {
        let Kept {
            identity,
            reason,
            command,
            since,
            tree,
        } = self;
        // A program may have any name.
        let command: String = command.chars().filter(|it| !it.is_control()).collect();
        let tree = tree.as_ref().map(|tree| format!("tree {tree}\n"));
        format!(
            "{KIND} {VERSION}\nprocess {identity}\nreason {reason}\nsince {since}\ncommand {command}\n{}",
            tree.unwrap_or_default()
        )
    }

    fn parse(text: &str) -> Option<Kept> {
        let fields = Fields::parse(text, KIND)?;
        Some(Kept {
            identity: fields.value("process")?,
            reason: fields.value("reason")?,
            since: fields.value("since")?,
            command: fields.value("command").unwrap_or_default(),
            tree: fields.value("tree"),
        })
    }
}

/// The living services on record in `dir`. Changes nothing.
pub fn kept(dir: impl AsFd) -> io::Result<Vec<Kept>> {
    let dir = dir.as_fd();
    let mut kept = Vec::new();
    for (_, service) in on_record(dir)? {
        // A service whose state is unknown counts as living.
        if ProcessRef::find(&service.identity).map_or(true, |found| found.is_some()) {
            kept.push(service);
        }
    }
    kept.sort_by_key(|service| (service.since, service.identity.pid()));
    Ok(kept)
}

/// Removes the records of services that are gone.
pub(super) fn sweep(dir: BorrowedFd<'_>) -> io::Result<()> {
    for (name, service) in on_record(dir)? {
        if let Ok(None) = ProcessRef::find(&service.identity) {
            let _ = record_file::remove(dir, &name);
        }
    }
    Ok(())
}

/// Ends a service and its descendants: SIGTERM, `after_term` for them to exit, then SIGKILL. Returns whether all are gone.
/// Fails with `PermissionDenied` as [`Kept::process_to_end`] does.
pub fn end_kept(dir: impl AsFd, service: &Kept, after_term: Duration) -> io::Result<bool> {
    let dir = dir.as_fd();
    let mut processes = Vec::new();
    if let Some(process) = service.process_to_end()? {
        processes = descendants::below(&process)?;
        processes.push(process);
    }
    end_all(processes.iter(), after_term)?;
    sweep(dir)?;
    Ok(processes.iter().all(|process| !process.is_alive()))
}

/// The pids of living services and their descendants.
pub(super) fn spared(services: &[Identity]) -> HashSet<u32> {
    let alive = |it: &&Identity| ProcessRef::find(it).is_ok_and(|found| found.is_some());
    let roots: Vec<u32> = services.iter().filter(alive).map(Identity::pid).collect();
    let Some(table) = (!roots.is_empty()).then(ProcessTable::now) else {
        return HashSet::new();
    };
    match table {
        Ok(table) => roots
            .iter()
            .flat_map(|&pid| table.with_descendants(pid))
            .collect(),
        Err(_) => roots.into_iter().collect(),
    }
}

/// The services on record in `dir` that are spared when a tree ends.
///
/// A server can write such a record too. So each is checked again: it lives in this pid namespace, has the cookie of its
/// tree or none, left the session of its server, and listens, is known to be shared, or the policy keeps all detached
/// processes. `fallback` applies to processes whose environment has no rules.
pub(super) fn confirmed(dir: BorrowedFd<'_>, fallback: &services::Rules) -> Vec<Identity> {
    let confirmed = confirmed_records(dir, fallback).into_iter();
    confirmed.map(|service| service.identity).collect()
}

/// Like [`confirmed`], but returns whole records.
pub(super) fn confirmed_records(dir: BorrowedFd<'_>, fallback: &services::Rules) -> Vec<Kept> {
    let mut confirmed = Vec::new();
    for (_, service) in on_record(dir).unwrap_or_default() {
        let Some(process) = service.process().filter(|_| service.tree.is_some()) else {
            continue;
        };
        let pid = process.pid();
        let rules = fallback.for_process(pid);
        let left = os::stat(pid).is_ok_and(|stat| !rules.sessions.contains(&stat.session));
        let serves = match rules.policy {
            Detached::End => false,
            Detached::Keep => true,
            Detached::Auto | Detached::AutoGuard => services::still_serves(&process),
        };
        if left && serves && process.is_alive() {
            confirmed.push(service);
        }
    }
    confirmed
}

fn on_record(dir: BorrowedFd<'_>) -> io::Result<Vec<(String, Kept)>> {
    let names = record_file::names(dir)?.into_iter();
    let names = names.filter(|name| name.starts_with(PREFIX));
    let read = |name: String| {
        // A file that cannot be read was removed at this moment, or is not ours.
        let text = record_file::read(dir, &name).ok()??;
        Some((name, Kept::parse(&text)?))
    };
    Ok(names.filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_can_be_read_back_and_garbage_cannot() {
        let identity: Identity = "1:2:0000000000000000000000000000000f:4:5"
            .parse()
            .expect("well-formed");
        for reason in [Reason::Used, Reason::Known, Reason::Unseen, Reason::Asked] {
            let kept = Kept {
                identity,
                reason,
                command: "a name".into(),
                since: 7,
                tree: Some("0f".repeat(16)),
            };
            assert_eq!(Kept::parse(&kept.text()), Some(kept.clone()));
            let tree = None;
            let earlier = Kept { tree, ..kept };
            assert_eq!(Kept::parse(&earlier.text()), Some(earlier));
        }
        for garbage in ["", "kennel-tree 1\n", "kennel-kept 1\nprocess 4\n"] {
            assert_eq!(Kept::parse(garbage), None, "{garbage:?}");
        }
        let odd = Kept {
            identity,
            reason: Reason::Used,
            command: "two\nlines \u{1b}[31m".into(),
            since: 7,
            tree: None,
        };
        let read = Kept::parse(&odd.text()).expect("well-formed");
        assert_eq!(read.command, "twolines [31m");
    }
}
