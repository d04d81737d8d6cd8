//! Why a guard was refused.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kennel_sys::escape;
use kennel_sys::lock::LockError;
use kennel_sys::runtime_dir::DirError;

use crate::owner::OwnerError;

/// Why a guard was refused. Its text is the complete message for a person: the problem, the process involved, and the
/// remedy. Its debug text is the same, because `fn main() -> Result<(), Refusal>` prints that.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another process holds the store.
    #[error(
        "the store {} is in use: {lock}; a second process on it could corrupt it, so stop that one first or use another store",
        escape::path(store)
    )]
    InUse {
        /// The real path of the store.
        store: PathBuf,
        /// The lock, with its holder.
        lock: LockError,
    },
    /// A process of an earlier release holds the store, at the lock of that release.
    #[error(
        "the store {} is in use by an older release: {lock}; the two would corrupt it, so stop that one first",
        escape::path(store)
    )]
    InUseByOlder {
        /// The real path of the store.
        store: PathBuf,
        /// The lock, with its holder.
        lock: LockError,
    },
    /// The lock could not be examined, so a holder is unknown.
    #[error(transparent)]
    Lock(LockError),
    /// The runtime directory cannot be used.
    #[error(transparent)]
    RuntimeDir(#[from] DirError),
    /// The owner on the command line is invalid.
    #[error("bad owner: {0}")]
    Owner(#[from] OwnerError),
    /// A system error.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation that failed, as a verb with its object.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Refusal {
    /// Whether another process holds the store: a later attempt may succeed.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Refusal::InUse { .. } | Refusal::InUseByOlder { .. })
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Refusal {
        let what = what.into();
        |source| Refusal::Io { what, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_prints_the_text_of_a_refusal() {
        let refusal = Refusal::io("open the store diary.db")(io::ErrorKind::NotFound.into());
        let text = "cannot open the store diary.db: entity not found";
        assert_eq!(refusal.to_string(), text);
        // The standard library prints the debug text of an error that `main` returns.
        assert_eq!(format!("Error: {refusal:?}"), format!("Error: {text}"));
    }
}
