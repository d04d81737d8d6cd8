//! Looking at a lock without keeping it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::file::FileId;
use super::{Holder, LockError, Mode, file, holder, legacy};
use crate::os::file_locks;
use crate::process::{Identity, ProcessRef};
use crate::runtime_dir::{Access, DirError, RuntimeDir};

/// The lock of a daemon, in the directory of its key.
const DAEMON_LOCK: &str = "daemon.lock";
/// No record of a guard is longer.
const LONGEST_GUARD: usize = 1 << 20;

/// What a look at a lock says. A snapshot: a destructive act holds the lock instead (lesson 13).
#[derive(Debug)]
pub enum Probe {
    /// Nobody holds it.
    Free,
    /// Somebody holds it, or it cannot be told that nobody does.
    Held {
        /// Who, if that can be told.
        by: Option<Holder>,
    },
}

impl Probe {
    /// Whether it is held, as far as can be told.
    pub fn is_held(&self) -> bool {
        matches!(self, Probe::Held { .. })
    }

    /// Who holds it, in words that complete "held by": a pid, or how to find it.
    pub fn by_whom(&self, path: &Path) -> Option<String> {
        match self {
            Probe::Free => None,
            Probe::Held { by } => Some(super::error::by_whom(path, by.as_ref())),
        }
    }
}

/// Looks at the lock `name` in `dir`. Creates and writes nothing; a missing file is free, one that
/// cannot be looked at is held (fail closed).
pub fn probe(dir: &RuntimeDir, name: impl AsRef<OsStr>) -> Probe {
    let name = name.as_ref();
    let path = dir.path().join(name);
    let open = || match dir.open_file(name, Access::Read) {
        Ok(file) => Ok(Some(file)),
        Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LockError::from_dir(&path, error)),
    };
    look(&path, open, holder::of_recorded)
}

/// All who have the lock `name` in `dir`, as far as they let us see: one that was handed over has several. Only those
/// pids are looked at that may be one: to look at the files of every process there is takes long.
pub fn holders(
    dir: &RuntimeDir,
    name: impl AsRef<OsStr>,
    may_be: impl Fn(u32) -> bool,
) -> Vec<ProcessRef> {
    let file = dir.open_file(name.as_ref(), Access::Read).ok();
    let id = file.and_then(|file| FileId::of(&file).ok());
    id.map_or_else(Vec::new, |id| file_locks::heirs(id, may_be).collect())
}

/// Whether `process` holds the lock `name` in `dir`, as the kernel says; `false` where that cannot be seen. A descriptor that
/// somebody named is looked at first: among many, the right one is found at once.
pub fn is_held_by(
    dir: &RuntimeDir,
    name: impl AsRef<OsStr>,
    process: &ProcessRef,
    first: Option<u32>,
) -> bool {
    FileId::within(dir, name.as_ref()).is_ok_and(|id| {
        first.is_some_and(|fd| file_locks::holds_by(process, fd, id))
            || file_locks::holds(process, id) == Some(true)
    })
}

/// Whether `process` [holds](RuntimeDir::hold) the directory itself, as the kernel says; `false` where that cannot be
/// seen. Every session, daemon and guard does, and no other program.
pub fn is_dir_held_by(dir: &RuntimeDir, process: &ProcessRef) -> bool {
    let id = dir.as_fd().try_clone_to_owned().ok();
    let id = id.and_then(|fd| FileId::of(&File::from(fd)).ok());
    id.is_some_and(|id| file_locks::holds(process, id) == Some(true))
}

/// Whether `process` is a daemon on record in the user's runtime directory: the kernel says that it holds a lock that is
/// there as `daemons/<key>/daemon.lock`, and the record in that file names it. `false` where that cannot be seen.
pub(crate) fn is_daemon_of(user: &RuntimeDir, process: &ProcessRef) -> bool {
    let lock_of = |key: &OsStr| {
        let daemons = user.existing_subdir("daemons").ok()??;
        let file = daemons.existing_subdir(key).ok()??;
        file.open_file(DAEMON_LOCK, Access::Read).ok()
    };
    file_locks::holds_any(process, |held, path| {
        let key = path.parent().and_then(Path::file_name);
        let key = key.filter(|_| path.file_name() == Some(OsStr::new(DAEMON_LOCK)));
        key.and_then(lock_of).is_some_and(|file| {
            FileId::of(&file).is_ok_and(|id| id == held)
                && holder::recorded(&file)
                    .is_some_and(|record| record.identity.same_process(process.identity()))
        })
    })
}

/// Whether `process` is a guard on record in the user's runtime directory: the kernel says that it holds that directory,
/// and `guards/<pid>/record.json` names it.
pub(crate) fn is_guard_of(user: &RuntimeDir, process: &ProcessRef) -> bool {
    let record = || {
        let guards = user.existing_subdir("guards").ok()??;
        let own = guards.existing_subdir(process.pid().to_string()).ok()??;
        let record = own.read_small("record.json", LONGEST_GUARD).ok()??;
        // Not inside a string: a quote there has a backslash before it.
        let record = String::from_utf8(record).ok()?;
        let (_, identity) = record.split_once("\"identity\":\"")?;
        identity.split('"').next()?.parse::<Identity>().ok()
    };
    is_dir_held_by(user, process)
        && record().is_some_and(|identity| identity.same_process(process.identity()))
}

/// [`probe`] for a lock whose directory has not been opened.
pub fn probe_path(path: impl AsRef<Path>) -> Probe {
    let path = path.as_ref();
    look(path, || legacy::open(path), holder::of_recorded)
}

/// The lock is taken for the few microseconds of the look, exclusively, since a shared one would
/// come by beside other shared ones. Whoever wants it in that moment tries again for a while, as
/// we do when another one looks.
pub(super) fn look(
    path: &Path,
    open: impl Fn() -> Result<Option<File>, LockError>,
    holder_of: impl Fn(&File) -> Option<Holder>,
) -> Probe {
    match file::win(path, Mode::Exclusive, open, holder_of) {
        Ok(None) => Probe::Free,
        Ok(Some(file)) => {
            // Explicit: a thread of ours may be forking right now (lesson 7).
            let _ = file::unlock(&file);
            Probe::Free
        }
        Err(LockError::Held { holder, .. }) => Probe::Held {
            by: holder.map(|holder| *holder),
        },
        Err(LockError::Io { .. }) => Probe::Held { by: None },
    }
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::super::{Lock, Mode};
    use super::*;

    #[test]
    fn a_lock_whose_file_has_another_name_is_held_by_nobody_in_particular() {
        let scope = Scope::new("linked-lock");
        let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
        let _lock = Lock::acquire(&dir, "a.lock", Mode::Exclusive).unwrap();
        let me = ProcessRef::me().unwrap();
        assert!(is_held_by(&dir, "a.lock", &me, None));
        std::fs::hard_link(dir.path().join("a.lock"), scope.path("anybodys")).unwrap();
        assert!(!is_held_by(&dir, "a.lock", &me, None));
    }
}
