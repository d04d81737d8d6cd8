//! Why a directory was refused. Each message ends with the command that fixes it.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::fix::{self, Fix};
use super::place::OVERRIDE;

/// Why a runtime directory cannot be used. [`fix`](DirError::fix) returns the command that fixes it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirError {
    /// It is a symbolic link, which is not followed.
    #[error("{path} is a symbolic link to {target} (owner: uid {owner}), not a directory; {fix}")]
    Symlink {
        /// The path.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
        /// The owner of the link.
        owner: u32,
        /// How to fix it.
        fix: Fix,
    },
    /// It belongs to another user.
    #[error(
        "{path} is a {kind} of uid {owner}, not of uid {ours} (the user of this process); {fix}"
    )]
    WrongOwner {
        /// The path.
        path: PathBuf,
        /// The kind of file.
        kind: Kind,
        /// Its owner.
        owner: u32,
        /// The expected owner.
        ours: u32,
        /// How to fix it.
        fix: Fix,
    },
    /// Its mode lets other users in.
    #[error("{path} (owner: uid {owner}) has mode {mode:04o}, which lets others {}, instead of 0700; {fix}", others_can(.mode))]
    OpenToOthers {
        /// The path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// How to fix it.
        fix: Fix,
    },
    /// It is another kind of file.
    #[error("{path} is a {kind} (owner: uid {owner}), not a directory; {fix}")]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// The kind of file.
        kind: Kind,
        /// Its owner.
        owner: u32,
        /// How to fix it.
        fix: Fix,
    },
    /// Its mode does not let its owner in.
    #[error(
        "{path} (owner: uid {owner}) has mode {mode:04o}, which keeps its owner out, instead of 0700; {fix}"
    )]
    ClosedToOwner {
        /// The path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// How to fix it.
        fix: Fix,
    },
    /// The path is too long for a socket.
    #[error("the socket path {path} has {length} bytes, and the system allows {limit}; {fix}")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
        /// How to fix it.
        fix: Fix,
    },
    /// The value of the variable is not an absolute path.
    #[error("{OVERRIDE} is {value:?}, not an absolute path; to fix it: unset {OVERRIDE}")]
    BadOverride {
        /// Its value.
        value: OsString,
    },
    /// A name that is not a single path component.
    #[error("{name:?} cannot be the name of an entry of {path}: give one name without a slash")]
    BadName {
        /// The directory.
        path: PathBuf,
        /// The name.
        name: OsString,
    },
    /// A system error.
    #[error("cannot {what} {path}: {source}{}", io_advice(path, what, source))]
    Io {
        /// The path.
        path: PathBuf,
        /// The operation that failed, as a verb.
        what: &'static str,
        /// The error of the system.
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

    /// A shell command that fixes it, if there is one.
    pub fn fix(&self) -> Option<String> {
        match self {
            DirError::Symlink { fix, .. }
            | DirError::WrongOwner { fix, .. }
            | DirError::OpenToOthers { fix, .. }
            | DirError::NotADirectory { fix, .. }
            | DirError::ClosedToOwner { fix, .. }
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
        "read it"
    }
}

/// The kind of file at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A regular file.
    File,
    /// A socket or a pipe, which has no content.
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
