//! The notes on disk: SQLite in WAL mode. What a call here returns has been committed, and survives
//! any kill (rule 5).

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rmcp::schemars;
use rusqlite::types::FromSql;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, TransactionBehavior, params};

/// Marks a database as ours (`PRAGMA application_id`): "note" in ASCII.
const APPLICATION_ID: i32 = 0x6e6f_7465;
/// The layout below (`PRAGMA user_version`).
const LAYOUT: i32 = 1;
/// How long a write waits for another `--coexist` writer.
const BUSY: Duration = Duration::from_secs(3);
/// How often two servers may get in each other's way while they begin a database.
const TRIES: u32 = 100;

/// One store. Nothing is touched until the first call, nothing is created until the first write.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    db: Option<Connection>,
}

/// A note as it is kept.
#[derive(Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Note {
    /// The number that `get_note` takes
    pub(crate) id: i64,
    /// The key, if it was written by `put_note`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The title, if it was given one
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) title: Option<String>,
    /// What it says
    pub(crate) text: String,
}

/// The newest notes that were asked for, and how many there are in all.
#[derive(Debug, Default, PartialEq, serde::Serialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Page {
    /// Newest first
    pub(crate) notes: Vec<Note>,
    /// How many there are, shown here or not
    pub(crate) total: i64,
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("there is no note {0}: list_notes shows which there are")]
    NoSuchNote(i64),
    #[error("{0} is empty: give it some text")]
    Empty(&'static str),
    #[error("{} is a database of another program: give --db a path of its own", path.display())]
    Foreign { path: PathBuf },
    #[error("{} was written by a newer notes (layout {found}, known is {LAYOUT}): update notes", path.display())]
    Newer { path: PathBuf, found: i32 },
    #[error("cannot {act} {}: {source}", path.display())]
    Files {
        act: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: {source}", path.display())]
    Sqlite {
        path: PathBuf,
        source: rusqlite::Error,
    },
}

impl Store {
    /// The store at `path`, untouched.
    pub(crate) fn at(path: &Path) -> Store {
        Store {
            path: path.to_path_buf(),
            db: None,
        }
    }

    /// Adds a note, and returns its number, never given to a note before.
    pub(crate) fn add(&mut self, title: Option<&str>, text: &str) -> Result<i64, StoreError> {
        not_empty("text", text)?;
        self.write(|db| {
            db.query_row(
                "INSERT INTO notes (title, text) VALUES (?1, ?2) RETURNING id",
                params![title, text],
                first,
            )
        })
    }

    /// Makes the note under `key` say `text`, and returns its number: the same for every call with
    /// this key, so that a repeated call changes nothing.
    pub(crate) fn put(
        &mut self,
        key: &str,
        title: Option<&str>,
        text: &str,
    ) -> Result<i64, StoreError> {
        not_empty("key", key)?;
        not_empty("text", text)?;
        self.write(|db| {
            db.query_row(
                "INSERT INTO notes (key, title, text) VALUES (?1, ?2, ?3)
                 ON CONFLICT (key) DO UPDATE SET title = excluded.title, text = excluded.text
                 RETURNING id",
                params![key, title, text],
                first,
            )
        })
    }

    /// The note with this number.
    pub(crate) fn get(&mut self, id: i64) -> Result<Note, StoreError> {
        let found = self.read(|db| {
            db.query_row(
                "SELECT id, key, title, text FROM notes WHERE id = ?1",
                [id],
                note,
            )
            .optional()
        })?;
        found.ok_or(StoreError::NoSuchNote(id))
    }

    /// The newest notes.
    pub(crate) fn list(&mut self, limit: u32) -> Result<Page, StoreError> {
        self.read(|db| {
            Ok(Page {
                notes: db
                    .prepare_cached(
                        "SELECT id, key, title, text FROM notes ORDER BY id DESC LIMIT ?1",
                    )?
                    .query_map([limit], note)?
                    .collect::<Result<_, _>>()?,
                total: db.query_row("SELECT count(*) FROM notes", [], first)?,
            })
        })
    }

    /// The newest notes whose key, title or text contains `query`, in any ASCII case.
    pub(crate) fn search(&mut self, query: &str, limit: u32) -> Result<Page, StoreError> {
        not_empty("query", query)?;
        const MATCHING: &str = "FROM notes WHERE instr(lower(
            coalesce(key, '') || char(0) || coalesce(title, '') || char(0) || text), lower(?1))";
        self.read(|db| {
            Ok(Page {
                notes: db
                    .prepare_cached(&format!(
                        "SELECT id, key, title, text {MATCHING} ORDER BY id DESC LIMIT ?2"
                    ))?
                    .query_map(params![query, limit], note)?
                    .collect::<Result<_, _>>()?,
                total: db.query_row(&format!("SELECT count(*) {MATCHING}"), [query], first)?,
            })
        })
    }

    /// Closes the database, and folds its journal into it. A later call would open it again.
    pub(crate) fn close(&mut self) {
        // A journal that could not be folded in now is read by the next start.
        self.db = None;
    }

    /// One transaction: when this returns, it is on disk.
    fn write<T>(
        &mut self,
        act: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if self.db.is_none() {
            // Never beside an open connection: closing the file would free SQLite's own locks (lesson 8).
            create_file(&self.path)?;
        }
        let db = self.open()?;
        // Explicit: a commit that comes with the end of a statement fails without a word.
        let written = db
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .and_then(|change| {
                let written = act(&change)?;
                change.commit()?;
                Ok(written)
            });
        written.map_err(|source| self.sqlite(source))
    }

    /// A store that has never been written reads as empty, and stays unwritten.
    fn read<T: Default>(
        &mut self,
        look: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if self.db.is_none() && is_absent(&self.path)? {
            return Ok(T::default());
        }
        look(self.open()?).map_err(|source| self.sqlite(source))
    }

    fn open(&mut self) -> Result<&mut Connection, StoreError> {
        let db = match self.db.take() {
            Some(db) => db,
            None => self.open_file()?,
        };
        Ok(self.db.insert(db))
    }

    fn open_file(&self) -> Result<Connection, StoreError> {
        // Not SQLITE_OPEN_URI: a path is a path, even one that starts with "file:".
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut db =
            Connection::open_with_flags(&self.path, flags).map_err(|source| self.sqlite(source))?;
        self.prepare(&mut db)?;
        Ok(db)
    }

    fn prepare(&self, db: &mut Connection) -> Result<(), StoreError> {
        let (application, layout) = lay_out(db).map_err(|source| self.sqlite(source))?;
        let path = self.path.clone();
        match (application, layout) {
            (APPLICATION_ID, LAYOUT) => keep_a_journal(db).map_err(|source| self.sqlite(source)),
            (APPLICATION_ID, found) => Err(StoreError::Newer { path, found }),
            _ => Err(StoreError::Foreign { path }),
        }
    }

    fn sqlite(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }
}

/// Gives an empty database its tables. Returns whose it is and how it is laid out.
fn lay_out(db: &mut Connection) -> rusqlite::Result<(i32, i32)> {
    db.busy_timeout(BUSY)?;
    // One transaction from the look to the change: a coexisting server may be beginning as well.
    let change = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let tables: i32 = change.query_row("SELECT count(*) FROM sqlite_schema", [], first)?;
    if tables == 0 {
        change.execute_batch(
            "CREATE TABLE notes (
                 id    INTEGER PRIMARY KEY AUTOINCREMENT,
                 key   TEXT UNIQUE,
                 title TEXT,
                 text  TEXT NOT NULL
             ) STRICT;",
        )?;
        change.pragma_update(None, "application_id", APPLICATION_ID)?;
        change.pragma_update(None, "user_version", LAYOUT)?;
    }
    let application = change.pragma_query_value(None, "application_id", first)?;
    let layout = change.pragma_query_value(None, "user_version", first)?;
    change.commit()?;
    Ok((application, layout))
}

/// Every commit is flushed to a journal beside the database, which readers need not wait for.
fn keep_a_journal(db: &Connection) -> rusqlite::Result<()> {
    db.pragma_update(None, "synchronous", "FULL")?;
    let mut tries = 0;
    loop {
        match db.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())) {
            // Of two that switch at once SQLite sends one away instead of letting it wait. Waiting
            // for a turn to write lets the other one finish.
            Err(error) if is_busy(&error) && tries < TRIES => {
                tries += 1;
                db.execute_batch("BEGIN IMMEDIATE; COMMIT")?;
            }
            switched => return switched,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

fn first<T: FromSql>(row: &Row<'_>) -> rusqlite::Result<T> {
    row.get(0)
}

fn note(row: &Row<'_>) -> rusqlite::Result<Note> {
    Ok(Note {
        id: row.get(0)?,
        key: row.get(1)?,
        title: row.get(2)?,
        text: row.get(3)?,
    })
}

fn not_empty(what: &'static str, text: &str) -> Result<(), StoreError> {
    match text.trim() {
        "" => Err(StoreError::Empty(what)),
        _ => Ok(()),
    }
}

fn is_absent(path: &Path) -> Result<bool, StoreError> {
    match path.try_exists() {
        Ok(exists) => Ok(!exists),
        Err(source) => Err(StoreError::Files {
            act: "look at",
            path: path.to_path_buf(),
            source,
        }),
    }
}

/// Makes the file and its directories, for this user only; what is there already stays as it is.
fn create_file(path: &Path) -> Result<(), StoreError> {
    let failed = |act, path: &Path| {
        let path = path.to_path_buf();
        move |source| StoreError::Files { act, path, source }
    };
    if let Some(dir) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed("create the directory", dir))?;
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map(drop)
        .map_err(failed("create", path))
}
