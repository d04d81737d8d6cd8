//! The directory of one key, `daemons/<key>/` in the user's runtime directory, through which shims find their daemon.
//!
//! | file | what it is |
//! |---|---|
//! | `spawn.lock` | held while a daemon is being started, and handed to it |
//! | `daemon.lock` | held by the daemon for its whole life |
//! | `daemon.json` | the daemon's record; renamed into place |
//! | `<generation>.sock` | the daemon's socket |

use std::path::PathBuf;
use std::time::Duration;

use kennel_sys::lock::{self, Probe, probe};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::{DirError, Hold, RuntimeDir};
use serde::{Deserialize, Serialize};

use crate::json_record;

/// Held while a daemon is being started.
pub(crate) const SPAWN_LOCK: &str = "spawn.lock";
/// Held by the daemon for its whole life.
pub(crate) const DAEMON_LOCK: &str = "daemon.lock";

const DAEMONS: &str = "daemons";
/// The file name of the daemon's record.
pub(crate) const RECORD: &str = "daemon.json";
/// How long to wait for a process that is in the middle of an exec, in units of [`EXEC_WAIT_STEP`]: on a busy machine it may
/// have to wait for a processor.
const EXEC_WAIT_STEPS: u32 = 2000;
const EXEC_WAIT_STEP: Duration = Duration::from_millis(1);

/// Number of letters that a shortened key has at least.
pub(crate) const MIN_KEY_LETTERS: usize = 4;

/// The directory of one key.
#[derive(Debug)]
pub(crate) struct KeyDir {
    user: RuntimeDir,
    dir: RuntimeDir,
    key: String,
}

/// The record that a daemon writes about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonRecord {
    /// The text of its [`Identity`].
    pub(crate) identity: String,
    /// Distinguishes the daemons of this key; the name of its socket.
    pub(crate) generation: String,
    /// The program's version.
    pub(crate) version: String,
    /// Its build.
    #[serde(default)]
    pub(crate) build: String,
    /// Its descriptor of [`DAEMON_LOCK`]: the first place to search for the holder of the lock.
    #[serde(default)]
    pub(crate) lock: Option<u32>,
    /// When it started, in seconds since 1970.
    pub(crate) since: u64,
    /// The name of its server.
    pub(crate) name: String,
    /// The server's command, for people.
    pub(crate) command: Vec<String>,
    /// The server's directory.
    pub(crate) cwd: String,
}

impl KeyDir {
    /// The directory of `key`, created if it is missing.
    pub(crate) fn ensure(key: &str) -> Result<KeyDir, DirError> {
        let user = RuntimeDir::of_user()?;
        let dir = user.subdir(DAEMONS)?.subdir(key)?;
        let key = key.to_owned();
        Ok(KeyDir { user, dir, key })
    }

    /// Whether a daemon of `key` runs, or is being started. Creates nothing.
    pub(crate) fn has_daemon(key: &str) -> bool {
        let find = || -> Result<Option<RuntimeDir>, DirError> {
            let Some(user) = RuntimeDir::find_of_user()? else {
                return Ok(None);
            };
            match user.existing_subdir(DAEMONS)? {
                Some(daemons) => daemons.existing_subdir(key),
                None => Ok(None),
            }
        };
        let is_held = |dir: &RuntimeDir, lock| matches!(probe(dir, lock), Probe::Held { .. });
        let dir = find().ok().flatten();
        dir.is_some_and(|dir| is_held(&dir, DAEMON_LOCK) || is_held(&dir, SPAWN_LOCK))
    }

    /// The directories of all keys, except refused ones (`refused.rs`). Creates nothing.
    pub(crate) fn all() -> Result<Vec<KeyDir>, DirError> {
        let mut all = Vec::new();
        let Some(user) = RuntimeDir::find_of_user()? else {
            return Ok(all);
        };
        let Some(daemons) = user.existing_subdir(DAEMONS).ok().flatten() else {
            return Ok(all);
        };
        for name in daemons.entries()? {
            let (Some(key), Some(user)) = (name.to_str(), RuntimeDir::find_of_user()?) else {
                continue;
            };
            if let Ok(Some(dir)) = daemons.existing_subdir(key) {
                let key = key.to_owned();
                all.push(KeyDir { user, dir, key });
            }
        }
        Ok(all)
    }

    /// The directories of the keys that begin with these letters, if there are enough of them.
    pub(crate) fn beginning_with(letters: &str) -> Result<Vec<KeyDir>, DirError> {
        let mut all = KeyDir::all()?;
        all.retain(|key_dir| letters.len() >= MIN_KEY_LETTERS && key_dir.key.starts_with(letters));
        Ok(all)
    }

    /// A description of its server, for people.
    pub(crate) fn known(&self) -> String {
        match self.record() {
            Some(record) => format!("{}, in {}", record.name, record.cwd),
            None => "has ended".to_owned(),
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The checked directory, for locks and files.
    pub(crate) fn dir(&self) -> &RuntimeDir {
        &self.dir
    }

    pub(crate) fn into_dir(self) -> RuntimeDir {
        self.dir
    }

    /// Keeps cleaners of temporary files away while the returned value lives.
    pub(crate) fn hold(&self) -> Result<Hold, DirError> {
        self.user.hold()
    }

    /// Whether a process is a daemon of Kennel, as the kernel says: it holds the runtime directory, and was started as
    /// one. A record does not prove it, and neither does a lock of another program that was moved here.
    pub(crate) fn is_daemon(&self, process: &ProcessRef) -> bool {
        lock::is_dir_held_by(&self.user, process) && runs_as(process, &["daemon"])
    }

    /// The directory for the records of trees.
    pub(crate) fn trees(&self) -> Result<RuntimeDir, DirError> {
        self.user.subdir("trees")
    }

    /// The path of a generation's socket.
    pub(crate) fn socket_path(&self, generation: &str) -> Result<PathBuf, DirError> {
        self.dir.socket_path(format!("{generation}.sock"))
    }

    /// The daemon's record, if there is a readable one. It may be outdated.
    pub(crate) fn record(&self) -> Option<DaemonRecord> {
        json_record::read(&self.dir, RECORD)
    }

    /// Replaces the record atomically (lesson 4). Only the holder of [`DAEMON_LOCK`] calls this.
    pub(crate) fn write_record(&self, record: &DaemonRecord) -> Result<(), DirError> {
        json_record::write(&self.dir, RECORD, record)
    }

    /// Removes the record. Only the holder of [`DAEMON_LOCK`] calls this.
    pub(crate) fn remove_record(&self) -> Result<(), DirError> {
        self.dir.unlink(RECORD).map(drop)
    }
}

impl DaemonRecord {
    /// The daemon, if it is still alive.
    pub(crate) fn process(&self) -> Option<ProcessRef> {
        let identity: Identity = self.identity.parse().ok()?;
        ProcessRef::find(&identity).ok().flatten()
    }
}

/// Whether a process was started as one of these commands of Kennel, by the second word of its command line.
pub(crate) fn runs_as(process: &ProcessRef, commands: &[&str]) -> bool {
    let mut words = process.command_line();
    // During an exec, a process has no command line for a moment: a daemon that becomes a newer build.
    for _ in 0..EXEC_WAIT_STEPS {
        if words.is_some() || process.wait(Some(EXEC_WAIT_STEP)).unwrap_or(true) {
            break;
        }
        words = process.command_line();
    }
    let word = words.and_then(|words| words.into_iter().nth(1));
    word.is_some_and(|word| commands.contains(&word.as_str()))
}
