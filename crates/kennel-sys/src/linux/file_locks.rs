//! The holders of a lock: `/proc/locks` names the process that took it, `/proc/<pid>/fdinfo` shows which descriptors have
//! it.

use std::fs;
use std::io;
use std::path::Path;

use super::cached_stat::CachedStat;
use super::procfs::{lossy_text, short_text};
use crate::backend::LockOwner;
use crate::fs::FileId;
use crate::process::ProcessRef;

/// Whether `process` has `file` open with the lock on it; `None` if we may not see its files.
pub(crate) fn holds_lock(process: &ProcessRef, file: FileId) -> Option<bool> {
    let pid = process.pid();
    let entries = match fs::read_dir(format!("/proc/{pid}/fdinfo")) {
        Ok(entries) => entries,
        Err(_) if process.is_alive() => return None,
        Err(_) => return Some(false),
    };
    let mut hidden = false;
    let mut found = false;
    for entry in entries {
        match entry.and_then(|entry| locked_file(pid, &entry.file_name().to_string_lossy())) {
            Ok(locked) if locked == Some(file) => {
                found = true;
                break;
            }
            Ok(_) => {}
            // The descriptor was closed since the listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => hidden = true,
        }
    }
    // The process lives after the reading, so the facts are about it (rule 6).
    match (found && process.is_alive(), hidden) {
        (true, _) => Some(true),
        (false, true) => None,
        (false, false) => Some(false),
    }
}

/// Whether this descriptor of `process` is `file`, with the lock on it.
pub(crate) fn holds_lock_by(process: &ProcessRef, fd: u32, file: FileId) -> bool {
    let locked = locked_file(process.pid(), &fd.to_string());
    // The process lives after the reading, so the fact is about it (rule 6).
    locked.is_ok_and(|locked| locked == Some(file)) && process.is_alive()
}

/// Whether `process` has a lock on a file that `fits`, by its current path and its identity. Files that we may not see do
/// not count.
pub(crate) fn holds_any_lock(process: &ProcessRef, fits: &dyn Fn(FileId, &Path) -> bool) -> bool {
    let pid = process.pid();
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let held = entries.into_iter().flatten().flatten().any(|entry| {
        let fd = entry.file_name();
        let fd = fd.to_string_lossy();
        let path = format!("/proc/{pid}/fd/{fd}");
        is_locked(pid, &fd).unwrap_or(false)
            && match (file_behind(&path), fs::read_link(&path)) {
                (Ok(id), Ok(target)) => fits(id, &target),
                _ => false,
            }
    });
    // The process lives after the reading, so the fact is about it (rule 6).
    held && process.is_alive()
}

/// The living processes that took the lock on `file`, proven takers first.
pub(crate) fn lock_owners(file: FileId) -> Vec<LockOwner> {
    let mut takers: Vec<LockOwner> = Vec::new();
    for entry in flocks() {
        let known = takers.iter().any(|taker| taker.process.pid() == entry.pid);
        if entry.ino != file.ino || known {
            continue;
        }
        let Ok(process) = ProcessRef::open(entry.pid) else {
            continue;
        };
        let proven = match holds_lock(&process, file) {
            Some(true) => true,
            // The taker is dead, and this process has its pid (rule 6).
            Some(false) => continue,
            None => false,
        };
        let named = || entry.dev == file.dev && flocks().contains(&entry) && process.is_alive();
        if proven || named() {
            takers.push(LockOwner { process, proven });
        }
    }
    takers.sort_by_key(|taker| !taker.proven);
    takers
}

/// The processes that have the lock on `file`, including those that inherited it. Checks every process that `may_be`
/// selects and that we may see.
pub(crate) fn lock_holders(
    file: FileId,
    may_be: &dyn Fn(u32) -> bool,
) -> Box<dyn Iterator<Item = ProcessRef> + '_> {
    let holders = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(move |&pid| may_be(pid))
        .filter_map(|pid| ProcessRef::open(pid).ok())
        .filter(move |process| holds_lock(process, file) == Some(true));
    Box::new(holders)
}

/// The file behind a link of `/proc`, without a request to its file system, which may not answer.
fn file_behind(link: &str) -> io::Result<FileId> {
    let (dev, ino) = CachedStat::behind(link)?.identity();
    Ok(FileId { dev, ino })
}

/// The file behind a descriptor, if the descriptor has a lock.
fn locked_file(pid: u32, fd: &str) -> io::Result<Option<FileId>> {
    if !is_locked(pid, fd)? {
        return Ok(None);
    }
    // The numbers in the text are those of the device of the file system. On btrfs and overlayfs `stat` returns another
    // one.
    file_behind(&format!("/proc/{pid}/fd/{fd}")).map(Some)
}

/// Whether a descriptor has a `flock`.
fn is_locked(pid: u32, fd: &str) -> io::Result<bool> {
    let info = short_text(&format!("/proc/{pid}/fdinfo/{fd}"))?;
    let mut locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
    Ok(locks.any(|lock| lock.split_whitespace().nth(1) == Some("FLOCK")))
}

/// A held `flock` in `/proc/locks`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flock {
    pid: u32,
    dev: u64,
    ino: u64,
}

fn flocks() -> Vec<Flock> {
    let text = lossy_text("/proc/locks").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Parses `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`; `None` for other locks and for waiters (`->`).
fn parse(line: &str) -> Option<Flock> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?.parse().ok().filter(|&pid| pid != 0)?;
    let mut place = words.next()?.split(':');
    let major = u32::from_str_radix(place.next()?, 16).ok()?;
    let minor = u32::from_str_radix(place.next()?, 16).ok()?;
    Some(Flock {
        pid,
        dev: rustix::fs::makedev(major, minor),
        ino: place.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_held_flocks_are_parsed() {
        let flock = parse("1: FLOCK  ADVISORY  WRITE 4711 fe:1f:1234 0 EOF").unwrap();
        let dev = rustix::fs::makedev(0xfe, 0x1f);
        assert_eq!(
            flock,
            Flock {
                pid: 4711,
                dev,
                ino: 1234
            }
        );
        for other in [
            "",
            "1:",
            "1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 0 EOF",
            "1: OFDLCK ADVISORY  READ -1 fe:00:1234 0 EOF",
            "1: LEASE  ACTIVE    READ 4711 fe:00:1234 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:1234 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 0 fe:00:1234 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 4711 <none>:0 0 EOF",
        ] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }
}
