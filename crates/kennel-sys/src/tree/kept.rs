//! The detached services that outlived their tree, on record: nothing that ends strays, leftovers or orphans touches
//! them and what is below them, `kennel ps` shows them, and `kennel stop` ends them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::Signal;

use super::mark::TreeMark;
use super::record::{is_own_file, names_in};
use super::whole_file;
use super::{daemons, descendants, services};
use crate::detached::{Detached, Reason};
use crate::os;
use crate::process::{Identity, ProcessRef};

const HEADER: &str = "kennel-kept 1";
const HEADER_OF_ANY: &str = "kennel-kept ";
/// First letters of a record's name; the rest is the process's pid and start.
const PREFIX: &str = "kept-";
/// No record is longer.
const LONGEST: u64 = 4096;
/// How long a killed process may take to be gone.
const LAST_RUNG: Duration = Duration::from_secs(5);
/// Most ancestors that are looked at.
const MOST_ANCESTORS: usize = 64;

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

    /// Whether the process lives here and, as its environment says, was started in the tree that it was kept from. A
    /// record of another pid namespace is about another process.
    fn process(&self) -> Option<ProcessRef> {
        let process = ProcessRef::find(&self.identity).ok()??;
        let fits = match (TreeMark::of(process.pid()), &self.tree) {
            (Some(mark), Some(tree)) => mark.cookie == *tree,
            // It dropped its environment, or an earlier build kept it.
            _ => true,
        };
        (fits && process.is_alive()).then_some(process)
    }

    /// Whether more than the record speaks for it, which any process of the user can write: it lives here, and has the
    /// cookie of the tree that it was kept from, or still serves.
    pub fn is_confirmed(&self) -> bool {
        self.process().is_some_and(|process| {
            let marked = self.tree.is_some() && TreeMark::of(process.pid()).is_some();
            (marked || services::still_serves(&process)) && process.is_alive()
        })
    }

    /// The service, to be ended; `None` if it is gone. `PermissionDenied`, with the reason, where the kernel does not
    /// confirm that Kennel started it (a record alone ends nobody), or where a living warden is in charge of it.
    pub fn process_to_end(&self) -> io::Result<Option<ProcessRef>> {
        let Some(process) = ProcessRef::find(&self.identity)? else {
            return Ok(None);
        };
        let reason = self.reason_to_leave_alone(&process);
        // Asked behind the reading: so the reason is about this very process (rule 6).
        match reason.filter(|_| process.is_alive()) {
            Some(reason) => Err(io::Error::new(io::ErrorKind::PermissionDenied, reason)),
            None => Ok(Some(process)),
        }
    }

    /// Why the process must not be ended, for people. `None` if its environment has the cookie of the tree that it was kept
    /// from, and no living warden is in charge of it.
    fn reason_to_leave_alone(&self, process: &ProcessRef) -> Option<String> {
        let pid = process.pid();
        let tree = self.tree.as_ref();
        let mark = TreeMark::of(pid).map(|mark| mark.cookie);
        let Some(mark) = mark.filter(|mark| tree.is_none_or(|tree| mark == tree)) else {
            return Some(format!(
                "the environment of process {pid} does not show that Kennel started it; if it is to end, `kill {pid}`"
            ));
        };
        let ancestors = ProcessRef::ancestors_of(process, MOST_ANCESTORS);
        let mut trees = ancestors
            .iter()
            .filter_map(|it| Some((it.pid(), daemons::tree_of_warden(it.pid())?)));
        let (warden, tree) = trees.next()?;
        Some(match tree == mark {
            // The record is written before the first process of the tree is ended.
            true => format!(
                "its server is still being stopped (warden: pid {warden}); try again in a moment"
            ),
            // Kennel ran inside another server's tree, whose warden adopted what was kept.
            false => format!(
                "it is in the process tree of another server (warden: pid {warden}), which has not ended; \
                 if it is to end now, `kill {pid}`"
            ),
        })
    }

    /// Writes its record. Appears whole or not at all.
    pub(super) fn write(&self, dir: BorrowedFd<'_>) -> io::Result<()> {
        let name = self.file_name();
        whole_file::write(dir, &name, &format!(".{name}"), &self.text())
    }

    /// The same for the same process, whoever writes it down and whatever that one can see.
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
            "{HEADER}\nprocess {identity}\nreason {reason}\nsince {since}\ncommand {command}\n{}",
            tree.unwrap_or_default()
        )
    }

    fn parse(text: &str) -> Option<Kept> {
        let mut lines = text.lines();
        if !lines.next()?.starts_with(HEADER_OF_ANY) {
            return None;
        }
        let lines: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(' ')).collect();
        let first = |name: &str| lines.iter().find(|(key, _)| *key == name).map(|it| it.1);
        Some(Kept {
            identity: first("process")?.parse().ok()?,
            reason: first("reason")?.parse().ok()?,
            since: first("since")?.parse().ok()?,
            command: first("command").unwrap_or_default().to_owned(),
            tree: first("tree").map(str::to_owned),
        })
    }

    fn read(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<Kept>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?);
        if !is_own_file(&file.metadata()?) {
            return Ok(None);
        }
        let mut text = String::new();
        match file.take(LONGEST).read_to_string(&mut text) {
            Ok(_) => Ok(Kept::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The services on record in `dir` that live. Looking changes nothing.
pub fn kept(dir: impl AsFd) -> io::Result<Vec<Kept>> {
    let dir = dir.as_fd();
    let mut kept = Vec::new();
    for (_, service) in on_record(dir)? {
        // What cannot be told lives.
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
            let _ = rustix::fs::unlinkat(dir, &name, AtFlags::empty());
        }
    }
    Ok(())
}

/// Ends a service and everything below it: SIGTERM, `after_term` for it to work, then SIGKILL. Whether all are gone.
/// `PermissionDenied` as in [`Kept::process_to_end`].
pub fn end_kept(dir: impl AsFd, service: &Kept, after_term: Duration) -> io::Result<bool> {
    let dir = dir.as_fd();
    let mut everyone = Vec::new();
    if let Some(process) = service.process_to_end()? {
        everyone = descendants::below(&process)?;
        everyone.push(process);
    }
    for (signal, most) in [(Signal::TERM, after_term), (Signal::KILL, LAST_RUNG)] {
        let deadline = Instant::now() + most;
        for process in everyone.iter().filter(|process| process.is_alive()) {
            // One that changed its user is out of reach, and no reason to spare the others.
            let _ = process.signal(signal);
        }
        for process in &everyone {
            process.wait(Some(deadline.saturating_duration_since(Instant::now())))?;
        }
    }
    sweep(dir)?;
    Ok(everyone.iter().all(|process| !process.is_alive()))
}

/// The pids of living services, and of all below them.
pub(super) fn spared(services: &[Identity]) -> HashSet<u32> {
    let alive = |it: &&Identity| ProcessRef::find(it).is_ok_and(|found| found.is_some());
    let roots: Vec<u32> = services.iter().filter(alive).map(Identity::pid).collect();
    let Some(families) = (!roots.is_empty()).then(descendants::Families::now) else {
        return HashSet::new();
    };
    match families {
        Ok(families) => roots.iter().flat_map(|&pid| families.of(pid)).collect(),
        Err(_) => roots.into_iter().collect(),
    }
}

/// The services on record in `dir` that are left alone when a tree ends.
///
/// A server can write such a record too. So each is checked again: it lives here, has the cookie of the tree that it was
/// kept from or none, left the session of its server, and listens, is known to be shared, or all of its tree are kept.
/// `fallback`: for those whose environment does not tell.
pub(super) fn confirmed(dir: BorrowedFd<'_>, fallback: &services::Rules) -> Vec<Identity> {
    let confirmed = confirmed_records(dir, fallback).into_iter();
    confirmed.map(|service| service.identity).collect()
}

/// As [`confirmed`], with all that their records say.
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
    let names = names_in(dir)?.into_iter();
    let names = names.filter(|name| name.starts_with(PREFIX));
    // One that cannot be read was removed at this moment, or is not ours.
    let read = |name: String| Some((Kept::read(dir, &name).ok()??, name));
    Ok(names
        .filter_map(read)
        .map(|(it, name)| (name, it))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_garbage_does_not() {
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
