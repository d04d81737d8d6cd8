//! Where a store is: its real path, whatever it was called, and the files that belong to it.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use kennel_guard::GuardBuilder;

use crate::cli;
use crate::failure::Failure;

/// The names SQLite gives to what it keeps beside a database.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// One store: every path is absolute and free of symbolic links, so that what is checked, locked
/// and deleted is one and the same file.
#[derive(Debug)]
pub(crate) struct Place {
    /// The database; it need not exist yet.
    pub(crate) db: PathBuf,
    /// Where older releases kept their lock; never created here.
    pub(crate) legacy_lock: PathBuf,
    /// The database as it was given.
    spelled: PathBuf,
}

impl Place {
    pub(crate) fn of(store: &cli::Store) -> Result<Place, Failure> {
        let db = real_path(&store.db)?;
        let legacy_lock = match &store.legacy_lock {
            Some(path) => real_path(path)?,
            None => with_suffix(&db, ".lock"),
        };
        Ok(Place {
            db,
            legacy_lock,
            spelled: store.db.clone(),
        })
    }

    /// What guards this store: to be taken, probed or seized.
    pub(crate) fn guarded_by(&self, guard: GuardBuilder) -> GuardBuilder {
        guard.store(&self.db).legacy_lock(&self.legacy_lock)
    }

    /// The paths of the database and of what SQLite may keep beside it.
    pub(crate) fn database_files(&self) -> Vec<PathBuf> {
        let companions = COMPANIONS.iter().map(|name| with_suffix(&self.db, name));
        std::iter::once(self.db.clone()).chain(companions).collect()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.db.display())?;
        if self.spelled != self.db {
            write!(f, " (given as {})", self.spelled.display())?;
        }
        Ok(())
    }
}

fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    kennel_guard::real_path(path).map_err(|error| {
        Failure::refused(format!(
            "cannot use {} as a path: {error}; name a file, in a directory you may search",
            path.display()
        ))
    })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}
