//! Whether the meeting place can be written to: tried, without leaving anything behind.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::{DirError, MeetingPlace};

/// As much as a record takes. A full file system may take an empty file and nothing in it.
const SAMPLE: [u8; 4096] = [0; 4096];

/// Why nothing can be written at a meeting place.
#[derive(Debug)]
pub enum Unwritable {
    /// It does not pass the gate.
    Refused(DirError),
    /// Writing into this directory failed.
    At(PathBuf, io::Error),
}

impl MeetingPlace {
    /// Writes into the directory, or into the one that it would be created in, and leaves nothing behind.
    pub fn probe(&self) -> Result<(), Unwritable> {
        if let Some(dir) = self.find().map_err(Unwritable::Refused)? {
            let at = |errno: Errno| Unwritable::At(dir.path.clone(), errno.into());
            return write_sample(dir.fd.as_fd()).map_err(at);
        }
        // It is created where somebody first needs it.
        let parent = self.usual().parent().unwrap_or(Path::new("/"));
        let at = |errno: Errno| Unwritable::At(parent.to_owned(), errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::openat(CWD, parent, flags, Mode::empty()).map_err(at)?;
        write_sample(parent.as_fd()).map_err(at)
    }
}

fn write_sample(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let file = nameless(dir)?;
    match rustix::io::write(&file, &SAMPLE)? {
        written if written < SAMPLE.len() => Err(Errno::NOSPC),
        _ => Ok(()),
    }
}

/// A file that goes when it is closed.
fn nameless(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, mode) {
        // Not every file system has files without a name.
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
        let place = MeetingPlace::new(&usual, scope.path("aside"));
        let entries = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
        let before = entries(usual.parent().unwrap());
        place.probe().expect("the parent can be written");
        assert_eq!(entries(usual.parent().unwrap()), before);
        place.ensure().expect("a directory");
        place.probe().expect("the directory can be written");
        assert_eq!(entries(&usual), 0);
    }

    #[test]
    fn a_place_where_nobody_can_write_is_named() {
        let place = MeetingPlace::new("/proc/kennel-of-a-test", "/proc/aside");
        match place.probe() {
            Err(Unwritable::At(path, _)) => assert_eq!(path, Path::new("/proc")),
            other => panic!("{other:?}"),
        }
    }
}
