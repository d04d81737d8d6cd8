//! What a store consists of on disk, by group, with sizes. Looking creates nothing: SQLite is not
//! asked, for opening a database writes beside it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kennel_guard::GuardBuilder;

use crate::failure::Failure;
use crate::place::Place;

/// A lock file holds a line or two; what is larger was not made by an older notes (lesson 15).
const LOCK_SIZE: u64 = 4096;

/// The files of a store that exist, by group.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Inventory {
    /// The database, then what SQLite keeps beside it.
    pub(crate) database: Vec<Entry>,
    /// The store's lock in the runtime directory.
    pub(crate) runtime: Vec<Entry>,
    /// The lock of older releases.
    pub(crate) legacy: Vec<Entry>,
}

/// Something that exists at a path of the store.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Why this is no file of ours, whatever its name, and stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_alone: Option<&'static str>,
}

impl Inventory {
    pub(crate) fn of(place: &Place, guard: &GuardBuilder) -> Result<Inventory, Failure> {
        let locks = guard.runtime_files().map_err(Failure::failed)?;
        let mut legacy = existing(vec![place.legacy_lock.clone()])?;
        for entry in &mut legacy {
            if entry.bytes > LOCK_SIZE {
                entry.left_alone.get_or_insert("too large for a lock file");
            }
        }
        Ok(Inventory {
            database: existing(place.database_files())?,
            runtime: existing(locks)?,
            legacy,
        })
    }

    /// Whether there is nothing that an uninstall would remove.
    pub(crate) fn is_empty(&self) -> bool {
        let mut entries = self.groups().into_iter().flat_map(|(_, entries)| entries);
        entries.all(|entry| entry.left_alone.is_some())
    }

    fn groups(&self) -> [(&'static str, &[Entry]); 3] {
        [
            ("database", &self.database),
            ("runtime", &self.runtime),
            ("legacy lock", &self.legacy),
        ]
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, entries) in self.groups() {
            match entries {
                [] => writeln!(f, "{name}: none")?,
                _ => writeln!(f, "{name}:")?,
            }
            for entry in entries {
                write!(f, "  {}  ", entry.path.display())?;
                match entry.left_alone {
                    None => writeln!(f, "{}", Size(entry.bytes))?,
                    Some(why) => writeln!(f, "left alone: {why}")?,
                }
            }
        }
        Ok(())
    }
}

/// A number of bytes as people read it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => write!(f, "1 byte"),
            bytes @ ..10_000 => write!(f, "{bytes} bytes"),
            bytes @ ..10_000_000 => write!(f, "{} kB", bytes / 1_000),
            bytes => write!(f, "{} MB", bytes / 1_000_000),
        }
    }
}

fn existing(paths: Vec<PathBuf>) -> Result<Vec<Entry>, Failure> {
    let entries = paths.iter().map(|path| entry_at(path));
    entries.filter_map(Result::transpose).collect()
}

/// What is at `path` itself: a symbolic link is not looked through.
fn entry_at(path: &Path) -> Result<Option<Entry>, Failure> {
    match path.symlink_metadata() {
        Ok(meta) => Ok(Some(Entry {
            path: path.to_path_buf(),
            bytes: meta.len(),
            left_alone: (!meta.is_file()).then_some("not a regular file"),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::failed(format!(
            "cannot look at {}: {error}",
            path.display()
        ))),
    }
}
