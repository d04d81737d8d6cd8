//! Winning a lock on a file that may be replaced meanwhile.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

use super::{Holder, LockError, Mode};
pub(super) use crate::fs::FileId;
use crate::runtime_dir::{Patience, RuntimeDir};

/// How long contention is doubted: a child that was just forked holds its parent's lock until it
/// execs, about 100 us (lesson 7), and a probe holds it for less.
const DOUBT: Duration = Duration::from_millis(5);

/// How long it is doubted further where nobody left a true record: on a busy machine those two, and
/// a holder that is about to write its record, may be kept from going on for longer than that.
const DOUBT_UNRECORDED: Duration = Duration::from_millis(50);

/// How often a file may be replaced under us before something is wrong.
const REPLACED: usize = 64;

impl FileId {
    /// The file `name` in `dir`, no link followed; an error if it has another name as well: it may be anybody's.
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

    /// The file at `path`, no link followed; `None` if there is none.
    pub(super) fn at(path: &Path) -> io::Result<Option<FileId>> {
        match path.symlink_metadata() {
            Ok(meta) => Ok(Some(FileId::from(&meta))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Opens and locks until what was locked is what the path leads to. `None` if `open` finds no file.
pub(super) fn win(
    path: &Path,
    mode: Mode,
    open: impl Fn() -> Result<Option<File>, LockError>,
    holder_of: impl Fn(&File) -> Option<Holder>,
) -> Result<Option<File>, LockError> {
    let doubt = Doubt {
        brief: Patience::of(DOUBT),
        further: Patience::of(DOUBT_UNRECORDED),
    };
    win_in_doubt(path, mode, open, holder_of, doubt)
}

/// [`win`] for one who comes again: contention is believed at once, and who holds it is not asked.
pub(super) fn win_at_once(
    path: &Path,
    mode: Mode,
    open: impl Fn() -> Result<Option<File>, LockError>,
) -> Result<Option<File>, LockError> {
    let doubt = Doubt {
        brief: Patience::of(Duration::ZERO),
        further: Patience::of(Duration::ZERO),
    };
    win_in_doubt(path, mode, open, |_| None, doubt)
}

fn win_in_doubt(
    path: &Path,
    mode: Mode,
    open: impl Fn() -> Result<Option<File>, LockError>,
    holder_of: impl Fn(&File) -> Option<Holder>,
    mut doubt: Doubt,
) -> Result<Option<File>, LockError> {
    for _ in 0..REPLACED {
        let Some(file) = open()? else {
            return Ok(None);
        };
        let contest = contest(&file, mode, &mut doubt, &holder_of)
            .map_err(|source| LockError::io(path, "lock", source))?;
        // Whoever held it may have removed it while we waited: then this is nobody's lock any
        // more, and another may be held under the same name (lesson 6).
        let current = FileId::at(path)
            .and_then(|at| Ok(at == Some(FileId::of(&file)?)))
            .map_err(|source| LockError::io(path, "inspect", source))?;
        match (current, contest) {
            (false, _) => {}
            (true, Contest::Won) => return Ok(Some(file)),
            (true, Contest::Lost(holder)) => {
                return Err(LockError::Held {
                    path: path.to_owned(),
                    holder: holder.map(Box::new),
                });
            }
        }
    }
    let source =
        io::Error::other("the file was replaced again and again, or its directory was moved");
    Err(LockError::io(path, "lock", source))
}

struct Doubt {
    brief: Patience,
    further: Patience,
}

/// Contention is an answer, never an error (lesson 12).
enum Contest {
    Won,
    Lost(Option<Holder>),
}

fn contest(
    file: &File,
    mode: Mode,
    doubt: &mut Doubt,
    holder_of: impl Fn(&File) -> Option<Holder>,
) -> io::Result<Contest> {
    if try_lock(file, mode, &mut doubt.brief)? {
        return Ok(Contest::Won);
    }
    match holder_of(file) {
        Some(holder) if holder.is_recorded() => Ok(Contest::Lost(Some(holder))),
        _ if try_lock(file, mode, &mut doubt.further)? => Ok(Contest::Won),
        _ => Ok(Contest::Lost(holder_of(file))),
    }
}

fn try_lock(file: &File, mode: Mode, doubt: &mut Patience) -> io::Result<bool> {
    let operation = match mode {
        Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Mode::Shared => FlockOperation::NonBlockingLockShared,
    };
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if doubt.pause() => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}

pub(super) fn unlock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::Unlock)?)
}
