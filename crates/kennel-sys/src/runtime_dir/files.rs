//! Files of a runtime directory, reached through the descriptor that passed the gate and never by path.

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

/// What a file is opened for. None of them truncates (lesson 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing; missing is an error.
    ReadWrite,
    /// Reading and writing; created with mode 0600 if missing.
    Create,
    /// Reading and writing; created with mode 0600, and existing is an error.
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
    /// Opens a file of this directory: a regular one, ours, no symbolic link, and without a second name (hard link).
    pub fn open_file(&self, name: impl AsRef<OsStr>, access: Access) -> Result<File, DirError> {
        let name = self.single(name.as_ref())?;
        self.open_plain(name, access)
            .map_err(|source| self.failed_on(name, "open", source))
    }

    /// [`open_file`](Self::open_file) for those who tell one system error from another.
    pub(crate) fn open_plain(&self, name: &OsStr, access: Access) -> io::Result<File> {
        // Not blocking: a pipe left under that name must not hold us up.
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
        // Replaced or removed since it was opened, it has none.
        if meta.nlink() > 1 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a hard link: the file has another name elsewhere, and is not used",
            ));
        }
        if access != Access::Read && meta.mode() & 0o600 != 0o600 {
            rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        }
        Ok(file)
    }

    /// A wild umask takes its owner's bits from a file; whoever made it may have died before giving them back.
    fn grant_owner(&self, name: &OsStr) -> io::Result<()> {
        let entry = os::open_entry(self.fd.as_fd(), name)?;
        let meta = File::from(entry.try_clone()?).metadata()?;
        if meta.is_file() && meta.uid() == our_uid() && meta.nlink() <= 1 {
            os::chmod_entry(entry.as_fd(), Mode::RUSR | Mode::WUSR)?;
        }
        Ok(())
    }

    /// Puts a file with this content into its place, complete from the first moment it is seen (lesson 4).
    pub fn write_whole(&self, name: impl AsRef<OsStr>, content: &[u8]) -> Result<(), DirError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = self.single(name.as_ref())?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut aside = OsString::from(format!(".{}-{serial}.", std::process::id()));
        aside.push(name);
        // Left by a killed process that had our pid.
        self.unlink(&aside)?;
        let written = self
            .open_plain(&aside, Access::CreateNew)
            .and_then(|mut file| file.write_all(content))
            .and_then(|()| Ok(rustix::fs::renameat(&self.fd, &aside, &self.fd, name)?));
        written.map_err(|source| {
            // The failure to write is the one to tell.
            let _ = self.unlink(&aside);
            self.failed_on(name, "write", source)
        })
    }

    /// The content of a file, or `None` if it is missing. More than `max` bytes are an error (lesson 15).
    pub fn read_small(
        &self,
        name: impl AsRef<OsStr>,
        max: usize,
    ) -> Result<Option<Vec<u8>>, DirError> {
        let name = self.single(name.as_ref())?;
        let read = |file: File| {
            // Room for all of most: what is small is read at once.
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

    /// Removes a directory of this one if nothing is in it; `false` if something is, or if it was missing.
    pub fn remove_subdir_if_empty(&self, name: impl AsRef<OsStr>) -> Result<bool, DirError> {
        let name = self.single(name.as_ref())?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(self.failed_on(name, "remove", errno)),
        }
    }

    /// The names of what is in it, in order.
    pub fn entries(&self) -> Result<Vec<OsString>, DirError> {
        let names = crate::fs::names(self.fd.as_fd());
        names.map_err(|error| DirError::io(&self.path, "read", error))
    }

    /// The facts of an entry; `None` if there is none. A link is not followed.
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
