//! Locks that say who holds them: `flock` on a file that keeps a record of its holder.
//!
//! The lock is the authority, the record only a courtesy (lesson 2): it is written after the lock was
//! won (rule 7), and believed only while the identity in it fits a living process (rule 6).
//! Everything here answers at once; nothing waits for somebody else's lock.
//!
//! `flock` belongs to the open file and not to the process: two [`Lock`]s of one process exclude
//! each other like strangers, and closing another descriptor of the file frees nothing (lesson 8).

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

/// How a lock is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One holder, who may leave a record.
    Exclusive,
    /// Any number of holders, none of whom is exclusive. They would overwrite each other's record,
    /// so they leave none; the kernel knows them all the same.
    Shared,
}

/// A lock that is held, until it is dropped or [`release`](Lock::release)d.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    mode: Mode,
    /// Somebody else's file, of which we touch nothing but the lock.
    legacy: bool,
    /// Who took it: a forked copy of this value must not release what is its parent's.
    taker: u32,
}

impl Lock {
    /// The number of its descriptor, for [`is_held_by`] of another process.
    pub fn descriptor(&self) -> u32 {
        self.file.as_raw_fd().unsigned_abs()
    }

    /// Takes the lock `name` in `dir`, or says at once who has it. The file is created if it is
    /// missing, and its content is left as it is.
    pub fn acquire(
        dir: &RuntimeDir,
        name: impl AsRef<OsStr>,
        mode: Mode,
    ) -> Result<Lock, LockError> {
        let path = dir.path().join(name.as_ref());
        let open = || Lock::open(dir, name.as_ref(), &path);
        let file = file::win(&path, mode, open, holder::of_recorded)?;
        Ok(Lock::held(file.expect(CREATED), path, mode, false))
    }

    /// [`acquire`](Self::acquire) for one who waits and comes again: contention is believed at once, and nobody is
    /// named. To find a holder without a record, every process is looked at; many who wait would do nothing else.
    pub fn try_acquire(
        dir: &RuntimeDir,
        name: impl AsRef<OsStr>,
        mode: Mode,
    ) -> Result<Option<Lock>, LockError> {
        let path = dir.path().join(name.as_ref());
        match file::win_at_once(&path, mode, || Lock::open(dir, name.as_ref(), &path)) {
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

    /// A lock of `dir` that this process held, exclusively, before it became another program: the lock is the open
    /// file's, and so is still ours.
    pub fn taken_over(dir: &RuntimeDir, name: impl AsRef<OsStr>, file: File) -> Lock {
        let path = dir.path().join(name.as_ref());
        Lock::held(file, path, Mode::Exclusive, false)
    }

    fn held(file: File, path: PathBuf, mode: Mode, legacy: bool) -> Lock {
        let taker = std::process::id();
        Lock {
            file,
            path,
            mode,
            legacy,
            taker,
        }
    }

    /// Writes down who holds the lock. Only an exclusive lock of ours has a record.
    pub fn write_record(&self, record: &Record) -> Result<(), LockError> {
        self.demand_whole("a lock that others may hold too has no record")?;
        let text = record.to_string();
        // First the new text, then the length: a reader in between finds a record, whose last
        // line says where it ends, and never an empty file.
        self.file
            .write_all_at(text.as_bytes(), 0)
            .and_then(|()| self.file.set_len(text.len() as u64))
            .map_err(|source| self.failed("write the record of", source))
    }

    /// Gives the lock up, whatever descriptors of it children may have inherited (lesson 7).
    /// Dropping does the same.
    pub fn release(self) {}

    /// Gives up the right to unlock it, but not the lock: it stays held for as long as the file, or a
    /// descriptor of it that a child inherited, is open. Whoever gets the descriptor unlocks.
    pub fn into_handed_over(mut self) -> Result<File, LockError> {
        let file = self
            .file
            .try_clone()
            .map_err(|source| self.failed("hand over", source))?;
        // Nobody's to release any more.
        self.taker = 0;
        Ok(file)
    }

    /// Removes the lock's file from `dir` while holding it, and gives the lock up. For uninstall and purge only (rule 7).
    pub fn remove(self, dir: &RuntimeDir) -> Result<(), LockError> {
        self.demand_whole("a lock that others may hold too is not removed")?;
        if !self.is_at_its_path() {
            return Err(self.failed(
                "remove",
                io::Error::other("its path leads to another file now"),
            ));
        }
        let name: OsString = self.path.file_name().unwrap_or_default().into();
        dir.unlink(name)
            .map_err(|error| LockError::from_dir(&self.path, error))?;
        Ok(())
    }

    /// Where its file was when it was won. For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is shared.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether its path still leads to the file that is locked. If not, somebody else may hold
    /// another one under the same name (lesson 6).
    pub fn is_at_its_path(&self) -> bool {
        FileId::of(&self.file).is_ok_and(|id| FileId::at(&self.path).is_ok_and(|at| at == Some(id)))
    }

    fn demand_whole(&self, or_else: &'static str) -> Result<(), LockError> {
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
        if self.taker != std::process::id() {
            return;
        }
        if self.mode == Mode::Exclusive && !self.legacy {
            // A record that stays is only outdated: nobody believes it.
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
