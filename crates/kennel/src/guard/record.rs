//! The record of a guard: for `ps`, `stop` and `logs`, and for the next guard that wants its port.
//!
//! `guards/<pid>/record.json`, with the server's log beside it if it is detached. A record is valid while its process
//! lives. Afterwards it stays beside the log, until newer ones replace it.

use std::ffi::OsString;
use std::path::Path;

use kennel_sys::lock;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::sessions::Sessions;
use crate::daemon::{LOG, OLDER_LOG};
use crate::hex;
use crate::json_record;
use crate::key_dir::runs_as;
use crate::listing::{self, Entry, Mode, Server};
use crate::ps::now;
use crate::sources::Sources;

const GUARDS: &str = "guards";
/// The file name of a guard's record.
pub(crate) const RECORD: &str = "record.json";
/// Number of ended servers whose records and logs are kept.
const MAX_ENDED: usize = 8;

/// A guarded server, as it was when it was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) entry: Entry,
    /// A hash of command and directory: equal for servers with the same command and directory.
    #[serde(rename = "sameness")]
    pub(super) command_hash: String,
    /// The owner's identity.
    pub(super) owner: Option<String>,
    pub(super) owner_was_gone: bool,
    /// The ports given with `--port`.
    pub(super) ports: Vec<u16>,
    pub(super) grace_ms: u64,
    /// The files that the server was started from; `--takeover older` compares them.
    #[serde(default)]
    pub(super) sources: Sources,
    pub(super) detached: bool,
    /// Whether it is ending, no matter whether it is needed.
    #[serde(default)]
    pub(super) ending: bool,
    /// Why it ended, if it has.
    pub(super) ended: Option<String>,
}

/// The fields of `kennel ps` that only a guarded server has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guarded {
    /// The ports it listens on now.
    pub(crate) ports: Vec<u16>,
    /// Number of connections.
    pub(crate) connections: usize,
    /// `None`: it has no owner.
    pub(crate) owner_alive: Option<bool>,
    /// Whether it has a log.
    pub(crate) detached: bool,
}

/// The record of this process, kept up to date.
#[derive(Debug)]
pub(super) struct RecordFile {
    pub(super) dir: RuntimeDir,
    record: Record,
}

impl Record {
    pub(super) fn process(&self) -> Option<ProcessRef> {
        self.entry.process()
    }

    /// Whether it has ended, as far as this can be known: not for a guard in another pid namespace.
    fn has_ended(&self) -> bool {
        let identity = self.entry.identity.as_deref();
        let identity: Option<Identity> = identity.and_then(|text| text.parse().ok());
        identity.is_none_or(|identity| matches!(ProcessRef::find(&identity), Ok(None)))
    }

    /// Whether the owner lives; `None` without an owner. If this cannot be known, it counts as alive.
    pub(super) fn owner_alive(&self) -> Option<bool> {
        if self.owner_was_gone {
            return Some(false);
        }
        let identity: Identity = self.owner.as_ref()?.parse().ok()?;
        Some(ProcessRef::find(&identity).map_or(true, |found| found.is_some()))
    }

    /// The entry with its present ports and connections.
    pub(super) fn inspect(&self) -> Option<Entry> {
        let process = self.process()?;
        let mut entry = self.entry.clone();
        // If connections cannot be counted, assume one.
        let seen = Sessions::on(&self.ports).count(&process);
        let (connections, ports) = seen.unwrap_or_else(|_| (1, Default::default()));
        let ports: Vec<u16> = ports.into_iter().collect();
        let owner_alive = self.owner_alive();
        entry.state = match (owner_alive, connections) {
            _ if self.ending => "ending",
            (Some(false), 0) => "owner gone, ends unless a client connects",
            (Some(false), _) => "owner gone, ends after its last connection",
            _ => "serving",
        }
        .to_owned();
        let stale = self.sources.are_stale();
        entry.servers = entry
            .servers
            .into_iter()
            .map(|server| Server {
                stale,
                ..listing::with_staleness(server.state)
            })
            .collect();
        entry.guarded = Some(Guarded {
            ports,
            connections,
            owner_alive,
            detached: self.detached,
        });
        Some(entry)
    }
}

impl RecordFile {
    /// Writes the record, and removes the oldest records of ended guards.
    pub(super) fn keep(user: &RuntimeDir, record: Record) -> Result<RecordFile, DirError> {
        let kept = RecordFile {
            dir: place(user)?,
            record,
        };
        kept.write()?;
        make_room(user);
        Ok(kept)
    }

    /// Whether other processes find the record: its directory was not removed or replaced.
    pub(super) fn exists_at_path(&self) -> bool {
        self.dir.is_at_its_path()
    }

    /// Adds the running server. On an error, the record does not mention the server.
    pub(super) fn started(&mut self, server: u32) -> Result<(), DirError> {
        self.record.entry.servers = vec![Server::new(server, self.record.entry.since)];
        self.write()
    }

    /// Marks the server as ending, so that a new start does not rely on it.
    pub(super) fn ending(&mut self) {
        if !self.record.ending {
            self.record.ending = true;
            let _ = self.write();
        }
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Removes the record.
    pub(super) fn discard(self) {
        let _ = self.dir.unlink(RECORD);
    }

    pub(super) fn ended(mut self, why: &str) {
        self.record.ended = Some(why.to_owned());
        let _ = self.write();
    }

    fn write(&self) -> Result<(), DirError> {
        json_record::write(&self.dir, RECORD, &self.record)
    }
}

/// The directory of this process, without what an earlier process with the same pid left there.
pub(super) fn place(user: &RuntimeDir) -> Result<RuntimeDir, DirError> {
    let dir = user
        .subdir(GUARDS)?
        .subdir(std::process::id().to_string())?;
    Ok(dir)
}

/// Removes what an earlier process with the same pid left.
pub(super) fn clear(dir: &RuntimeDir) {
    for name in [RECORD, LOG, OLDER_LOG] {
        let _ = dir.unlink(name);
    }
}

/// Removes the directory of this process, which holds no record.
pub(super) fn discard(user: &RuntimeDir) {
    let Ok(dir) = place(user) else { return };
    clear(&dir);
    if let Ok(Some(guards)) = user.existing_subdir(GUARDS) {
        let _ = guards.remove_subdir_if_empty(std::process::id().to_string());
    }
}

/// The records of guards that are running.
pub(super) fn living(user: &RuntimeDir) -> Vec<Record> {
    let mut living = all(user);
    living.retain(|(dir, record)| record.ended.is_none() && is_guard(user, dir, record));
    living.into_iter().map(|(_, record)| record).collect()
}

/// Whether the process in a record is a guard: it has the directory of its pid, and the kernel says that it holds the
/// runtime directory and was started as a guard. Any process of the user can write a record.
fn is_guard(user: &RuntimeDir, dir: &RuntimeDir, record: &Record) -> bool {
    record.process().is_some_and(|process| {
        let place = dir.path().file_name().unwrap_or_default();
        place == process.pid().to_string().as_str()
            && lock::is_dir_held_by(user, &process)
            && runs_as(&process, &["guard", "guardian"])
    })
}

/// The running guards, as `kennel ps` lists them.
pub(crate) fn entries(user: &RuntimeDir) -> Vec<Entry> {
    let living = living(user);
    living.iter().filter_map(Record::inspect).collect()
}

/// The directories of the guards with this name or key, running or not.
pub(crate) fn dirs_of(user: &RuntimeDir, word: &str) -> Vec<OsString> {
    let called = |(_, record): &(RuntimeDir, Record)| record.entry.is_called(word);
    let name = |(dir, _): (RuntimeDir, Record)| Some(dir.path().file_name()?.to_owned());
    all(user)
        .into_iter()
        .filter(called)
        .filter_map(name)
        .collect()
}

/// The location of a guarded server's output.
#[derive(Debug)]
pub(crate) enum OutputPlace {
    /// In the log in this directory.
    Log(RuntimeDir),
    /// In the terminal where it was started: it runs in the foreground.
    Terminal,
}

/// The location of the output of the guarded server with this name or key: the running one, otherwise the last that
/// ended.
pub(crate) fn output_of(word: &str) -> Result<Option<OutputPlace>, DirError> {
    let Some(user) = RuntimeDir::find_of_user()? else {
        return Ok(None);
    };
    let mut meant = all(&user);
    meant.retain(|(_, record)| {
        let told = record.detached || record.process().is_some();
        record.entry.is_called(word) && told
    });
    meant.sort_by_key(|(_, record)| (record.process().is_some(), record.entry.since));
    Ok(meant.pop().map(|(dir, record)| match record.detached {
        true => OutputPlace::Log(dir),
        false => OutputPlace::Terminal,
    }))
}

fn all(user: &RuntimeDir) -> Vec<(RuntimeDir, Record)> {
    let guards = user.existing_subdir(GUARDS).ok().flatten();
    let Some(guards) = guards else {
        return Vec::new();
    };
    let names = guards.entries().unwrap_or_default();
    let read = |name| {
        let dir = guards.existing_subdir(name).ok()??;
        let record = json_record::read(&dir, RECORD)?;
        Some((dir, record))
    };
    names.iter().filter_map(read).collect()
}

fn make_room(user: &RuntimeDir) {
    let mut ended = all(user);
    ended.retain(|(_, record)| record.has_ended());
    ended.sort_by_key(|(_, record)| std::cmp::Reverse(record.entry.since));
    let Ok(Some(guards)) = user.existing_subdir(GUARDS) else {
        return;
    };
    for (dir, _) in ended.into_iter().skip(MAX_ENDED) {
        clear(&dir);
        if let Some(name) = dir.path().file_name() {
            let _ = guards.remove_subdir_if_empty(name);
        }
    }
}

/// The entry of this process.
pub(super) fn entry(name: &str, command: &[OsString], cwd: &Path, owner: Option<u32>) -> Entry {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let me = ProcessRef::me().ok();
    Entry {
        command: command.iter().map(text).collect(),
        cwd: cwd.display().to_string(),
        state: "starting".to_owned(),
        owner,
        identity: me.map(|me| me.identity().to_string()),
        ..Entry::new(Mode::Guard, std::process::id(), name.to_owned(), now())
    }
}

/// The hash that distinguishes commands: of all bytes of its words and its directory.
pub(super) fn command_hash(command: &[OsString], cwd: &Path) -> String {
    let mut hash = Sha256::new();
    for word in command {
        hash.update((word.len() as u64).to_le_bytes());
        hash.update(word.as_encoded_bytes());
    }
    hash.update(cwd.as_os_str().as_encoded_bytes());
    hex::text(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    fn record(identity: &str, since: u64) -> Record {
        let mut entry = entry("thing", &[], Path::new("/"), None);
        entry.identity = Some(identity.to_owned());
        entry.since = since;
        Record {
            entry,
            command_hash: String::new(),
            owner: None,
            owner_was_gone: false,
            ports: Vec::new(),
            grace_ms: 0,
            sources: Sources::default(),
            detached: false,
            ending: false,
            ended: None,
        }
    }

    fn plant(user: &RuntimeDir, place: &str, record: &Record) {
        let dir = user.subdir(GUARDS).unwrap().subdir(place).unwrap();
        let text = serde_json::to_vec(record).unwrap();
        dir.write_whole(RECORD, &text).unwrap();
    }

    #[test]
    fn records_of_another_pid_namespace_make_no_room() {
        let scope = Scope::new("make-room");
        let user = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
        let me = ProcessRef::me().unwrap().identity().to_string();
        let (rest, _namespace) = me.rsplit_once(':').unwrap();
        // With a boot id that never existed, so it has certainly ended.
        let gone = format!("{}:-:{:032x}:1:-", std::process::id(), 1);
        plant(&user, "1", &record(&format!("{rest}:1"), 0));
        for place in 2..=(MAX_ENDED as u64 + 3) {
            plant(&user, &place.to_string(), &record(&gone, place));
        }
        make_room(&user);
        let names = user.subdir(GUARDS).unwrap().entries().unwrap();
        assert_eq!(names.len(), MAX_ENDED + 1, "{names:?}");
        assert!(names.contains(&"1".into()), "{names:?}");
        assert!(!names.contains(&"2".into()), "the oldest that ended");
    }

    #[test]
    fn a_record_of_a_process_that_is_no_guard_is_ignored() {
        let scope = Scope::new("no-guard");
        let user = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
        let me = ProcessRef::me().unwrap().identity().to_string();
        let own = std::process::id().to_string();
        plant(&user, &own, &record(&me, 0));
        assert_eq!(living(&user), [], "it holds no lock");
        let hold = user.hold().unwrap();
        assert_eq!(living(&user), [], "it was not started as a guard");
        drop(hold);
    }
}
