//! The command that fixes a refused directory, for the person who reads the error.
//!
//! People paste it in a hurry, so it must do no harm: files of others are never deleted, and a directory or file that is
//! not Kennel's stays where it is.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, OFlags};

use super::error::Kind;
use super::gate::{OTHERS, our_uid};
use super::paste::quoted;
use super::place::{OVERRIDE, Origin};
use crate::fs::{is_on_read_only_fs, mode_of};

/// The name of the directory that is proposed in the user's home if no other is possible.
const OWN_NAME: &str = ".kennel-run";
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;

/// The remedy for a refusal. Its text form ends with the command to paste.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fix {
    line: Option<String>,
    /// Another command, which needs the rights of an administrator.
    also: Option<String>,
    /// Whether the file system is read-only, so the file at the path cannot be changed.
    read_only: bool,
}

impl Fix {
    /// The command to paste, if there is one.
    pub fn line(&self) -> Option<&str> {
        self.line.as_deref()
    }

    fn by(line: String) -> Fix {
        let line = Some(line);
        Fix {
            line,
            ..Fix::default()
        }
    }

    /// A command that moves or removes the file at `path`, unless its file system is read-only.
    fn by_changing(path: &Path, origin: Origin, line: String) -> Fix {
        let read_only = path.parent().is_some_and(is_on_read_only_fs);
        Fix::or_other_dir(read_only, origin, line)
    }

    /// A command that closes the directory at `path` to other users, unless its file system is read-only.
    fn by_chmod(path: &Path, origin: Origin) -> Fix {
        let line = format!("chmod 700 -- {}", quoted(path));
        Fix::or_other_dir(is_on_read_only_fs(path), origin, line)
    }

    /// The command `line`, or another directory if the file system is read-only.
    fn or_other_dir(read_only: bool, origin: Origin, line: String) -> Fix {
        let fix = match read_only {
            true => Fix::elsewhere(origin),
            false => Fix::by(line),
        };
        Fix { read_only, ..fix }
    }

    /// Proposes another directory.
    fn elsewhere(origin: Origin) -> Fix {
        let line = match origin {
            Origin::Uid | Origin::Override => {
                Some(format!("export {OVERRIDE}=\"$HOME/{OWN_NAME}\""))
            }
            Origin::Xdg => Some("export TMPDIR=\"$HOME\"".to_owned()),
            Origin::Caller | Origin::Inside => None,
        };
        Fix {
            line,
            ..Fix::default()
        }
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.read_only {
            f.write_str("its file system is read-only; ")?;
        }
        match (&self.line, &self.also) {
            (Some(line), None) => write!(f, "to fix it: {line}"),
            (Some(line), Some(also)) => write!(
                f,
                "to fix it, an administrator runs: {also}; or, wherever this is started: {line}"
            ),
            (None, Some(also)) => write!(f, "to fix it, an administrator runs: {also}"),
            (None, None) => f.write_str("choose another directory"),
        }
    }
}

pub(super) fn for_symlink(path: &Path, origin: Origin) -> Fix {
    match is_system_path(path) {
        _ if belongs_to_kennel(path, origin) => removed(path, origin),
        true => Fix::elsewhere(origin),
        false if is_chosen_by_person(path, origin) => Fix::by(format!("unset {OVERRIDE}")),
        false => removed(path, origin),
    }
}

pub(super) fn for_file(path: &Path, origin: Origin, kind: Kind, empty: bool) -> Fix {
    match kind {
        Kind::Device => Fix::elsewhere(origin),
        _ if kind != Kind::File && is_chosen_by_person(path, origin) => {
            Fix::by(format!("unset {OVERRIDE}"))
        }
        Kind::File if !empty && !belongs_to_kennel(path, origin) => moved_aside(path, origin),
        _ => removed(path, origin),
    }
}

pub(super) fn for_open_mode(path: &Path, origin: Origin, mode: u32, dir: BorrowedFd<'_>) -> Fix {
    let content = match Content::of(dir) {
        Content::Nothing => Content::Nothing,
        _ if belongs_to_kennel(path, origin) => Content::Kennel,
        other => other,
    };
    // In a directory that only its owner can enter, no other user can have left files.
    let open_to_others = mode & OTHERS_WRITE != 0 && origin != Origin::Inside;
    match content {
        Content::Others => Fix::elsewhere(origin),
        _ if !open_to_others => Fix::by_chmod(path, origin),
        Content::Nothing => Fix::by_changing(path, origin, format!("rmdir -- {}", quoted(path))),
        Content::Private | Content::Kennel => moved_aside(path, origin),
    }
}

pub(super) fn for_closed_mode(path: &Path, origin: Origin) -> Fix {
    Fix::by_chmod(path, origin)
}

pub(super) fn for_foreign(path: &Path, origin: Origin) -> Fix {
    let elsewhere = Fix::elsewhere(origin);
    let Some(parent) = path.parent() else {
        return elsewhere;
    };
    if !belongs_to_kennel(path, origin) && elsewhere.line.is_some() {
        return elsewhere;
    }
    let sticky = parent
        .metadata()
        .is_ok_and(|parent| parent.mode() & STICKY != 0 && parent.uid() != our_uid());
    let writable = rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let root = our_uid() == 0;
    if root || (writable && !sticky) {
        return Fix::by_changing(path, origin, moved(path, "foreign"));
    }
    // Only in a public directory may it be another user's attack; elsewhere the owner is entitled to it.
    let occupied = sticky && !is_on_read_only_fs(parent);
    let also = occupied.then(|| format!("sudo {}", moved(path, "foreign")));
    Fix { also, ..elsewhere }
}

/// The remedy for a path that is too long for a socket.
pub(super) fn for_long_path(origin: Origin) -> Fix {
    Fix::elsewhere(origin)
}

pub(super) fn for_missing_parent(path: &Path, what: &str, source: &io::Error) -> Option<String> {
    let parent = path.parent()?;
    let missing = what == "create" && source.kind() == io::ErrorKind::NotFound;
    missing.then(|| format!("mkdir -p -- {}", quoted(parent)))
}

/// Whether the file at `path` is Kennel's to remove, because of its place or its name.
fn belongs_to_kennel(path: &Path, origin: Origin) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let by_name = name.is_some_and(|name| {
        let uid = name.strip_prefix("kennel-");
        name == OWN_NAME || uid.is_some_and(|uid| uid.bytes().all(|byte| byte.is_ascii_digit()))
    });
    by_name || matches!(origin, Origin::Uid | Origin::Inside)
}

/// Whether a person chose the path, and Kennel never created the file: it may be in use, and is not Kennel's to remove.
fn is_chosen_by_person(path: &Path, origin: Origin) -> bool {
    origin == Origin::Override && !belongs_to_kennel(path, origin)
}

/// Whether root sees an error about a system directory (`/var/run`), which is neither private nor public.
fn is_system_path(path: &Path) -> bool {
    let systems = |dir: &Path| {
        dir.metadata()
            .is_ok_and(|dir| dir.uid() == 0 && dir.mode() & 0o001 != 0 && dir.mode() & STICKY == 0)
    };
    our_uid() == 0 && path.ancestors().skip(1).all(systems)
}

/// The owner of a directory, judged by its content.
enum Content {
    Kennel,
    Nothing,
    /// Closed to others, as Kennel's directories are, and also those of people.
    Private,
    /// Files or directories that Kennel never creates, or that are open to others.
    Others,
}

impl Content {
    fn of(dir: BorrowedFd<'_>) -> Content {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rustix::fs::openat(dir, ".", flags, Mode::empty()).and_then(Dir::new);
        let Ok(mut listing) = listing else {
            return Content::Others;
        };
        let mut content = Content::Nothing;
        while let Some(entry) = listing.read() {
            let Ok(entry) = entry else {
                return Content::Others;
            };
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let private = stat.is_ok_and(|stat| {
                let socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
                stat.st_uid == our_uid() && (socket || mode_of(&stat) & OTHERS == 0)
            });
            if !private {
                return Content::Others;
            }
            content = Content::Private;
        }
        content
    }
}

fn removed(path: &Path, origin: Origin) -> Fix {
    Fix::by_changing(path, origin, format!("rm -f -- {}", quoted(path)))
}

fn moved_aside(path: &Path, origin: Origin) -> Fix {
    Fix::by_changing(path, origin, moved(path, "aside"))
}

/// A command that moves `path` to a free name.
fn moved(path: &Path, suffix: &str) -> String {
    let named = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(".");
        name.push(suffix);
        PathBuf::from(name)
    };
    let free = std::iter::once(named(suffix))
        .chain((2..100).map(|number| named(&format!("{suffix}-{number}"))))
        .find(|name| name.symlink_metadata().is_err())
        .unwrap_or_else(|| named(suffix));
    // `-T`: if another user plants a link or a directory under the free name, nothing is moved into it.
    format!("mv -T -- {} {}", quoted(path), quoted(&free))
}
