//! The runtime directory of a user: checked when it is opened, and then used through that descriptor, so that no process
//! can replace it (rule 9).
//!
//! Its path follows from the uid and not from the environment (rule 8). Only [`RuntimeDir::of_user`],
//! [`xdg`](RuntimeDir::xdg), [`ensure`](RuntimeDir::ensure) and [`subdir`](RuntimeDir::subdir) create a directory; all
//! other functions change nothing.

mod error;
mod files;
mod fix;
mod gate;
mod paste;
mod place;
mod probe;
mod retry_time;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};

pub use error::{DirError, Kind};
pub use files::Access;
pub use fix::Fix;
pub use place::{OVERRIDE, RuntimeDirPaths};
pub use probe::Unwritable;

pub(crate) use paste::quoted;
pub(crate) use retry_time::RetryTime;

use gate::DirLocation;
use place::Origin;

/// Maximum length of the path of a Unix socket (`sun_path` without its final zero).
const SOCKET_PATH_LIMIT: usize = 107;

/// Time for which [`RuntimeDir::hold`] waits for a cleaner that has the directory locked.
const MAX_WAIT_FOR_CLEANER: std::time::Duration = std::time::Duration::from_millis(500);

/// An open directory that passed the gate: no symbolic link, owned by this user, closed to all others.
#[derive(Debug)]
pub struct RuntimeDir {
    fd: OwnedFd,
    path: PathBuf,
    origin: Origin,
}

/// A lock on the directory. While it exists, cleaners of temporary files leave the directory alone.
#[derive(Debug)]
pub struct Hold(OwnedFd);

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl RuntimeDir {
    /// Opens the user's runtime directory, and creates it if it is missing.
    pub fn of_user() -> Result<RuntimeDir, DirError> {
        RuntimeDirPaths::of_user()?.ensure()
    }

    /// Opens the user's runtime directory if it exists.
    pub fn find_of_user() -> Result<Option<RuntimeDir>, DirError> {
        RuntimeDirPaths::of_user()?.find()
    }

    /// The directory of an application by the XDG convention: `$XDG_RUNTIME_DIR/<app>` if that passes the gate, else
    /// `<TMPDIR or /tmp>/<app>-<uid>`.
    ///
    /// Many apps start their servers without `XDG_RUNTIME_DIR`, so two processes of one user may get two directories: it is
    /// not suited as a common place (lesson 11).
    pub fn xdg(app: &str) -> Result<RuntimeDir, DirError> {
        let environment = |name| std::env::var_os(name).map(PathBuf::from);
        place::xdg(app, environment("XDG_RUNTIME_DIR"), environment("TMPDIR"))
    }

    /// Opens the directory at `path`, and creates it if it is missing (but not its parent).
    pub fn ensure(path: impl AsRef<Path>) -> Result<RuntimeDir, DirError> {
        RuntimeDir::ensure_at(path.as_ref(), Origin::Caller)
    }

    /// Opens the directory at `path` if it exists.
    pub fn open(path: impl AsRef<Path>) -> Result<Option<RuntimeDir>, DirError> {
        RuntimeDir::open_at(path.as_ref(), Origin::Caller)
    }

    fn ensure_at(path: &Path, origin: Origin) -> Result<RuntimeDir, DirError> {
        let path = plain(path)?;
        let fd = DirLocation::at_path(&path, origin).ensure()?;
        Ok(RuntimeDir { fd, path, origin })
    }

    fn open_at(path: &Path, origin: Origin) -> Result<Option<RuntimeDir>, DirError> {
        let path = plain(path)?;
        let fd = DirLocation::at_path(&path, origin).open()?;
        Ok(fd.map(|fd| RuntimeDir { fd, path, origin }))
    }

    /// Opens a subdirectory, which must pass the same gate, and creates it if it is missing.
    pub fn subdir(&self, name: impl AsRef<OsStr>) -> Result<RuntimeDir, DirError> {
        let name = self.single(name.as_ref())?;
        let path = self.path.join(name);
        let fd = DirLocation::inside(self.fd.as_fd(), name, &path).ensure()?;
        let origin = self.origin;
        Ok(RuntimeDir { fd, path, origin })
    }

    /// Opens a subdirectory if it exists.
    pub fn existing_subdir(&self, name: impl AsRef<OsStr>) -> Result<Option<RuntimeDir>, DirError> {
        let name = self.single(name.as_ref())?;
        let path = self.path.join(name);
        let fd = DirLocation::inside(self.fd.as_fd(), name, &path).open()?;
        let origin = self.origin;
        Ok(fd.map(|fd| RuntimeDir { fd, path, origin }))
    }

    /// Its path when it was opened. For messages, and for calls that need a path (binding a socket).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory, for [`Launch::records`](crate::tree::Launch::records).
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether its path still leads to this directory. A directory that was moved or removed must get no new sessions.
    pub fn is_at_its_path(&self) -> bool {
        let here = rustix::fs::fstat(&self.fd);
        let there = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        matches!((here, there), (Ok(here), Ok(there))
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    }

    /// Whether a path leads to this directory, also through links.
    pub fn is_at(&self, path: &Path) -> bool {
        let here = rustix::fs::fstat(&self.fd);
        let there = rustix::fs::stat(path);
        matches!((here, there), (Ok(here), Ok(there))
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    }

    /// The path for a socket in this directory; an error if it is too long.
    pub fn socket_path(&self, name: impl AsRef<OsStr>) -> Result<PathBuf, DirError> {
        let path = self.path.join(self.single(name.as_ref())?);
        let length = path.as_os_str().len();
        if length <= SOCKET_PATH_LIMIT {
            return Ok(path);
        }
        Err(DirError::TooLong {
            path,
            length,
            limit: SOCKET_PATH_LIMIT,
            fix: fix::for_long_path(self.origin),
        })
    }

    /// Holds the directory. The cleaner of systemd deletes even locked files, but does not enter a locked directory.
    pub fn hold(&self) -> Result<Hold, DirError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())
            .map_err(|errno| self.failed("open", errno))?;
        let mut retry_time = RetryTime::of(MAX_WAIT_FOR_CLEANER);
        loop {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
                Ok(()) => return Ok(Hold(fd)),
                Err(rustix::io::Errno::WOULDBLOCK) if retry_time.pause() => {}
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.failed("hold", errno)),
            }
        }
    }

    fn failed(&self, what: &'static str, errno: rustix::io::Errno) -> DirError {
        DirError::io(&self.path, what, errno)
    }

    /// `name` if it is a single path component, so that it cannot lead out of the directory.
    fn single<'a>(&self, name: &'a OsStr) -> Result<&'a OsStr, DirError> {
        place::single(name).ok_or_else(|| DirError::BadName {
            path: self.path.clone(),
            name: name.to_owned(),
        })
    }
}

/// The normalized path, if this platform is served: otherwise nothing is created.
fn plain(path: &Path) -> Result<PathBuf, DirError> {
    crate::os::require_served().map_err(|error| DirError::io(path, "use", error))?;
    place::plain(path)
}

impl AsFd for RuntimeDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
