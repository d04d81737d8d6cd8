//! The directory where one user's processes meet: judged when it is opened, and from then on used
//! through the descriptor that was judged, so that nobody can put another in its place (rule 9).
//!
//! The place follows from the uid and not from the environment (rule 8). Only [`RuntimeDir::of_user`],
//! [`xdg`](RuntimeDir::xdg), [`ensure`](RuntimeDir::ensure) and [`subdir`](RuntimeDir::subdir) create
//! a directory; everything else looks, and leaves no trace.

mod error;
mod files;
mod fix;
mod gate;
mod paste;
mod patience;
mod place;
mod probe;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};

pub use error::{DirError, Kind};
pub use files::Access;
pub use fix::Fix;
pub use place::{MeetingPlace, OVERRIDE};
pub use probe::Unwritable;

pub(crate) use paste::quoted;
pub(crate) use patience::Patience;

use gate::Spot;
use place::Origin;

/// The longest path a unix socket can be bound to (`sun_path` without its final zero).
const SOCKET_PATH_LIMIT: usize = 107;

/// How long [`RuntimeDir::hold`] waits for a cleaner that is looking at the directory right now.
const CLEANER_PASSES: std::time::Duration = std::time::Duration::from_millis(500);

/// An open directory that passed the gate: a directory and no symbolic link, ours, closed to everybody else.
#[derive(Debug)]
pub struct RuntimeDir {
    fd: OwnedFd,
    path: PathBuf,
    origin: Origin,
}

/// While it lives, the directory is held: a cleaner of temporary files leaves all of it alone.
#[derive(Debug)]
pub struct Hold(OwnedFd);

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl RuntimeDir {
    /// The user's meeting place, created if it is missing.
    pub fn of_user() -> Result<RuntimeDir, DirError> {
        MeetingPlace::of_user()?.ensure()
    }

    /// The user's meeting place if it is there; creates nothing.
    pub fn find_of_user() -> Result<Option<RuntimeDir>, DirError> {
        MeetingPlace::of_user()?.find()
    }

    /// An application's own directory by the XDG convention: `$XDG_RUNTIME_DIR/<app>` where that
    /// passes the gate, else `<TMPDIR or /tmp>/<app>-<uid>`.
    ///
    /// Many apps start their servers without `XDG_RUNTIME_DIR`, so this is no place to meet
    /// (lesson 11): two processes of one user may be sent to two directories.
    pub fn xdg(app: &str) -> Result<RuntimeDir, DirError> {
        let environment = |name| std::env::var_os(name).map(PathBuf::from);
        place::xdg(app, environment("XDG_RUNTIME_DIR"), environment("TMPDIR"))
    }

    /// The directory at a path of the caller's choice, created if it is missing (its parent is not).
    pub fn ensure(path: impl AsRef<Path>) -> Result<RuntimeDir, DirError> {
        RuntimeDir::ensure_at(path.as_ref(), Origin::Caller)
    }

    /// The directory at a path of the caller's choice if it is there; creates nothing.
    pub fn open(path: impl AsRef<Path>) -> Result<Option<RuntimeDir>, DirError> {
        RuntimeDir::open_at(path.as_ref(), Origin::Caller)
    }

    fn ensure_at(path: &Path, origin: Origin) -> Result<RuntimeDir, DirError> {
        let path = plain(path)?;
        let fd = Spot::at_path(&path, origin).ensure()?;
        Ok(RuntimeDir { fd, path, origin })
    }

    fn open_at(path: &Path, origin: Origin) -> Result<Option<RuntimeDir>, DirError> {
        let path = plain(path)?;
        let fd = Spot::at_path(&path, origin).open()?;
        Ok(fd.map(|fd| RuntimeDir { fd, path, origin }))
    }

    /// A directory in this one, created if it is missing, that passed the same gate.
    pub fn subdir(&self, name: impl AsRef<OsStr>) -> Result<RuntimeDir, DirError> {
        let name = self.single(name.as_ref())?;
        let path = self.path.join(name);
        let fd = Spot::inside(self.fd.as_fd(), name, &path).ensure()?;
        let origin = self.origin;
        Ok(RuntimeDir { fd, path, origin })
    }

    /// A directory in this one if it is there; creates nothing.
    pub fn existing_subdir(&self, name: impl AsRef<OsStr>) -> Result<Option<RuntimeDir>, DirError> {
        let name = self.single(name.as_ref())?;
        let path = self.path.join(name);
        let fd = Spot::inside(self.fd.as_fd(), name, &path).open()?;
        let origin = self.origin;
        Ok(fd.map(|fd| RuntimeDir { fd, path, origin }))
    }

    /// Where it was found. For messages, and for what only a path can do (binding a socket).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory, as [`Launch::records`](crate::tree::Launch::records) has it.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether its path still leads to this very directory. One that was moved or removed takes no new work.
    pub fn is_at_its_path(&self) -> bool {
        let here = rustix::fs::fstat(&self.fd);
        let there = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        matches!((here, there), (Ok(here), Ok(there))
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    }

    /// The path for a socket in this directory; an error if no socket can be bound to it.
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

    /// Holds the directory: systemd's cleaner deletes even locked files, but never enters a locked directory.
    pub fn hold(&self) -> Result<Hold, DirError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())
            .map_err(|errno| self.failed("open", errno))?;
        let mut patience = Patience::of(CLEANER_PASSES);
        loop {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
                Ok(()) => return Ok(Hold(fd)),
                Err(rustix::io::Errno::WOULDBLOCK) if patience.pause() => {}
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.failed("hold", errno)),
            }
        }
    }

    fn failed(&self, what: &'static str, errno: rustix::io::Errno) -> DirError {
        DirError::io(&self.path, what, errno)
    }

    /// `name` if it is one plain component: nothing here leads out of the directory that was judged.
    fn single<'a>(&self, name: &'a OsStr) -> Result<&'a OsStr, DirError> {
        place::single(name).ok_or_else(|| DirError::BadName {
            path: self.path.clone(),
            name: name.to_owned(),
        })
    }
}

/// The path to use, on a platform that is served: what nobody can hold or watch is not created either.
fn plain(path: &Path) -> Result<PathBuf, DirError> {
    crate::os::require_served().map_err(|error| DirError::io(path, "use", error))?;
    place::plain(path)
}

impl AsFd for RuntimeDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
