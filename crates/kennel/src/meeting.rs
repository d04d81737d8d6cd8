//! Where the shims and the daemon of one key meet: `daemons/<key>/` in the user's runtime directory.
//!
//! | file | what it is |
//! |---|---|
//! | `spawn.lock` | held while a daemon is being started, and handed to it |
//! | `daemon.lock` | held by the daemon for its whole life |
//! | `daemon.json` | what the daemon says of itself; renamed into place |
//! | `<generation>.sock` | the daemon's socket |

use std::path::PathBuf;
use std::time::Duration;

use kennel_sys::lock::{self, Probe, probe};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::{DirError, Hold, RuntimeDir};
use serde::{Deserialize, Serialize};

/// Held while a daemon is being started.
pub(crate) const SPAWN_LOCK: &str = "spawn.lock";
/// Held by the daemon for its whole life.
pub(crate) const DAEMON_LOCK: &str = "daemon.lock";

const DAEMONS: &str = "daemons";
/// What the daemon says of itself.
pub(crate) const RECORD: &str = "daemon.json";
/// How long a process may be in the middle of an exec, in moments: on a busy machine it may have to wait for its turn there.
const MOMENTS_OF_AN_EXEC: u32 = 2000;
const A_MOMENT: Duration = Duration::from_millis(1);
/// No record of ours is longer.
const LONGEST_RECORD: usize = 1 << 20;

/// The meeting place of one key.
#[derive(Debug)]
pub(crate) struct Meeting {
    user: RuntimeDir,
    dir: RuntimeDir,
    key: String,
}

/// What a daemon writes down about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonRecord {
    /// Who it is: the text of an [`Identity`].
    pub(crate) identity: String,
    /// Which daemon of this key; names its socket.
    pub(crate) generation: String,
    /// The program's version.
    pub(crate) version: String,
    /// Which build of it.
    #[serde(default)]
    pub(crate) build: String,
    /// Its descriptor of [`DAEMON_LOCK`]: where to look first for who holds it.
    #[serde(default)]
    pub(crate) lock: Option<u32>,
    /// When it started, in seconds since 1970.
    pub(crate) since: u64,
    /// What it is called: the server's own name.
    pub(crate) name: String,
    /// What it runs, for people to read.
    pub(crate) command: Vec<String>,
    /// Where.
    pub(crate) cwd: String,
}

impl Meeting {
    /// The place of `key`, created if it is missing.
    pub(crate) fn ensure(key: &str) -> Result<Meeting, DirError> {
        let user = RuntimeDir::of_user()?;
        let dir = user.subdir(DAEMONS)?.subdir(key)?;
        let key = key.to_owned();
        Ok(Meeting { user, dir, key })
    }

    /// Whether a daemon of `key` lives, or is being started. Creates nothing.
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

    /// The places of all keys, but for those whose directory is refused (`refused.rs`). Creates nothing.
    pub(crate) fn all() -> Result<Vec<Meeting>, DirError> {
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
                all.push(Meeting { user, dir, key });
            }
        }
        Ok(all)
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

    /// Keeps cleaners of temporary files away, as long as it lives.
    pub(crate) fn hold(&self) -> Result<Hold, DirError> {
        self.user.hold()
    }

    /// Whether a process is a daemon of Kennel's, by what the kernel says of it: it holds the runtime directory, and was
    /// started as one. A record, or a lock of another program that somebody moved here, does not make it one.
    pub(crate) fn is_daemon(&self, process: &ProcessRef) -> bool {
        lock::is_dir_held_by(&self.user, process) && runs_as(process, &["daemon"])
    }

    /// The directory for the records of trees.
    pub(crate) fn trees(&self) -> Result<RuntimeDir, DirError> {
        self.user.subdir("trees")
    }

    /// Where the socket of a generation is.
    pub(crate) fn socket_path(&self, generation: &str) -> Result<PathBuf, DirError> {
        self.dir.socket_path(format!("{generation}.sock"))
    }

    /// What the daemon wrote down, if there is a record that can be read. It may be outdated.
    pub(crate) fn record(&self) -> Option<DaemonRecord> {
        let content = self.dir.read_small(RECORD, LONGEST_RECORD).ok()??;
        serde_json::from_slice(&content).ok()
    }

    /// Writes the record: whole, or not at all (lesson 4). Only the holder of [`DAEMON_LOCK`] does.
    pub(crate) fn write_record(&self, record: &DaemonRecord) -> Result<(), DirError> {
        let text = serde_json::to_vec(record).expect("strings and numbers have a text");
        self.dir.write_whole(RECORD, &text)
    }

    /// Removes the record. Only the holder of [`DAEMON_LOCK`] does.
    pub(crate) fn remove_record(&self) -> Result<(), DirError> {
        self.dir.unlink(RECORD).map(drop)
    }
}

impl DaemonRecord {
    /// The daemon itself, if it is still alive.
    pub(crate) fn process(&self) -> Option<ProcessRef> {
        let identity: Identity = self.identity.parse().ok()?;
        ProcessRef::find(&identity).ok().flatten()
    }
}

/// Whether a process was started as one of these commands of Kennel's: the second word of its command line says so.
pub(crate) fn runs_as(process: &ProcessRef, commands: &[&str]) -> bool {
    let mut words = process.command_line();
    // In the middle of an exec it has no command line for a moment: a daemon that becomes a newer build.
    for _ in 0..MOMENTS_OF_AN_EXEC {
        if words.is_some() || process.wait(Some(A_MOMENT)).unwrap_or(true) {
            break;
        }
        words = process.command_line();
    }
    let word = words.and_then(|words| words.into_iter().nth(1));
    word.is_some_and(|word| commands.contains(&word.as_str()))
}
