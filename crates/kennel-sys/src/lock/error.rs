//! Why a lock could not be had.

use std::io;
use std::path::{Path, PathBuf};

use super::Holder;
use crate::escape;
use crate::runtime_dir::{DirError, quoted};

/// Held by somebody, or out of reach: two things with opposite remedies (lesson 12).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody holds it.
    #[error("{} is held by {}", escape::path(path), by_whom(path, holder.as_deref()))]
    Held {
        /// The lock's file.
        path: PathBuf,
        /// Who, if that can be told.
        holder: Option<Box<Holder>>,
    },
    /// The system said no, which tells nothing about a holder.
    #[error(
        "cannot {what} the lock file {}: {source}; look at it with: ls -ld -- {}",
        escape::path(path),
        quoted(path)
    )]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// What was being done, as a verb.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl LockError {
    pub(super) fn io(path: &Path, what: &'static str, source: io::Error) -> LockError {
        let path = path.to_owned();
        LockError::Io { path, what, source }
    }

    pub(super) fn from_dir(path: &Path, error: DirError) -> LockError {
        match error {
            DirError::Io { what, source, .. } => LockError::io(path, what, source),
            other => LockError::io(path, "open", io::Error::other(other)),
        }
    }
}

/// Who holds the lock at `path`, in words: a pid, or how to find it.
pub(super) fn by_whom(path: &Path, holder: Option<&Holder>) -> String {
    match holder {
        Some(holder) => holder.to_string(),
        None => format!("somebody, pid unknown; to find it: {}", finding_line(path)),
    }
}

/// The line that lists who has `path` open.
fn finding_line(path: &Path) -> String {
    let on_path = |program: &str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
    };
    if on_path("lsof") {
        format!("lsof -- {}", quoted(path))
    } else {
        format!("fuser -v {}", quoted(path))
    }
}
