//! Why a directory was refused, in words that end with what to do about it.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::fix::{self, Fix};
use super::place::OVERRIDE;

/// What keeps a runtime directory from being used. [`fix`](DirError::fix) is the line that helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirError {
    /// A symbolic link stands there, and none is followed.
    #[error("{path} is a symbolic link to {target} (owner: uid {owner}), not a directory; {fix}")]
    Symlink {
        /// Where.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
        /// Whose link it is.
        owner: u32,
        /// What helps.
        fix: Fix,
    },
    /// What stands there belongs to somebody else.
    #[error("{path} is a {kind} of uid {owner}, not of uid {ours} which this runs as; {fix}")]
    WrongOwner {
        /// Where.
        path: PathBuf,
        /// What stands there.
        kind: Kind,
        /// Whose it is.
        owner: u32,
        /// Whose it should be.
        ours: u32,
        /// What helps.
        fix: Fix,
    },
    /// Others than its owner can get at it.
    #[error("{path} (owner: uid {owner}) has mode {mode:04o}, which lets others {}, instead of 0700; {fix}", others_can(.mode))]
    Loose {
        /// Where.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Whose it is.
        owner: u32,
        /// What helps.
        fix: Fix,
    },
    /// Something else stands there.
    #[error("{path} is a {kind} (owner: uid {owner}), not a directory; {fix}")]
    NotADirectory {
        /// Where.
        path: PathBuf,
        /// What stands there.
        kind: Kind,
        /// Whose it is.
        owner: u32,
        /// What helps.
        fix: Fix,
    },
    /// Not even its owner can use it.
    #[error(
        "{path} (owner: uid {owner}) has mode {mode:04o}, which keeps its owner out, instead of 0700; {fix}"
    )]
    Shut {
        /// Where.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Whose it is.
        owner: u32,
        /// What helps.
        fix: Fix,
    },
    /// No socket can be bound to a path that long.
    #[error("the socket path {path} has {length} bytes, and the system allows {limit}; {fix}")]
    TooLong {
        /// Which.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// The longest that can be bound.
        limit: usize,
        /// What helps.
        fix: Fix,
    },
    /// The variable names no absolute path.
    #[error("{OVERRIDE} is {value:?}, not an absolute path; to fix it: unset {OVERRIDE}")]
    BadOverride {
        /// Its value.
        value: OsString,
    },
    /// A name that is not one plain component of a path.
    #[error("{name:?} cannot be the name of an entry of {path}: give one name without a slash")]
    BadName {
        /// The directory.
        path: PathBuf,
        /// The name.
        name: OsString,
    },
    /// The system said no.
    #[error("cannot {what} {path}: {source}{}", io_advice(path, what, source))]
    Io {
        /// On what.
        path: PathBuf,
        /// What was being done, as a verb.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl DirError {
    pub(super) fn io(path: &Path, what: &'static str, source: impl Into<io::Error>) -> DirError {
        DirError::Io {
            path: path.to_owned(),
            what,
            source: source.into(),
        }
    }

    /// The line that puts it right when it is pasted into a shell by whoever reads it, if there is one.
    pub fn fix(&self) -> Option<String> {
        match self {
            DirError::Symlink { fix, .. }
            | DirError::WrongOwner { fix, .. }
            | DirError::Loose { fix, .. }
            | DirError::NotADirectory { fix, .. }
            | DirError::Shut { fix, .. }
            | DirError::TooLong { fix, .. } => fix.line().map(str::to_owned),
            DirError::BadOverride { .. } => Some(format!("unset {OVERRIDE}")),
            DirError::Io { path, what, source } => fix::for_missing_parent(path, what, source),
            DirError::BadName { .. } => None,
        }
    }
}

fn io_advice(path: &Path, what: &str, source: &io::Error) -> String {
    fix::for_missing_parent(path, what, source)
        .map(|line| format!("; to fix it: {line}"))
        .unwrap_or_default()
}

fn others_can(mode: &u32) -> &'static str {
    if mode & 0o022 != 0 {
        "write to it"
    } else {
        "look into it"
    }
}

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A regular file.
    File,
    /// A socket or a pipe: something with no content of its own.
    Channel,
    /// A device.
    Device,
}

impl Kind {
    pub(super) fn of(stat: &Stat) -> Kind {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Socket | FileType::Fifo => Kind::Channel,
            FileType::CharacterDevice | FileType::BlockDevice => Kind::Device,
            _ => Kind::File,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Directory => "directory",
            Kind::Symlink => "symbolic link",
            Kind::File => "file",
            Kind::Channel => "socket or pipe",
            Kind::Device => "device",
        })
    }
}
