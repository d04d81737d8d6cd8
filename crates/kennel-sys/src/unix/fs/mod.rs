//! Files and directories, accessed through open descriptors instead of paths, so that no process can replace them between a
//! check and a use.

mod facts;

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, StatVfsMountFlags, Uid};

use crate::os;
pub use crate::os::{DirChanges, SHARED_DIRECTORIES, SYSTEM_DIRECTORIES, mount_points};
use crate::runtime_dir::RuntimeDir;
pub(crate) use facts::mode_of;
pub use facts::{FileFacts, FileId};

/// Flags to open a directory for reading, without following a link.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Whether a path is on a read-only file system.
pub fn is_on_read_only_fs(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// An open directory. Operations apply to this directory even if its path now leads elsewhere.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl Dir {
    /// A runtime directory.
    pub fn of(dir: &RuntimeDir) -> io::Result<Dir> {
        dir.handle().try_clone_to_owned().map(Dir)
    }

    /// The root of the file system.
    pub fn root() -> io::Result<Dir> {
        Ok(Dir(os::open_entry(rustix::fs::CWD, OsStr::new("/"))?))
    }

    /// Opens a subdirectory for reading. A link is not followed.
    pub fn open_dir(&self, name: &OsStr) -> io::Result<Dir> {
        Ok(Dir(rustix::fs::openat(
            &self.0,
            name,
            DIRECTORY,
            Mode::empty(),
        )?))
    }

    /// Opens a subdirectory unless it is a mount point, which is [`io::ErrorKind::CrossesDevices`].
    pub fn open_dir_of_same_mount(&self, name: &OsStr) -> io::Result<Dir> {
        os::open_dir_of_same_mount(self.0.as_fd(), name).map(Dir)
    }

    /// Opens an entry of any kind only to identify it, even if it cannot be read. A link is not followed.
    pub fn entry(&self, name: &OsStr) -> io::Result<Entry> {
        let fd = os::open_entry(self.0.as_fd(), name)?;
        let facts = rustix::fs::fstat(&fd)?.into();
        Ok(Entry { fd, facts })
    }

    /// The facts of this directory.
    pub fn facts(&self) -> io::Result<FileFacts> {
        Ok(rustix::fs::fstat(&self.0)?.into())
    }

    /// The facts of an entry; `None` if it is missing. A link is not followed.
    pub fn facts_of(&self, name: &OsStr) -> io::Result<Option<FileFacts>> {
        facts_of(self.0.as_fd(), name)
    }

    /// The target of a link.
    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        read_link(self.0.as_fd(), name)
    }

    /// The names of all entries, sorted.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        names(self.0.as_fd())
    }

    /// Opens a file of any kind for reading, without blocking on a pipe. A link is not followed.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// Creates a file for writing that only this user can access. An error if it exists.
    pub fn create_file(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(file))
    }

    /// Whether this process may write to an entry; `.` is the directory itself.
    pub fn may_write(&self, name: &OsStr) -> bool {
        let access = rustix::fs::Access::WRITE_OK;
        rustix::fs::accessat(&self.0, name, access, AtFlags::empty()).is_ok()
    }

    /// Removes a file, link or socket.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Renames a file, replacing an existing one.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// Exchanges the names of two files atomically. [`io::ErrorKind::Unsupported`] if the file system or the kernel cannot
    /// do that.
    pub fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        os::exchange(self.0.as_fd(), one, other)
    }

    /// Blocks until its entries are on disk.
    pub fn sync(&self) -> io::Result<()> {
        let dir = reopened(self.0.as_fd())?;
        Ok(rustix::fs::fsync(&dir)?)
    }
}

/// A directory entry as it was opened: a file, a directory or a link. It stays the same even if the name is reused.
#[derive(Debug)]
pub struct Entry {
    fd: OwnedFd,
    facts: FileFacts,
}

impl Entry {
    /// The facts of the entry.
    pub fn facts(&self) -> &FileFacts {
        &self.facts
    }

    /// The target, if it is a link.
    pub fn link_target(&self) -> io::Result<PathBuf> {
        read_link(self.fd.as_fd(), OsStr::new(""))
    }

    /// The entry as a directory. Its entries can be opened even if it cannot be read.
    pub fn into_dir(self) -> Dir {
        Dir(self.fd)
    }
}

/// The property that [`copy_rights`] could not copy.
#[derive(Debug)]
pub enum NotCopied {
    /// Owner and mode could not be read or set.
    Mode(io::Error),
    /// An extended attribute with this name, or an access control list.
    Attribute(String, io::Error),
    /// The group, if it has permissions that others do not have: in the new file another group would get them.
    Group,
}

/// Copies owner, mode, extended attributes and access control list of `old` to `new`.
pub fn copy_rights(old: &File, new: &File) -> Result<(), NotCopied> {
    let mode = |errno: rustix::io::Errno| NotCopied::Mode(errno.into());
    let stat = rustix::fs::fstat(old).map_err(mode)?;
    // Only root can change the owner. Other users who may write the file own it already.
    let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let _ = rustix::fs::fchown(new, Some(owner), Some(group));
    let new_group = rustix::fs::fstat(new).map_err(mode)?.st_gid;
    let (of_group, of_others) = ((stat.st_mode >> 3) & 0o7, stat.st_mode & 0o7);
    if new_group != stat.st_gid && of_group & !of_others != 0 {
        return Err(NotCopied::Group);
    }
    // Before the mode: with an access control list, its group bits are the mask of the list.
    os::copy_attributes(old.as_fd(), new.as_fd())
        .map_err(|(name, errno)| NotCopied::Attribute(name, errno))?;
    rustix::fs::fchmod(new, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(mode)
}

/// Whether this process may execute a file.
pub fn may_execute(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Locks a file until it is closed; `false` if another process has it locked. Does not block.
pub fn try_lock(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Creates a directory and its missing parents for this user alone. An existing one stays as it is.
pub fn create_private_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a directory for this user alone. An error if it exists.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Creates a file for writing that only this user can access. An error if it exists.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Opens a file of any kind for reading, without blocking on a pipe. Links are followed.
pub fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
}

/// The facts of an entry in a directory; `None` if it is missing. A link is not followed.
pub(crate) fn facts_of(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<FileFacts>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat.into())),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The names of all entries of a directory, sorted.
pub(crate) fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(reopened(dir)?)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read_link(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<PathBuf> {
    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

/// The directory opened again, to be read from its beginning.
fn reopened(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, ".", DIRECTORY, Mode::empty())?)
}
