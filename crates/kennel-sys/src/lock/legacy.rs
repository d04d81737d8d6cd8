//! Locks of servers that do not use Kennel yet. They lock their file exclusively, so a shared lock keeps them out, and new
//! servers can hold it together (lesson 9).
//!
//! The file belongs to another program or user: it is never created, written, truncated, removed or read; links are not
//! followed, and only regular files are opened (lesson 15).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, OFlags};
use rustix::io::Errno;

use super::probe::probe_by_locking;
use super::{Lock, LockError, Mode, Probe, file, holder};
use crate::os;

/// Takes the legacy lock at `path` together with other new servers, so that no old one starts. `None` if there is no such
/// file: then no old server runs, and the file is not created.
pub fn hold(path: impl AsRef<Path>) -> Result<Option<Lock>, LockError> {
    take(path.as_ref(), Mode::Shared)
}

/// Takes the legacy lock at `path` exclusively, for a destructive operation. `None` if there is no such file.
pub fn seize(path: impl AsRef<Path>) -> Result<Option<Lock>, LockError> {
    take(path.as_ref(), Mode::Exclusive)
}

/// Checks the legacy lock at `path`. An old server that starts during the check, a few microseconds, may find it taken.
pub fn probe(path: impl AsRef<Path>) -> Probe {
    let path = path.as_ref();
    probe_by_locking(path, || open(path), holder::of_unrecorded)
}

fn take(path: &Path, mode: Mode) -> Result<Option<Lock>, LockError> {
    let path =
        std::path::absolute(path).map_err(|source| LockError::io(path, "resolve", source))?;
    let file = file::acquire_with(&path, mode, || open(&path), holder::of_unrecorded)?;
    Ok(file.map(|file| Lock::held(file, path, mode, true)))
}

/// The regular file at `path`, or `None`. Links are not followed.
pub(super) fn open(path: &Path) -> Result<Option<File>, LockError> {
    match open_regular(path) {
        Ok(fd) => Ok(Some(File::from(fd))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LockError::io(path, "open", error)),
    }
}

fn open_regular(path: &Path) -> io::Result<OwnedFd> {
    // Checked before it is opened: opening a device or a pipe may have effects.
    let entry = os::open_entry(CWD, path.as_os_str())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(refused("a symbolic link, which is not followed")),
        _ => return Err(refused("not a regular file")),
    }
    let open = |access| os::reopen(entry.as_fd(), access | OFlags::NONBLOCK);
    // For writing, since some file systems require that for exclusive locks; for reading if that is refused.
    match open(OFlags::RDWR) {
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => Ok(open(OFlags::RDONLY)?),
        fd => Ok(fd?),
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
