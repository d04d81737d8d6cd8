//! Why there is no guard.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kennel_sys::escape;
use kennel_sys::lock::LockError;
use kennel_sys::runtime_dir::DirError;

use crate::owner::OwnerError;

/// Why a guard could not be had. Its text is the whole message for a person: what is the matter, who
/// is concerned, what to do. Its debug text is the same: that is what `fn main() -> Result<(), Refusal>` prints.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Somebody else has the store.
    #[error(
        "the store {} is in use: {lock}; a second process on it could corrupt it, so stop that one first or use another store",
        escape::path(store)
    )]
    InUse {
        /// The store's real path.
        store: PathBuf,
        /// Which lock, and who holds it.
        lock: LockError,
    },
    /// A process of an earlier release has the store, at the place where that one kept its lock.
    #[error(
        "the store {} is in use by an older release: {lock}; the two would corrupt it, so stop that one first",
        escape::path(store)
    )]
    InUseByOlder {
        /// The store's real path.
        store: PathBuf,
        /// Which lock, and who holds it.
        lock: LockError,
    },
    /// The lock could not be looked at: no statement about a holder.
    #[error(transparent)]
    Lock(LockError),
    /// The place where locks live cannot be trusted or had.
    #[error(transparent)]
    RuntimeDir(#[from] DirError),
    /// The owner given on the command line is none.
    #[error("bad owner: {0}")]
    Owner(#[from] OwnerError),
    /// The system said no.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was being done, as a verb with its object.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Refusal {
    /// Whether somebody else has the store: another attempt may work later.
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
    fn what_main_prints_of_a_refusal_is_its_text() {
        let refusal = Refusal::io("open the store diary.db")(io::ErrorKind::NotFound.into());
        let text = "cannot open the store diary.db: entity not found";
        assert_eq!(refusal.to_string(), text);
        // The standard library prints the debug text of what `main` returns.
        assert_eq!(format!("Error: {refusal:?}"), format!("Error: {text}"));
    }
}
