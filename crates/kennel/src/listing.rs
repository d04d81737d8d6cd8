//! Lists what runs: daemons, dedicated sessions and guards, by their records. Creates nothing. Ignores a record whose
//! process has exited (rule 6) or does not hold the lock that it would hold: any process of the user can write a
//! record, and `stop` signals the processes listed here, but the kernel says who holds a lock.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::lock;
use kennel_sys::process::{self, Identity, ProcessRef};
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use kennel_sys::tree::{self, ProcessTable, Recorded};
use serde::{Deserialize, Serialize};

use crate::daemon::{ClientState, DaemonListing, Restart, STATE, ServerState};
use crate::guard::record::{self as guards, Guarded};
use crate::json_record;
use crate::key_dir::{DAEMON_LOCK, KeyDir, MIN_KEY_LETTERS};
use crate::sharing::ServersToml;
use crate::sources::Sources;
use crate::stopped::StoppedProcess;

/// The directory of dedicated sessions' records.
pub(crate) const SOLO: &str = "solo";
/// The directory of process trees' records.
pub(crate) const TREES: &str = "trees";

/// A daemon, a dedicated session, a guarded server or a kept service, as `kennel ps --json` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
    pub(crate) cwd: String,
    pub(crate) mode: Mode,
    pub(crate) daemon_pid: Option<u32>,
    pub(crate) version: String,
    pub(crate) since: u64,
    pub(crate) state: String,
    /// Why this session has a dedicated server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// Whether this session is dedicated only because it found no daemon; it shares again when there is one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dedicated_for_now: bool,
    pub(crate) owner: Option<u32>,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<ClientState>,
    /// The memory that one server for each client would use, minus what these servers use.
    #[serde(default)]
    pub(crate) saved_bytes: u64,
    /// How often a server was replaced by another one while sessions used it.
    #[serde(default)]
    pub(crate) restarts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_restart: Option<Restart>,
    /// Since when no client is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_since: Option<u64>,
    /// Fields that only a guarded server has: ports, connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guarded: Option<Guarded>,
    /// The process of `identity`, if it is stopped now: it serves no client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stopped: Option<StoppedProcess>,
    /// The identity of the daemon, the shim of a dedicated session, or the guard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Solo,
    Shared,
    Guard,
    /// A detached service that outlived its server.
    Kept,
}

impl Mode {
    /// Its word in JSON and in keys.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mode::Solo => "solo",
            Mode::Shared => "shared",
            Mode::Guard => "guard",
            Mode::Kept => "kept",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    #[serde(flatten)]
    pub(crate) state: ServerState,
    /// The memory that its process tree uses now.
    pub(crate) rss_bytes: Option<u64>,
    /// Whether a file it was started from has changed on disk since.
    #[serde(default)]
    pub(crate) stale: bool,
    /// The process of this server that is stopped now, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stopped: Option<StoppedProcess>,
}

impl Server {
    /// A server whose requests and clients are not counted.
    pub(crate) fn new(pid: u32, since: u64) -> Server {
        Server {
            state: ServerState {
                pid,
                class: None,
                since,
                requests: 0,
                latency_us: None,
                clients: 0,
                sources: Sources::default(),
            },
            rss_bytes: None,
            stale: false,
            stopped: None,
        }
    }
}

/// The signal that stops the server of a session that is dedicated only for now.
pub(crate) const STOP_SERVER: Signal = Signal::USR1;

/// The state of a session whose server starts again at the next request.
pub(crate) const HIBERNATING: &str = "hibernating";

impl Entry {
    /// An entry of a process with this pid, without its server and clients.
    pub(crate) fn new(mode: Mode, pid: u32, name: String, since: u64) -> Entry {
        Entry {
            key: format!("{}-{pid}", mode.word()),
            name,
            command: Vec::new(),
            cwd: String::new(),
            mode,
            daemon_pid: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since,
            state: String::new(),
            why: None,
            dedicated_for_now: false,
            owner: None,
            servers: Vec::new(),
            clients: Vec::new(),
            saved_bytes: 0,
            restarts: 0,
            last_restart: None,
            idle_since: None,
            guarded: None,
            stopped: None,
            identity: None,
        }
    }

    /// Whether there is nothing to stop.
    pub(crate) fn is_hibernating(&self) -> bool {
        self.state == HIBERNATING
    }

    /// The kind of the process of [`identity`](Self::identity).
    pub(crate) fn process_kind(&self) -> &'static str {
        match self.mode {
            Mode::Shared => "daemon",
            Mode::Guard => "guard",
            Mode::Solo => "session",
            Mode::Kept => "service",
        }
    }

    /// Whether clients are connected: they wait for a server, and do not hibernate.
    fn has_waiting_clients(&self) -> bool {
        !self.is_hibernating() && !self.clients.is_empty()
    }

    /// The process whose end ends the whole entry.
    pub(crate) fn process(&self) -> Option<ProcessRef> {
        let identity: Identity = self.identity.as_deref()?.parse().ok()?;
        ProcessRef::find(&identity).ok().flatten()
    }

    /// The signal that stops it. Of a session that is dedicated only for now, only the server is stopped, as for a
    /// client of a daemon. Such a session is listed as one only if its build knows the signal.
    pub(crate) fn stop_signal(&self) -> Signal {
        match self.dedicated_for_now && self.mode == Mode::Solo {
            true => STOP_SERVER,
            false => Signal::TERM,
        }
    }

    /// Asks `process`, the one of this entry, to stop; `false` if it has exited. Continues it if it is stopped
    /// (SIGSTOP): else it would not see the signal.
    pub(crate) fn ask_to_stop(&self, process: &ProcessRef) -> io::Result<bool> {
        let asked = process.signal(self.stop_signal())?;
        let _ = process.signal(Signal::CONT);
        Ok(asked)
    }

    /// The processes whose end shows that it has stopped: `process` itself, or the wardens of a session that stays.
    pub(crate) fn ends_with(&self, process: &ProcessRef) -> Vec<ProcessRef> {
        if self.stop_signal() != STOP_SERVER {
            return self.process().into_iter().collect();
        }
        let theirs = |tree: &Recorded| tree.served.same_process(process.identity());
        let trees = trees().into_iter().filter(theirs);
        trees
            .filter_map(|tree| ProcessRef::find(&tree.warden).ok().flatten())
            .collect()
    }

    /// The maximum time that `process`, the one of this entry, gives its servers to end: the longest of their stop
    /// ladders.
    pub(crate) fn longest_ladder(&self, process: &ProcessRef) -> Duration {
        let theirs = |tree: &Recorded| tree.served.same_process(process.identity());
        let ladders = trees().into_iter().filter(theirs);
        let ladders = ladders.filter_map(|tree| tree.ladder());
        let longest = ladders.map(|ladder| ladder.after_eof + ladder.after_term);
        longest.max().unwrap_or_default()
    }

    /// Whether this is its whole name or key. Several entries may have one name.
    pub(crate) fn is_called(&self, word: &str) -> bool {
        self.name == word || self.key == word
    }

    /// Whether its key begins with `word` and may be shortened. The key of a daemon may, because it is a hash. The
    /// others end with a pid, and the first digits of one pid are another pid.
    fn begins_with(&self, word: &str) -> bool {
        self.mode == Mode::Shared && word.len() >= MIN_KEY_LETTERS && self.key.starts_with(word)
    }
}

/// The entries that `word` names: all with this name, possibly one from servers.toml, else the one whose key begins
/// with it.
pub(crate) fn called<'a>(
    entries: &'a [Entry],
    word: &str,
) -> Result<Vec<&'a Entry>, Ambiguous<'a>> {
    let named = ServersToml::named_by_user(word);
    let whole: Vec<&Entry> = entries
        .iter()
        .filter(|it| {
            let named = named.as_ref();
            it.is_called(word) || named.is_some_and(|named| named.runs(&it.command, &it.cwd))
        })
        .collect();
    if !whole.is_empty() {
        return Ok(whole);
    }
    let short: Vec<&Entry> = entries.iter().filter(|it| it.begins_with(word)).collect();
    match short.len() {
        0 | 1 => Ok(short),
        _ => Err(Ambiguous(short)),
    }
}

/// The entries whose keys begin with the same letters, so that it is unclear which is meant.
#[derive(Debug)]
pub(crate) struct Ambiguous<'a>(pub(crate) Vec<&'a Entry>);

/// All that run now. A directory that is refused is skipped; `refused.rs` reports it.
pub(crate) fn all() -> Result<Vec<Entry>, DirError> {
    let mut all: Vec<Entry> = KeyDir::all()?.iter().filter_map(daemon).collect();
    let user = RuntimeDir::find_of_user()?;
    let guards: Vec<Entry> = user.iter().flat_map(guards::entries).collect();
    let pid = |entry: &Entry| entry.process().map(|process| process.pid());
    let others: Vec<u32> = all.iter().chain(&guards).filter_map(pid).collect();
    // A daemon or a guard is no session: a planted record would have it stopped under another name.
    let sessions = solo_sessions()?.into_iter();
    let sessions = sessions.filter(|it| pid(it).is_some_and(|pid| !others.contains(&pid)));
    let (hibernating, solo): (Vec<Entry>, Vec<Entry>) =
        sessions.partition(|entry| entry.mode == Mode::Shared);
    add_hibernating(&mut all, hibernating);
    all.extend(solo);
    all.extend(guards);
    all.extend(user.iter().flat_map(crate::kept::entries));
    add_memory(&mut all, &trees());
    all.sort_by(|one, other| (one.since, &one.key).cmp(&(other.since, &other.key)));
    Ok(all)
}

fn daemon(key_dir: &KeyDir) -> Option<Entry> {
    let record = key_dir.record()?;
    let process = record.process()?;
    if !lock::is_held_by(key_dir.dir(), DAEMON_LOCK, &process, record.lock)
        || !key_dir.is_daemon(&process)
    {
        return None;
    }
    let state: Option<DaemonListing> = json_record::read(key_dir.dir(), STATE);
    let state = state.unwrap_or_else(|| DaemonListing {
        clients: Vec::new(),
        servers: Vec::new(),
        state: "starting".to_owned(),
        owner: None,
        restarts: 0,
        last_restart: None,
        idle_since: None,
    });
    let servers: Vec<Server> = state.servers.into_iter().map(with_staleness).collect();
    let entry = Entry::new(Mode::Shared, process.pid(), record.name, record.since);
    Some(Entry {
        key: key_dir.key().to_owned(),
        command: record.command,
        cwd: record.cwd,
        daemon_pid: Some(process.pid()),
        version: record.version,
        state: state.state,
        owner: state.owner,
        servers,
        clients: state.clients,
        restarts: state.restarts,
        last_restart: state.last_restart,
        idle_since: state.idle_since,
        identity: Some(record.identity),
        ..entry
    })
}

fn solo_sessions() -> Result<Vec<Entry>, DirError> {
    let Some(user) = RuntimeDir::find_of_user()? else {
        return Ok(Vec::new());
    };
    let Some(solo) = user.existing_subdir(SOLO).ok().flatten() else {
        return Ok(Vec::new());
    };
    let read = |name: OsString| -> Option<Entry> {
        let mut entry: Entry = json_record::read(&solo, &name)?;
        let process = entry.process()?;
        if *name != *process.pid().to_string() || !lock::is_dir_held_by(&user, &process) {
            return None;
        }
        let servers = entry
            .servers
            .into_iter()
            .map(|server| with_staleness(server.state));
        entry.servers = servers.collect();
        Some(entry)
    };
    // A temporary file is renamed a moment later: it is the same session.
    let has_its_name = |name: &OsString| !name.as_encoded_bytes().starts_with(b".");
    let names = solo.entries()?.into_iter().filter(has_its_name);
    Ok(names.filter_map(read).collect())
}

/// Adds sessions whose shared server hibernates and that have no daemon, or have left it: one entry for each key.
fn add_hibernating(daemons: &mut Vec<Entry>, hibernating: Vec<Entry>) {
    for mut entry in hibernating {
        let same = |other: &&mut Entry| other.key == entry.key;
        match daemons.iter_mut().find(same) {
            // A daemon without a server that lingers waits for them.
            Some(daemon) if daemon.servers.is_empty() && !daemon.has_waiting_clients() => {
                daemon.state = HIBERNATING.to_owned();
                daemon.idle_since = None;
                daemon.clients.extend(entry.clients);
            }
            Some(_) => {
                entry.key += "-resting";
                match daemons.iter_mut().find(|other| other.key == entry.key) {
                    Some(first) => first.clients.extend(entry.clients),
                    None => daemons.push(entry),
                }
            }
            None => daemons.push(entry),
        }
    }
}

/// Compared with one server for each client.
fn saved(servers: &[Server]) -> u64 {
    let beyond_the_first = |server: &Server| {
        let others = server.state.clients.saturating_sub(1) as u64;
        others * server.rss_bytes.unwrap_or(0)
    };
    servers.iter().map(beyond_the_first).sum()
}

/// The process trees that have a record.
fn trees() -> Vec<Recorded> {
    let user = RuntimeDir::find_of_user().ok().flatten();
    let trees = user.and_then(|user| user.existing_subdir(TREES).ok()?);
    let recorded = trees.map(|trees| tree::recorded(&trees));
    recorded.and_then(Result::ok).unwrap_or_default()
}

/// Adds the memory of each server with its whole process tree. If the first process, a launcher, has ended, the server
/// that it left takes its place.
fn add_memory(entries: &mut [Entry], trees: &[Recorded]) {
    let table = ProcessTable::now().ok();
    for entry in entries {
        let identity = entry.identity.as_deref();
        let served: Option<Identity> = identity.and_then(|text| text.parse().ok());
        for server in &mut entry.servers {
            let pid = server.state.pid;
            let tree = trees.iter().find(|tree| {
                let is_theirs = |served: &Identity| tree.served.same_process(served);
                tree.first == pid && served.as_ref().is_some_and(is_theirs)
            });
            let warden = tree.and_then(|tree| ProcessRef::find(&tree.warden).ok().flatten());
            let family = |pid| {
                table
                    .as_ref()
                    .map_or(vec![pid], |table| table.with_descendants(pid))
            };
            let family_rss = |pid| {
                family(pid)
                    .into_iter()
                    .filter_map(process::resident_memory)
                    .sum::<u64>()
            };
            let tops = match (&warden, &table) {
                (Some(warden), Some(table)) => table.children(warden.pid()).to_vec(),
                _ => vec![pid],
            };
            let held = tops.iter().map(|&top| family_rss(top)).sum::<u64>();
            server.rss_bytes = (held > 0).then_some(held);
            let stopped = table.as_ref().and_then(|table| tree::stopped(&tops, table));
            server.stopped = stopped.map(StoppedProcess::from);
            if !tops.contains(&pid)
                && let Some(largest) = tops.into_iter().max_by_key(|&top| family_rss(top))
            {
                server.state.pid = largest;
            }
        }
        entry.saved_bytes = saved(&entry.servers);
        let stopped = served.and_then(|served| tree::stopped_process(served.pid()));
        entry.stopped = stopped.map(StoppedProcess::from);
    }
}

pub(crate) fn with_staleness(state: ServerState) -> Server {
    let stale = state.sources.are_stale();
    Server {
        state: ServerState {
            sources: Sources::default(),
            ..state
        },
        rss_bytes: None,
        stale,
        stopped: None,
    }
}

/// The record of a dedicated session, which exists as long as the session. `ps` ignores a record that a killed session
/// left behind.
#[derive(Debug)]
pub(crate) struct SoloRecord {
    dir: RuntimeDir,
    name: String,
}

impl SoloRecord {
    pub(crate) fn keep(user: &RuntimeDir, entry: &Entry) -> Result<SoloRecord, DirError> {
        let dir = user.subdir(SOLO)?;
        let name = std::process::id().to_string();
        let record = SoloRecord { dir, name };
        record.rewrite(entry)?;
        Ok(record)
    }

    /// Replaces the record atomically: readers see the old or the new one.
    pub(crate) fn rewrite(&self, entry: &Entry) -> Result<(), DirError> {
        json_record::write(&self.dir, &self.name, entry)
    }
}

impl Drop for SoloRecord {
    fn drop(&mut self) {
        let _ = self.dir.unlink(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::tests::entry;

    #[test]
    fn only_the_key_of_a_daemon_may_be_shortened() {
        let with = |key: &str, mode| Entry {
            key: key.to_owned(),
            mode,
            ..entry("server", &[])
        };
        let daemon = with("0123456789abcdef", Mode::Shared);
        assert!(daemon.begins_with("0123"));
        assert!(!daemon.begins_with("012"), "too short");
        for (key, mode) in [
            ("solo-4711", Mode::Solo),
            ("guard-4711", Mode::Guard),
            ("kept-4711", Mode::Kept),
        ] {
            let entry = with(key, mode);
            assert!(entry.is_called(key));
            for word in [&key[..4], &key[..key.len() - 1]] {
                assert!(!entry.begins_with(word), "{word}");
            }
        }
    }
}
