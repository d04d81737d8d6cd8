//! Taking a lock on a file that may be replaced meanwhile.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

use super::{Holder, LockError, Mode};
pub(super) use crate::fs::FileId;
use crate::runtime_dir::{RetryTime, RuntimeDir};

/// Time to retry a contended lock: a forked child holds its parent's lock until its exec, about 100 us (lesson 7), and a
/// probe holds it for less.
const RETRY: Duration = Duration::from_millis(5);

/// Additional time to retry if there is no valid record: on a busy machine, those two, and a holder that is about to write
/// its record, may be delayed for longer.
const RETRY_UNRECORDED: Duration = Duration::from_millis(50);

/// Maximum number of times that a file may be replaced during one attempt.
const MAX_REPLACEMENTS: usize = 64;

impl FileId {
    /// Opens the file `name` in `dir`; links are not followed. Fails if the file has another name too: then another user
    /// may have created it.
    pub(super) fn within(dir: &RuntimeDir, name: &OsStr) -> io::Result<FileId> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if stat.st_nlink != 1 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(FileId {
            dev: stat.st_dev,
            ino: stat.st_ino,
        })
    }

    /// The file at `path`, or `None`. Links are not followed.
    pub(super) fn at(path: &Path) -> io::Result<Option<FileId>> {
        match path.symlink_metadata() {
            Ok(meta) => Ok(Some(FileId::from(&meta))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Opens and locks a file until the locked file is the one at `path`. `None` if `open` finds no file.
pub(super) fn acquire_with(
    path: &Path,
    mode: Mode,
    open: impl Fn() -> Result<Option<File>, LockError>,
    holder_of: impl Fn(&File) -> Option<Holder>,
) -> Result<Option<File>, LockError> {
    let retries = RetryLimits {
        brief: RetryTime::of(RETRY),
        further: RetryTime::of(RETRY_UNRECORDED),
    };
    acquire_with_retries(path, mode, open, holder_of, retries)
}

/// [`acquire_with`] for callers that retry later: it does not retry, and does not look for the holder.
pub(super) fn acquire_without_retry(
    path: &Path,
    mode: Mode,
    open: impl Fn() -> Result<Option<File>, LockError>,
) -> Result<Option<File>, LockError> {
    let retries = RetryLimits {
        brief: RetryTime::of(Duration::ZERO),
        further: RetryTime::of(Duration::ZERO),
    };
    acquire_with_retries(path, mode, open, |_| None, retries)
}

fn acquire_with_retries(
    path: &Path,
    mode: Mode,
    open: impl Fn() -> Result<Option<File>, LockError>,
    holder_of: impl Fn(&File) -> Option<Holder>,
    mut retries: RetryLimits,
) -> Result<Option<File>, LockError> {
    for _ in 0..MAX_REPLACEMENTS {
        let Some(file) = open()? else {
            return Ok(None);
        };
        let contest = lock_file(&file, mode, &mut retries, &holder_of)
            .map_err(|source| LockError::io(path, "lock", source))?;
        // The holder may have removed the file while we waited. Then this lock protects nothing, and another file may be
        // locked under the same name (lesson 6).
        let current = FileId::at(path)
            .and_then(|at| Ok(at == Some(FileId::of(&file)?)))
            .map_err(|source| LockError::io(path, "inspect", source))?;
        match (current, contest) {
            (false, _) => {}
            (true, LockAttempt::Won) => return Ok(Some(file)),
            (true, LockAttempt::Lost(holder)) => {
                return Err(LockError::Held {
                    path: path.to_owned(),
                    holder: holder.map(Box::new),
                });
            }
        }
    }
    let source = io::Error::other("the file was replaced repeatedly, or its directory was moved");
    Err(LockError::io(path, "lock", source))
}

struct RetryLimits {
    brief: RetryTime,
    further: RetryTime,
}

/// Contention is a result, not an error (lesson 12).
enum LockAttempt {
    Won,
    Lost(Option<Holder>),
}

fn lock_file(
    file: &File,
    mode: Mode,
    retries: &mut RetryLimits,
    holder_of: impl Fn(&File) -> Option<Holder>,
) -> io::Result<LockAttempt> {
    if try_lock(file, mode, &mut retries.brief)? {
        return Ok(LockAttempt::Won);
    }
    match holder_of(file) {
        Some(holder) if holder.is_recorded() => Ok(LockAttempt::Lost(Some(holder))),
        _ if try_lock(file, mode, &mut retries.further)? => Ok(LockAttempt::Won),
        _ => Ok(LockAttempt::Lost(holder_of(file))),
    }
}

fn try_lock(file: &File, mode: Mode, limit: &mut RetryTime) -> io::Result<bool> {
    let operation = match mode {
        Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Mode::Shared => FlockOperation::NonBlockingLockShared,
    };
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if limit.pause() => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}

pub(super) fn unlock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::Unlock)?)
}
