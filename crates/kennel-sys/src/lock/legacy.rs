//! Locks of servers that came before: their files, their rules. They take theirs exclusively, so a
//! shared one keeps them out, and lets new ones in beside each other (lesson 9).
//!
//! The file is somebody else's, be it by user or by program: never created, written, truncated or
//! removed, no link followed, nothing but a regular file opened, its content never read (lesson 15).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, OFlags};
use rustix::io::Errno;

use super::probe::look;
use super::{Lock, LockError, Mode, Probe, file, holder};
use crate::os;

/// Holds the legacy lock at `path` beside other new ones, so that no old one starts. `None` if
/// there is no such file: then no old server runs, and none is invited.
pub fn hold(path: impl AsRef<Path>) -> Result<Option<Lock>, LockError> {
    take(path.as_ref(), Mode::Shared)
}

/// Takes the legacy lock at `path` against everybody, for a destructive act. `None` if there is no such file.
pub fn seize(path: impl AsRef<Path>) -> Result<Option<Lock>, LockError> {
    take(path.as_ref(), Mode::Exclusive)
}

/// Looks at the legacy lock at `path`; an old server that starts in the very microseconds of the
/// look may find it taken.
pub fn probe(path: impl AsRef<Path>) -> Probe {
    let path = path.as_ref();
    look(path, || open(path), holder::of_unrecorded)
}

fn take(path: &Path, mode: Mode) -> Result<Option<Lock>, LockError> {
    let path =
        std::path::absolute(path).map_err(|source| LockError::io(path, "resolve", source))?;
    let file = file::win(&path, mode, || open(&path), holder::of_unrecorded)?;
    Ok(file.map(|file| Lock::held(file, path, mode, true)))
}

/// The regular file at `path`, no link followed; `None` if there is none.
pub(super) fn open(path: &Path) -> Result<Option<File>, LockError> {
    match open_regular(path) {
        Ok(fd) => Ok(Some(File::from(fd))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LockError::io(path, "open", error)),
    }
}

fn open_regular(path: &Path) -> io::Result<OwnedFd> {
    // Looked at before it is opened: opening a device or a pipe may do something.
    let entry = os::open_entry(CWD, path.as_os_str())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(refused("a symbolic link, which is not followed")),
        _ => return Err(refused("not a regular file")),
    }
    let open = |access| os::reopen(entry.as_fd(), access | OFlags::NONBLOCK);
    // For writing, since some file systems lock nothing else exclusively; reading must do where that is refused.
    match open(OFlags::RDWR) {
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => Ok(open(OFlags::RDONLY)?),
        fd => Ok(fd?),
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
