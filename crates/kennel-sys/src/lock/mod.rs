//! Locks that name their holder: `flock` on a file with a record of the holder.
//!
//! The lock decides, and the record only informs (lesson 2): it is written after the lock was taken (rule 7), and trusted
//! only while its identity matches a living process (rule 6). All functions return at once; none waits for a lock of
//! another process.
//!
//! `flock` belongs to the open file and not to the process: two [`Lock`]s of one process exclude each other, and closing
//! another descriptor of the file releases nothing (lesson 8).

mod directory;
mod error;
mod file;
mod holder;
pub mod legacy;
mod probe;
mod record;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use directory::{SeizedDir, seize};
pub use error::LockError;
pub use holder::Holder;
pub use probe::{Probe, holders, is_dir_held_by, is_held_by, probe, probe_path};
pub(crate) use probe::{is_daemon_of, is_guard_of};
pub use record::Record;

use crate::runtime_dir::{Access, RuntimeDir};
use file::FileId;

const CREATED: &str = "Access::Create leaves no file missing";

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A single holder, which may write a record.
    Exclusive,
    /// Any number of holders, but no exclusive one. They write no record, because they would overwrite each other's. The
    /// kernel still knows them.
    Shared,
}

/// A lock that is held, until it is dropped or [`release`](Lock::release)d.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    mode: Mode,
    /// A file of another program: only the lock is used.
    legacy: bool,
    /// The pid of the process that took it: a forked copy must not release the lock of its parent.
    owner_pid: u32,
}

impl Lock {
    /// The number of its descriptor, for [`is_held_by`] of another process.
    pub fn descriptor(&self) -> u32 {
        self.file.as_raw_fd().unsigned_abs()
    }

    /// Takes the lock `name` in `dir`, or returns its holder at once. Creates the file if it is missing, and leaves its
    /// content as it is.
    pub fn acquire(
        dir: &RuntimeDir,
        name: impl AsRef<OsStr>,
        mode: Mode,
    ) -> Result<Lock, LockError> {
        let path = dir.path().join(name.as_ref());
        let open = || Lock::open(dir, name.as_ref(), &path);
        let file = file::acquire_with(&path, mode, open, holder::of_recorded)?;
        Ok(Lock::held(file.expect(CREATED), path, mode, false))
    }

    /// [`acquire`](Self::acquire) for callers that retry later: it returns at once and does not look for the holder. To
    /// find a holder without a record, it would have to check every process.
    pub fn try_acquire(
        dir: &RuntimeDir,
        name: impl AsRef<OsStr>,
        mode: Mode,
    ) -> Result<Option<Lock>, LockError> {
        let path = dir.path().join(name.as_ref());
        match file::acquire_without_retry(&path, mode, || Lock::open(dir, name.as_ref(), &path)) {
            Ok(file) => Ok(Some(Lock::held(file.expect(CREATED), path, mode, false))),
            Err(LockError::Held { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open(dir: &RuntimeDir, name: &OsStr, path: &Path) -> Result<Option<File>, LockError> {
        let file = dir.open_file(name, Access::Create);
        file.map(Some)
            .map_err(|error| LockError::from_dir(path, error))
    }

    /// An exclusive lock in `dir` that this process took before it executed another program. The lock belongs to the open
    /// file, so it is still ours.
    pub fn taken_over(dir: &RuntimeDir, name: impl AsRef<OsStr>, file: File) -> Lock {
        let path = dir.path().join(name.as_ref());
        Lock::held(file, path, Mode::Exclusive, false)
    }

    fn held(file: File, path: PathBuf, mode: Mode, legacy: bool) -> Lock {
        let owner_pid = std::process::id();
        Lock {
            file,
            path,
            mode,
            legacy,
            owner_pid,
        }
    }

    /// Writes the record of the holder. Only for exclusive locks that are not legacy locks.
    pub fn write_record(&self, record: &Record) -> Result<(), LockError> {
        self.require_exclusive("a shared or legacy lock has no record")?;
        let text = record.to_string();
        // First the new text, then the length: a reader in between finds a record, whose last line marks its end, and never
        // an empty file.
        self.file
            .write_all_at(text.as_bytes(), 0)
            .and_then(|()| self.file.set_len(text.len() as u64))
            .map_err(|source| self.failed("write the record of", source))
    }

    /// Releases the lock, even if children have inherited descriptors of it (lesson 7). Dropping does the same.
    pub fn release(self) {}

    /// Returns the file without releasing the lock: it stays held while a descriptor of the file is open in any process. A
    /// process that gets the descriptor can release it.
    pub fn into_handed_over(mut self) -> Result<File, LockError> {
        let file = self
            .file
            .try_clone()
            .map_err(|source| self.failed("hand over", source))?;
        // This value does not release it any more.
        self.owner_pid = 0;
        Ok(file)
    }

    /// Removes the lock's file from `dir` and releases the lock. Only for uninstall and purge (rule 7).
    pub fn remove(self, dir: &RuntimeDir) -> Result<(), LockError> {
        self.require_exclusive("a shared or legacy lock cannot be removed")?;
        if !self.is_at_its_path() {
            return Err(self.failed(
                "remove",
                io::Error::other("its path now leads to another file"),
            ));
        }
        let name: OsString = self.path.file_name().unwrap_or_default().into();
        dir.unlink(name)
            .map_err(|error| LockError::from_dir(&self.path, error))?;
        Ok(())
    }

    /// The path of its file when it was taken, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mode of the lock.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether its path still leads to the locked file. If not, another process may hold a lock under the same name (lesson
    /// 6).
    pub fn is_at_its_path(&self) -> bool {
        FileId::of(&self.file).is_ok_and(|id| FileId::at(&self.path).is_ok_and(|at| at == Some(id)))
    }

    fn require_exclusive(&self, or_else: &'static str) -> Result<(), LockError> {
        if self.mode == Mode::Exclusive && !self.legacy {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::InvalidInput, or_else);
        Err(self.failed("use", source))
    }

    fn failed(&self, what: &'static str, source: io::Error) -> LockError {
        LockError::io(&self.path, what, source)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.owner_pid != std::process::id() {
            return;
        }
        if self.mode == Mode::Exclusive && !self.legacy {
            // A record that stays is outdated, and is not trusted.
            let _ = self.file.set_len(0);
        }
        // Explicit: a child that inherited the file would keep the lock alive (lesson 7).
        let _ = file::unlock(&self.file);
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
