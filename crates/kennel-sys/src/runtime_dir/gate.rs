//! The gate: the checks that a directory must pass before its content is trusted (rule 9).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::{DirError, Kind};
use super::fix;
use super::place::Origin;
use super::retry_time::RetryTime;
use crate::fs::mode_of;
use crate::os;

/// The mode bits of group and others.
pub(super) const OTHERS: u32 = 0o077;

/// Time for an unusable directory to become usable: another process of this user may have created it under an unusual
/// umask, and be about to restore the permissions.
const REPAIR_WAIT: Duration = Duration::from_millis(500);

/// Maximum number of times that the created directory may be removed again; any process of this user may remove an empty
/// one.
const MAX_REMOVALS: usize = 100;

/// The place of a directory, which may not exist yet.
pub(super) struct DirLocation<'a> {
    at: BorrowedFd<'a>,
    name: &'a OsStr,
    path: &'a Path,
    origin: Origin,
}

impl<'a> DirLocation<'a> {
    pub(super) fn at_path(path: &'a Path, origin: Origin) -> DirLocation<'a> {
        DirLocation {
            at: CWD,
            name: path.as_os_str(),
            path,
            origin,
        }
    }

    /// `name` in a directory that passed the gate. `path` is for messages.
    pub(super) fn inside(at: BorrowedFd<'a>, name: &'a OsStr, path: &'a Path) -> DirLocation<'a> {
        DirLocation {
            at,
            name,
            path,
            origin: Origin::Inside,
        }
    }

    /// Opens the directory, and creates it if it is missing. An existing one is never changed: its open mode may have let
    /// an attacker in, and restricting it would hide that.
    pub(super) fn ensure(&self) -> Result<OwnedFd, DirError> {
        for _ in 0..MAX_REMOVALS {
            if let Some(fd) = self.open()? {
                return Ok(fd);
            }
            match rustix::fs::mkdirat(self.at, self.name, Mode::RWXU) {
                Ok(()) => self.grant_owner()?,
                // Another process created it just now: it is checked like any other.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed("create", errno)),
            }
        }
        Err(self.failed("keep", Errno::NOENT))
    }

    /// Opens the directory, if it exists and passes the gate.
    pub(super) fn open(&self) -> Result<Option<OwnedFd>, DirError> {
        let mut retry_time = RetryTime::of(REPAIR_WAIT);
        loop {
            match self.check() {
                Err(DirError::ClosedToOwner { .. }) if retry_time.pause() => {}
                verdict => return verdict,
            }
        }
    }

    fn check(&self) -> Result<Option<OwnedFd>, DirError> {
        match self.directory() {
            Err(Errno::NOENT) => return Ok(None),
            // The check is about the opened directory.
            Ok(fd) if self.refusal(fd.as_fd(), &self.stat(fd.as_fd())?).is_none() => {
                return Ok(Some(fd));
            }
            _ => {}
        }
        // Check the entry itself, of any kind, through one descriptor, so that all checks are about the same file.
        let Some(entry) = self.entry()? else {
            return Ok(None);
        };
        let stat = self.stat(entry.as_fd())?;
        if let Some(refusal) = self.refusal(entry.as_fd(), &stat) {
            return Err(refusal);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&entry, ".", flags, Mode::empty())
            .map_err(|errno| self.failed("open", errno))?;
        Ok(Some(fd))
    }

    /// Opens the entry as a readable directory.
    fn directory(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.at, self.name, flags, Mode::empty())
    }

    fn refusal(&self, entry: BorrowedFd<'_>, stat: &Stat) -> Option<DirError> {
        let path = self.path.to_owned();
        let kind = Kind::of(stat);
        let (owner, ours) = (stat.st_uid, our_uid());
        let mode = mode_of(stat) & 0o7777;
        if owner != ours {
            let fix = fix::for_foreign(self.path, self.origin);
            return Some(DirError::WrongOwner {
                path,
                kind,
                owner,
                ours,
                fix,
            });
        }
        if kind == Kind::Symlink {
            let target = rustix::fs::readlinkat(entry, "", Vec::new()).unwrap_or_default();
            let target = OsString::from_vec(target.into_bytes()).into();
            let fix = fix::for_symlink(self.path, self.origin);
            return Some(DirError::Symlink {
                path,
                target,
                owner,
                fix,
            });
        }
        if kind != Kind::Directory {
            let fix = fix::for_file(self.path, self.origin, kind, stat.st_size == 0);
            return Some(DirError::NotADirectory {
                path,
                kind,
                owner,
                fix,
            });
        }
        if mode & OTHERS != 0 {
            let fix = fix::for_open_mode(self.path, self.origin, mode, entry);
            return Some(DirError::OpenToOthers {
                path,
                mode,
                owner,
                fix,
            });
        }
        if mode & 0o700 != 0o700 {
            let fix = fix::for_closed_mode(self.path, self.origin);
            return Some(DirError::ClosedToOwner {
                path,
                mode,
                owner,
                fix,
            });
        }
        None
    }

    /// Restores the owner's mode bits of the new directory, which the umask may have removed.
    fn grant_owner(&self) -> Result<(), DirError> {
        let Some(entry) = self.entry()? else {
            return Ok(());
        };
        let stat = self.stat(entry.as_fd())?;
        let mode = mode_of(&stat) & 0o777;
        // mkdir(0700) never creates more than 0700: anything else is not the directory that we created.
        let made_here = Kind::of(&stat) == Kind::Directory && mode & OTHERS == 0;
        if !made_here || stat.st_uid != our_uid() || mode == 0o700 {
            return Ok(());
        }
        os::chmod_entry(entry.as_fd(), Mode::RWXU).map_err(|errno| self.failed("chmod", errno))
    }

    fn entry(&self) -> Result<Option<OwnedFd>, DirError> {
        match os::open_entry(self.at, self.name) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("open", errno)),
        }
    }

    fn stat(&self, entry: BorrowedFd<'_>) -> Result<Stat, DirError> {
        rustix::fs::fstat(entry).map_err(|errno| self.failed("inspect", errno))
    }

    fn failed(&self, what: &'static str, errno: Errno) -> DirError {
        DirError::io(self.path, what, errno)
    }
}

/// The uid that must own our files.
pub(super) fn our_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
