//! The detached services that outlived their tree, on record: nothing that ends strays, leftovers or orphans touches
//! them and what is below them, `kennel ps` shows them, and `kennel stop` ends them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::Signal;

use super::descendants;
use super::record::{is_own_file, names_in};
use crate::detached::Reason;
use crate::linux as os;
use crate::process::{Identity, ProcessRef};

const HEADER: &str = "kennel-kept 1";
const HEADER_OF_ANY: &str = "kennel-kept ";
/// First letters of a record's name; the rest is the process's pid and start.
const PREFIX: &str = "kept-";
/// No record is longer.
const LONGEST: u64 = 4096;
/// How long a killed process may take to be gone.
const LAST_RUNG: Duration = Duration::from_secs(5);

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
}

impl Kept {
    pub(super) fn now(identity: Identity, reason: Reason) -> Kept {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Kept {
            identity,
            reason,
            command: os::command_name(identity.pid()).unwrap_or_default(),
            since: since.unwrap_or_default().as_secs(),
        }
    }

    /// Writes its record. Appears whole or not at all.
    pub(super) fn write(&self, dir: BorrowedFd<'_>) -> io::Result<()> {
        let (name, aside) = (self.file_name(), format!(".{}", self.file_name()));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(dir, &aside, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(fd).write_all(self.text().as_bytes())?;
        rustix::fs::renameat(dir, &aside, dir, name)?;
        Ok(())
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
        } = self;
        // A program may have any name.
        let command: String = command.chars().filter(|it| !it.is_control()).collect();
        format!("{HEADER}\nprocess {identity}\nreason {reason}\nsince {since}\ncommand {command}\n")
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
pub fn kept(dir: BorrowedFd<'_>) -> io::Result<Vec<Kept>> {
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
pub fn end_kept(dir: BorrowedFd<'_>, service: &Kept, after_term: Duration) -> io::Result<bool> {
    let mut everyone = Vec::new();
    if let Some(process) = ProcessRef::find(&service.identity)? {
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

/// The pids that must be left alone: services on record, and all below them.
pub(super) fn spared(services: &[Identity]) -> HashSet<u32> {
    let alive = |it: &&Identity| ProcessRef::find(it).map_or(true, |found| found.is_some());
    let roots: Vec<u32> = services.iter().filter(alive).map(Identity::pid).collect();
    let Some(families) = (!roots.is_empty()).then(descendants::Families::now) else {
        return HashSet::new();
    };
    match families {
        Ok(families) => roots.iter().flat_map(|&pid| families.of(pid)).collect(),
        Err(_) => roots.into_iter().collect(),
    }
}

/// Who is on record in `dir`, alive or not.
pub(super) fn identities(dir: BorrowedFd<'_>) -> Vec<Identity> {
    let records = on_record(dir).unwrap_or_default();
    records.into_iter().map(|(_, it)| it.identity).collect()
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
            };
            assert_eq!(Kept::parse(&kept.text()), Some(kept));
        }
        for garbage in ["", "kennel-tree 1\n", "kennel-kept 1\nprocess 4\n"] {
            assert_eq!(Kept::parse(garbage), None, "{garbage:?}");
        }
        let odd = Kept {
            identity,
            reason: Reason::Used,
            command: "two\nlines \u{1b}[31m".into(),
            since: 7,
        };
        let read = Kept::parse(&odd.text()).expect("well-formed");
        assert_eq!(read.command, "twolines [31m");
    }
}
