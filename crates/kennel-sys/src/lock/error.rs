//! Why a lock could not be taken.

use std::io;
use std::path::{Path, PathBuf};

use super::Holder;
use crate::escape;
use crate::runtime_dir::{DirError, quoted};

/// The lock is held, or its file cannot be used. The remedies are opposite (lesson 12).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is held by {}", escape::path(path), holder_text(path, holder.as_deref()))]
    Held {
        /// The lock's file.
        path: PathBuf,
        /// The holder, if known.
        holder: Option<Box<Holder>>,
    },
    /// A system error, which says nothing about a holder.
    #[error(
        "cannot {what} the lock file {}: {source}; look at it with: ls -ld -- {}",
        escape::path(path),
        quoted(path)
    )]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// The operation that failed, as a verb.
        what: &'static str,
        /// The error of the system.
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

/// The holder of the lock at `path` as text: a pid, or how to find it.
pub(super) fn holder_text(path: &Path, holder: Option<&Holder>) -> String {
    match holder {
        Some(holder) => holder.to_string(),
        None => format!(
            "another process, pid unknown; to find it: {}",
            search_command(path)
        ),
    }
}

/// A shell command that lists the processes with `path` open.
fn search_command(path: &Path) -> String {
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
