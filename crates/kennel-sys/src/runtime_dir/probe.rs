//! Checks whether the runtime directory can be written, without leaving a file behind.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::{DirError, RuntimeDirPaths};

/// The size of a record. On a full file system an empty file can be created, but not written.
const SAMPLE: [u8; 4096] = [0; 4096];

/// Why the runtime directory cannot be written.
#[derive(Debug)]
pub enum Unwritable {
    /// It does not pass the gate.
    Refused(DirError),
    /// Writing into this directory failed.
    At(PathBuf, io::Error),
}

impl RuntimeDirPaths {
    /// Writes a test file to the directory, or to its parent if it does not exist yet, and removes it.
    pub fn probe(&self) -> Result<(), Unwritable> {
        if let Some(dir) = self.find().map_err(Unwritable::Refused)? {
            let at = |errno: Errno| Unwritable::At(dir.path.clone(), errno.into());
            return write_sample(dir.fd.as_fd()).map_err(at);
        }
        // The directory is created when it is first needed.
        let parent = self.default_path().parent().unwrap_or(Path::new("/"));
        let at = |errno: Errno| Unwritable::At(parent.to_owned(), errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::openat(CWD, parent, flags, Mode::empty()).map_err(at)?;
        write_sample(parent.as_fd()).map_err(at)
    }
}

fn write_sample(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let file = unnamed_file(dir)?;
    match rustix::io::write(&file, &SAMPLE)? {
        written if written < SAMPLE.len() => Err(Errno::NOSPC),
        _ => Ok(()),
    }
}

/// A file without a name, which disappears when it is closed.
fn unnamed_file(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, mode) {
        // Some file systems do not support files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let name = format!(".kennel-probe-{}", std::process::id());
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(dir, &name, flags, mode)?;
            rustix::fs::unlinkat(dir, &name, AtFlags::empty())?;
            Ok(file)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn a_probe_leaves_nothing_behind_and_creates_nothing() {
        let scope = Scope::new("probe");
        let usual = scope.path("kennel");
        let place = RuntimeDirPaths::new(&usual, scope.path("aside"));
        let entries = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
        let before = entries(usual.parent().unwrap());
        place.probe().expect("the parent can be written");
        assert_eq!(entries(usual.parent().unwrap()), before);
        place.ensure().expect("a directory");
        place.probe().expect("the directory can be written");
        assert_eq!(entries(&usual), 0);
    }

    #[test]
    fn the_error_names_a_directory_that_cannot_be_written() {
        let place = RuntimeDirPaths::new("/proc/kennel-of-a-test", "/proc/aside");
        match place.probe() {
            Err(Unwritable::At(path, _)) => assert_eq!(path, Path::new("/proc")),
            other => panic!("{other:?}"),
        }
    }
}
