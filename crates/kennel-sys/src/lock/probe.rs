//! Checking who holds a lock, without keeping it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::file::FileId;
use super::{Holder, LockError, Mode, file, holder, legacy};
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::runtime_dir::{Access, DirError, RuntimeDir};

/// The lock of a daemon, in the directory of its key.
const DAEMON_LOCK: &str = "daemon.lock";
/// Maximum size of a guard's record in bytes.
const MAX_GUARD_RECORD: usize = 1 << 20;

/// The state of a lock at one moment. A destructive operation must take the lock instead (lesson 13).
#[derive(Debug)]
pub enum Probe {
    /// No process holds it.
    Free,
    /// A process holds it, or that is unknown.
    Held {
        /// The holder, if known.
        by: Option<Holder>,
    },
}

impl Probe {
    /// Whether it is held, or may be.
    pub fn is_held(&self) -> bool {
        matches!(self, Probe::Held { .. })
    }

    /// The holder as text that completes "held by": a pid, or how to find it.
    pub fn holder_text(&self, path: &Path) -> Option<String> {
        match self {
            Probe::Free => None,
            Probe::Held { by } => Some(super::error::holder_text(path, by.as_ref())),
        }
    }
}

/// Checks the lock `name` in `dir`. Creates and writes nothing. A missing file is free; one that cannot be opened counts as
/// held.
pub fn probe(dir: &RuntimeDir, name: impl AsRef<OsStr>) -> Probe {
    let name = name.as_ref();
    let path = dir.path().join(name);
    let open = || match dir.open_file(name, Access::Read) {
        Ok(file) => Ok(Some(file)),
        Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LockError::from_dir(&path, error)),
    };
    probe_by_locking(&path, open, holder::of_recorded)
}

/// All visible processes that have the lock `name` in `dir`: a lock that was handed over has several. Checks only pids for
/// which `may_be` is true, because to check the files of every process takes long.
pub fn holders(
    dir: &RuntimeDir,
    name: impl AsRef<OsStr>,
    may_be: impl Fn(u32) -> bool,
) -> Vec<ProcessRef> {
    let file = dir.open_file(name.as_ref(), Access::Read).ok();
    let id = file.and_then(|file| FileId::of(&file).ok());
    id.map_or_else(Vec::new, |id| os::lock_holders(id, &may_be).collect())
}

/// Whether the kernel says that `process` holds the lock `name` in `dir`; `false` if that cannot be seen. Checks the
/// descriptor `first` first, which saves the search among many.
pub fn is_held_by(
    dir: &RuntimeDir,
    name: impl AsRef<OsStr>,
    process: &ProcessRef,
    first: Option<u32>,
) -> bool {
    FileId::within(dir, name.as_ref()).is_ok_and(|id| {
        first.is_some_and(|fd| os::holds_lock_by(process, fd, id))
            || os::holds_lock(process, id) == Some(true)
    })
}

/// Whether the kernel says that `process` [holds](RuntimeDir::hold) the directory itself; `false` if that cannot be seen.
/// Every session, daemon and guard does, and no other program.
pub fn is_dir_held_by(dir: &RuntimeDir, process: &ProcessRef) -> bool {
    let id = dir.as_fd().try_clone_to_owned().ok();
    let id = id.and_then(|fd| FileId::of(&File::from(fd)).ok());
    id.is_some_and(|id| os::holds_lock(process, id) == Some(true))
}

/// Whether `process` is a daemon on record in the user's runtime directory: the kernel says that it holds a lock
/// `daemons/<key>/daemon.lock` there, and the record in that file names it. `false` if that cannot be seen.
pub(crate) fn is_daemon_of(user: &RuntimeDir, process: &ProcessRef) -> bool {
    let lock_of = |key: &OsStr| {
        let daemons = user.existing_subdir("daemons").ok()??;
        let file = daemons.existing_subdir(key).ok()??;
        file.open_file(DAEMON_LOCK, Access::Read).ok()
    };
    os::holds_any_lock(process, &|held, path| {
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
        let record = own.read_small("record.json", MAX_GUARD_RECORD).ok()??;
        // This cannot match inside a string: a quote there is escaped with a backslash.
        let record = String::from_utf8(record).ok()?;
        let (_, identity) = record.split_once("\"identity\":\"")?;
        identity.split('"').next()?.parse::<Identity>().ok()
    };
    is_dir_held_by(user, process)
        && record().is_some_and(|identity| identity.same_process(process.identity()))
}

/// [`probe`] by path, for a directory that is not open.
pub fn probe_path(path: impl AsRef<Path>) -> Probe {
    let path = path.as_ref();
    probe_by_locking(path, || legacy::open(path), holder::of_recorded)
}

/// Takes the lock for a few microseconds, exclusively, because a shared lock would succeed beside other shared locks.
/// Processes that want the lock at this moment retry, as this function does if another one is checking.
pub(super) fn probe_by_locking(
    path: &Path,
    open: impl Fn() -> Result<Option<File>, LockError>,
    holder_of: impl Fn(&File) -> Option<Holder>,
) -> Probe {
    match file::acquire_with(path, Mode::Exclusive, open, holder_of) {
        Ok(None) => Probe::Free,
        Ok(Some(file)) => {
            // Explicit: another thread may be forking right now (lesson 7).
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
    fn a_lock_file_with_a_hard_link_has_no_known_holder() {
        let scope = Scope::new("linked-lock");
        let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
        let _lock = Lock::acquire(&dir, "a.lock", Mode::Exclusive).unwrap();
        let me = ProcessRef::me().unwrap();
        assert!(is_held_by(&dir, "a.lock", &me, None));
        std::fs::hard_link(dir.path().join("a.lock"), scope.path("anybodys")).unwrap();
        assert!(!is_held_by(&dir, "a.lock", &me, None));
    }
}
