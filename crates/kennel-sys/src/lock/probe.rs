//! Looking at a lock without keeping it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::file::FileId;
use super::{Holder, LockError, Mode, file, holder, legacy, proc_locks};
use crate::process::ProcessRef;
use crate::runtime_dir::{Access, DirError, RuntimeDir};

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
    id.map_or_else(Vec::new, |id| proc_locks::heirs(id, may_be).collect())
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
        first.is_some_and(|fd| proc_locks::holds_by(process, fd, id))
            || proc_locks::holds(process, id) == Some(true)
    })
}

/// Whether `process` [holds](RuntimeDir::hold) the directory itself, as the kernel says; `false` where that cannot be
/// seen. Every session, daemon and guard does, and no other program.
pub fn is_dir_held_by(dir: &RuntimeDir, process: &ProcessRef) -> bool {
    let id = dir.as_fd().try_clone_to_owned().ok();
    let id = id.and_then(|fd| FileId::of(&File::from(fd)).ok());
    id.is_some_and(|id| proc_locks::holds(process, id) == Some(true))
}

/// Whether `process` holds a lock that only a daemon or a guard of Kennel holds: on a runtime directory of this user, or
/// on one of the two locks of a daemon. `false` where that cannot be seen.
pub(crate) fn holds_a_place(process: &ProcessRef) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    proc_locks::holds_any(process, |meta, path| {
        let closed_dir = meta.is_dir() && meta.mode() & 0o077 == 0;
        let name = path.file_name().and_then(OsStr::to_str);
        let lock = meta.is_file() && matches!(name, Some("daemon.lock" | "spawn.lock"));
        meta.uid() == ours && (closed_dir || lock)
    })
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
