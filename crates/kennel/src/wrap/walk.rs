//! Where a path leads, step by step: each directory is opened relative to the one before it, and each link is
//! judged by its owner before it is followed. What was judged stays open, so that nobody can swap it afterwards.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{FileType, Mode, OFlags, Stat};

/// The most links that one path may lead through, as in the kernel.
const MAX_LINKS: usize = 40;

/// A file's directory, open, and its name there.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    dir: Rc<OwnedFd>,
    name: OsString,
    /// The path without links, for messages and records.
    pub(crate) real: PathBuf,
}

impl Spot {
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// The file as it is now; a link is not followed.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::statat(self.dir(), &self.name, nofollow)?)
    }
}

/// Finds the regular file at `path`.
///
/// A link is followed if its owner is us or root. The last one of the path may also be of the file's owner.
pub(crate) fn find(path: &Path) -> Result<Spot, String> {
    let failed = |error: rustix::io::Errno| io::Error::from(error).to_string();
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
    let mut dirs: Vec<(Rc<OwnedFd>, PathBuf)> = vec![(Rc::new(root), PathBuf::from("/"))];
    let mut steps = steps(&path);
    let mut last_link: Option<(PathBuf, u32)> = None;
    let mut links = 0;
    while let Some(step) = steps.pop_front() {
        if step == ".." {
            dirs.truncate(dirs.len().saturating_sub(1).max(1));
            continue;
        }
        let (dir, at) = dirs.last().cloned().expect("the root stays");
        let here = at.join(&step);
        let entry = rustix::fs::openat(&*dir, &step, flags, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&entry).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err("too many links".to_owned());
                }
                let us = rustix::process::geteuid().as_raw();
                if ![us, 0].contains(&stat.st_uid) {
                    if !steps.is_empty() {
                        return Err(foreign_link(&here, stat.st_uid));
                    }
                    last_link = Some((here, stat.st_uid));
                }
                let target = rustix::fs::readlinkat(&entry, "", Vec::new()).map_err(failed)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    dirs.truncate(1);
                }
                for step in self::steps(&target).into_iter().rev() {
                    steps.push_front(step);
                }
            }
            FileType::Directory => dirs.push((Rc::new(entry), here)),
            _ if !steps.is_empty() => return Err(failed(rustix::io::Errno::NOTDIR)),
            FileType::RegularFile => {
                if let Some((link, owner)) = last_link.filter(|(_, uid)| *uid != stat.st_uid) {
                    return Err(foreign_link(&link, owner));
                }
                return Ok(Spot {
                    dir,
                    name: step,
                    real: here,
                });
            }
            _ => break,
        }
    }
    Err("not a regular file, as a configuration is".to_owned())
}

fn foreign_link(link: &Path, owner: u32) -> String {
    format!(
        "{} is a link of uid {owner}, who could lead you to another file; name the file itself, if you mean the one behind it",
        link.display()
    )
}

fn steps(path: &Path) -> VecDeque<OsString> {
    let steps = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    steps.collect()
}
