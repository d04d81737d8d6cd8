//! Resolves a path step by step: opens each directory relative to the one before it, and checks the owner of each link
//! before following it. Everything that was checked stays open, so that it cannot be swapped afterwards.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use kennel_sys::fs::{Dir, FileFacts};
use kennel_sys::user::UserId;

use crate::checked_dir::{self, MAX_LINKS};

/// The open directory of a file, and the file's name in it.
#[derive(Debug, Clone)]
pub(crate) struct FileInDir {
    dir: Rc<Dir>,
    name: OsString,
    /// The path without links, for messages and records.
    pub(crate) real: PathBuf,
}

impl FileInDir {
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Present facts about the file; a link is not followed.
    pub(crate) fn facts(&self) -> io::Result<FileFacts> {
        let facts = self.dir.facts_of(&self.name)?;
        facts.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Finds the regular file at `path`.
///
/// Follows a link if its owner is this user or root; the last one of the path may also belong to the file's owner.
pub(crate) fn find(path: &Path) -> Result<FileInDir, String> {
    let failed = |error: io::Error| error.to_string();
    let path = std::path::absolute(path).map_err(failed)?;
    let root = Dir::root().map_err(failed)?;
    let mut dirs: Vec<(Rc<Dir>, PathBuf)> = vec![(Rc::new(root), PathBuf::from("/"))];
    let mut steps = checked_dir::steps(&path);
    let mut last_link: Option<(PathBuf, UserId)> = None;
    let mut links = 0;
    while let Some(step) = steps.pop() {
        if step == ".." {
            dirs.truncate(dirs.len().saturating_sub(1).max(1));
            continue;
        }
        let (dir, at) = dirs
            .last()
            .cloned()
            .expect("the root directory has no parent");
        let here = at.join(&step);
        let entry = dir.entry(&step).map_err(failed)?;
        let (facts, owner) = (*entry.facts(), entry.facts().owner());
        if facts.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err("too many links".to_owned());
            }
            if !owner.is_current() && !owner.is_root() {
                if !steps.is_empty() {
                    return Err(foreign_link(&here, owner));
                }
                last_link = Some((here, owner));
            }
            let target = entry.link_target().map_err(failed)?;
            if target.is_absolute() {
                dirs.truncate(1);
            }
            steps.extend(checked_dir::steps(&target));
        } else if facts.is_dir() {
            dirs.push((Rc::new(entry.into_dir()), here));
        } else if !steps.is_empty() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        } else if facts.is_file() {
            if let Some((link, theirs)) = last_link.filter(|(_, theirs)| *theirs != owner) {
                return Err(foreign_link(&link, theirs));
            }
            return Ok(FileInDir {
                dir,
                name: step,
                real: here,
            });
        } else {
            break;
        }
    }
    Err("not a regular file".to_owned())
}

fn foreign_link(link: &Path, owner: UserId) -> String {
    format!(
        "{} is a link of {owner}, who could redirect it to another file; name the target itself, if you want to change it",
        link.display()
    )
}
