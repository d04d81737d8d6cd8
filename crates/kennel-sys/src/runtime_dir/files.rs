//! The files of a runtime directory, accessed through its open descriptor and never by path.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::RuntimeDir;
use super::error::DirError;
use super::gate::our_uid;
use crate::fs::FileFacts;
use crate::os;

/// How to open a file. No mode truncates it (lesson 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing; an error if it is missing.
    ReadWrite,
    /// Reading and writing; created with mode 0600 if missing.
    Create,
    /// Reading and writing; created with mode 0600, and an error if it exists.
    CreateNew,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
            Access::Create => OFlags::RDWR | OFlags::CREATE,
            Access::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        }
    }
}

impl RuntimeDir {
    /// Opens a file of this directory: it must be a regular file of this user, no symbolic link, and without another name
    /// (hard link).
    pub fn open_file(&self, name: impl AsRef<OsStr>, access: Access) -> Result<File, DirError> {
        let name = self.single(name.as_ref())?;
        self.open_plain(name, access)
            .map_err(|source| self.failed_on(name, "open", source))
    }

    /// [`open_file`](Self::open_file) with the system's error.
    pub(crate) fn open_plain(&self, name: &OsStr, access: Access) -> io::Result<File> {
        // Non-blocking, in case it is a pipe.
        let flags = access.flags() | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = || rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR);
        let fd = match open() {
            Err(Errno::ACCESS) if access != Access::Read => {
                self.grant_owner(name)?;
                open()?
            }
            Err(Errno::LOOP) => {
                let why = "a symbolic link, which is not followed";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            fd => fd?,
        };
        let file = File::from(fd);
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        if meta.uid() != our_uid() {
            let whose = format!("belongs to uid {}, not to uid {}", meta.uid(), our_uid());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, whose));
        }
        // A file that was replaced or removed after it was opened has no name.
        if meta.nlink() > 1 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a file with hard links, which is not used",
            ));
        }
        if access != Access::Read && meta.mode() & 0o600 != 0o600 {
            rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        }
        Ok(file)
    }

    /// Gives the owner read and write access to a file. An unusual umask removes these bits, and the process that created
    /// the file may have died before it restored them.
    fn grant_owner(&self, name: &OsStr) -> io::Result<()> {
        let entry = os::open_entry(self.fd.as_fd(), name)?;
        let meta = File::from(entry.try_clone()?).metadata()?;
        if meta.is_file() && meta.uid() == our_uid() && meta.nlink() <= 1 {
            os::chmod_entry(entry.as_fd(), Mode::RUSR | Mode::WUSR)?;
        }
        Ok(())
    }

    /// Writes a file that appears complete or not at all (lesson 4).
    pub fn write_whole(&self, name: impl AsRef<OsStr>, content: &[u8]) -> Result<(), DirError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = self.single(name.as_ref())?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut temporary = OsString::from(format!(".{}-{serial}.", std::process::id()));
        temporary.push(name);
        // Left by a killed process with the same pid.
        self.unlink(&temporary)?;
        let written = self
            .open_plain(&temporary, Access::CreateNew)
            .and_then(|mut file| file.write_all(content))
            .and_then(|()| Ok(rustix::fs::renameat(&self.fd, &temporary, &self.fd, name)?));
        written.map_err(|source| {
            // The error of the write is returned.
            let _ = self.unlink(&temporary);
            self.failed_on(name, "write", source)
        })
    }

    /// The content of a file, or `None` if it is missing. An error if it has more than `max` bytes (lesson 15).
    pub fn read_small(
        &self,
        name: impl AsRef<OsStr>,
        max: usize,
    ) -> Result<Option<Vec<u8>>, DirError> {
        let name = self.single(name.as_ref())?;
        let read = |file: File| {
            // A small file fits into this buffer, and is read at once.
            let mut content = Vec::with_capacity(max.min(4096));
            file.take(max as u64 + 1).read_to_end(&mut content)?;
            if content.len() > max {
                let size = format!("more than {max} bytes");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, size));
            }
            Ok(Some(content))
        };
        match self.open_plain(name, Access::Read).and_then(read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map_err(|source| self.failed_on(name, "read", source)),
        }
    }

    /// Removes a file, socket or link; `false` if it was missing.
    pub fn unlink(&self, name: impl AsRef<OsStr>) -> Result<bool, DirError> {
        let name = self.single(name.as_ref())?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed_on(name, "remove", errno)),
        }
    }

    /// Removes a subdirectory if it is empty; `false` if it is not empty or missing.
    pub fn remove_subdir_if_empty(&self, name: impl AsRef<OsStr>) -> Result<bool, DirError> {
        let name = self.single(name.as_ref())?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(self.failed_on(name, "remove", errno)),
        }
    }

    /// The names of all entries, sorted.
    pub fn entries(&self) -> Result<Vec<OsString>, DirError> {
        let names = crate::fs::names(self.fd.as_fd());
        names.map_err(|error| DirError::io(&self.path, "read", error))
    }

    /// The facts of an entry; `None` if it is missing. A link is not followed.
    pub fn facts_of(&self, name: impl AsRef<OsStr>) -> Result<Option<FileFacts>, DirError> {
        let name = self.single(name.as_ref())?;
        crate::fs::facts_of(self.fd.as_fd(), name)
            .map_err(|source| self.failed_on(name, "inspect", source))
    }

    fn failed_on(
        &self,
        name: &OsStr,
        what: &'static str,
        source: impl Into<io::Error>,
    ) -> DirError {
        DirError::io(&self.path.join(name), what, source)
    }
}
