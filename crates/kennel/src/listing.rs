//! Who runs: daemons by their records, solo sessions and guards by theirs. Looking creates nothing, and believes no
//! record whose process is gone (rule 6), or does not hold the lock that it would hold: any process of the user can write a
//! record, and `stop` signals who is listed here. The kernel says who holds a lock.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::lock;
use kennel_sys::process::{self, Identity, ProcessRef};
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use kennel_sys::tree::{self, Families, Recorded};
use serde::{Deserialize, Serialize};

use crate::daemon::{ClientState, DaemonListing, Restart, STATE, ServerState};
use crate::guard::record::{self as guards, Guarded};
use crate::meeting::{DAEMON_LOCK, Meeting};
use crate::sharing::ServersToml;
use crate::sources::Sources;
use crate::stopped::StoppedProcess;

/// Where solo sessions write down who they are.
const SOLO: &str = "solo";
const LONGEST: usize = 1 << 20;

/// A daemon or a solo session, as `kennel ps --json` shows it.
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
    /// Why this session has a server of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// This session has one only because it found no daemon, and shares again when there is one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dedicated_for_now: bool,
    pub(crate) owner: Option<u32>,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<ClientState>,
    /// What as many servers as clients would hold in memory beyond what these do.
    #[serde(default)]
    pub(crate) saved_bytes: u64,
    /// How often another server took the place of one that sessions used.
    #[serde(default)]
    pub(crate) restarts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_restart: Option<Restart>,
    /// Since when nobody is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_since: Option<u64>,
    /// What only a guarded server has: ports, connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guarded: Option<Guarded>,
    /// The process of `identity`, if it is stopped now: nobody is served by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stopped: Option<StoppedProcess>,
    /// Who this is: the daemon, the shim of a solo session, or the guard.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    #[serde(flatten)]
    pub(crate) state: ServerState,
    /// What its process tree holds in memory now.
    pub(crate) rss_bytes: Option<u64>,
    /// What it was started from has changed on disk since.
    #[serde(default)]
    pub(crate) stale: bool,
    /// Its process that is stopped now, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stopped: Option<StoppedProcess>,
}

/// Stops the server of a session that is dedicated only for now.
pub(crate) const STOP_SERVER: Signal = Signal::USR1;

/// The state of a session whose server starts again when somebody asks for something.
pub(crate) const HIBERNATING: &str = "hibernating";

impl Entry {
    /// Whether there is nothing to stop.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.state == HIBERNATING
    }

    /// What the process of [`identity`](Self::identity) is.
    pub(crate) fn keeper(&self) -> &'static str {
        match self.mode {
            Mode::Shared => "daemon",
            Mode::Guard => "guard",
            Mode::Solo => "session",
            Mode::Kept => "service",
        }
    }

    /// Whether clients are attached: they wait for a server, and do not rest.
    fn serves_somebody_else(&self) -> bool {
        !self.is_at_rest() && !self.clients.is_empty()
    }

    /// The process that ends the whole entry when it ends.
    pub(crate) fn process(&self) -> Option<ProcessRef> {
        let identity: Identity = self.identity.as_deref()?.parse().ok()?;
        ProcessRef::find(&identity).ok().flatten()
    }

    /// The signal that stops it. A session that is dedicated only for now is one of a daemon's: its server is stopped, and
    /// the session stays. It shows that only if its build knows the signal.
    pub(crate) fn stop_signal(&self) -> Signal {
        match self.dedicated_for_now && self.mode == Mode::Solo {
            true => STOP_SERVER,
            false => Signal::TERM,
        }
    }

    /// Asks `process`, which is this one's, to stop; `false` if it is gone. Continues it if somebody stopped it (SIGSTOP):
    /// else it would not hear that.
    pub(crate) fn ask_to_stop(&self, process: &ProcessRef) -> io::Result<bool> {
        let asked = process.signal(self.stop_signal())?;
        let _ = process.signal(Signal::CONT);
        Ok(asked)
    }

    /// The processes whose end shows that it is stopped: `process` itself, or what is in charge of the servers of a session
    /// that stays.
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

    /// The time that `process`, which is this one's, gives its servers to end: the longest of their ladders.
    pub(crate) fn longest_ladder(&self, process: &ProcessRef) -> Duration {
        let theirs = |tree: &Recorded| tree.served.same_process(process.identity());
        let ladders = trees().into_iter().filter(theirs);
        let ladders = ladders.filter_map(|tree| tree.ladder());
        let longest = ladders.map(|ladder| ladder.after_eof + ladder.after_term);
        longest.max().unwrap_or_default()
    }

    /// Whether this is its whole name or key. Several may have a name.
    pub(crate) fn is_called(&self, word: &str) -> bool {
        self.name == word || self.key == word
    }

    /// Whether its key begins so, and can be shortened: the key of a daemon can, being a hash. The others end with a pid, and
    /// the first digits of one are the pid of another process.
    fn begins_with(&self, word: &str) -> bool {
        self.mode == Mode::Shared && word.len() >= 4 && self.key.starts_with(word)
    }
}

/// Whom a person means: all of a name, be it one that they gave in servers.toml, or the one whose key begins so.
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

/// Several keys begin with the same letters: nobody knows which one is meant.
#[derive(Debug)]
pub(crate) struct Ambiguous<'a>(pub(crate) Vec<&'a Entry>);

/// Everyone who runs now. What is in a directory that is refused is not listed: `refused.rs` names it.
pub(crate) fn all() -> Result<Vec<Entry>, DirError> {
    let mut all: Vec<Entry> = Meeting::all()?.iter().filter_map(daemon).collect();
    let user = RuntimeDir::find_of_user()?;
    let guards: Vec<Entry> = user.iter().flat_map(guards::entries).collect();
    let pid = |entry: &Entry| entry.process().map(|process| process.pid());
    let others: Vec<u32> = all.iter().chain(&guards).filter_map(pid).collect();
    // A daemon or a guard is no session: a planted record would have it stopped under another name.
    let sessions = solo_sessions()?.into_iter();
    let sessions = sessions.filter(|it| pid(it).is_some_and(|pid| !others.contains(&pid)));
    let (resting, solo): (Vec<Entry>, Vec<Entry>) =
        sessions.partition(|entry| entry.mode == Mode::Shared);
    add_resting(&mut all, resting);
    all.extend(solo);
    all.extend(guards);
    all.extend(user.iter().flat_map(crate::kept::entries));
    weigh(&mut all, &trees());
    all.sort_by(|one, other| (one.since, &one.key).cmp(&(other.since, &other.key)));
    Ok(all)
}

fn daemon(meeting: &Meeting) -> Option<Entry> {
    let record = meeting.record()?;
    let process = record.process()?;
    if !lock::is_held_by(meeting.dir(), DAEMON_LOCK, &process, record.lock)
        || !meeting.is_daemon(&process)
    {
        return None;
    }
    let state = meeting.dir().read_small(STATE, LONGEST).ok().flatten();
    let state: Option<DaemonListing> = state.and_then(|text| serde_json::from_slice(&text).ok());
    let state = state.unwrap_or_else(|| DaemonListing {
        clients: Vec::new(),
        servers: Vec::new(),
        state: "starting".to_owned(),
        owner: None,
        restarts: 0,
        last_restart: None,
        idle_since: None,
    });
    let servers: Vec<Server> = state.servers.into_iter().map(looked_at).collect();
    Some(Entry {
        key: meeting.key().to_owned(),
        name: record.name,
        command: record.command,
        cwd: record.cwd,
        mode: Mode::Shared,
        daemon_pid: Some(process.pid()),
        version: record.version,
        since: record.since,
        state: state.state,
        why: None,
        dedicated_for_now: false,
        owner: state.owner,
        saved_bytes: 0,
        servers,
        clients: state.clients,
        restarts: state.restarts,
        last_restart: state.last_restart,
        idle_since: state.idle_since,
        guarded: None,
        stopped: None,
        identity: Some(record.identity),
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
        let text = solo.read_small(&name, LONGEST).ok()??;
        let mut entry: Entry = serde_json::from_slice(&text).ok()?;
        let process = entry.process()?;
        if *name != *process.pid().to_string() || !lock::is_dir_held_by(&user, &process) {
            return None;
        }
        let servers = entry
            .servers
            .into_iter()
            .map(|server| looked_at(server.state));
        entry.servers = servers.collect();
        Some(entry)
    };
    // What is written aside takes its name a moment later: it is the same session.
    let has_its_name = |name: &OsString| !name.as_encoded_bytes().starts_with(b".");
    let names = solo.entries()?.into_iter().filter(has_its_name);
    Ok(names.filter_map(read).collect())
}

/// Sessions whose shared server hibernates, and that have no daemon or left theirs: one entry for those of a key.
fn add_resting(daemons: &mut Vec<Entry>, resting: Vec<Entry>) {
    for mut entry in resting {
        let same = |other: &&mut Entry| other.key == entry.key;
        match daemons.iter_mut().find(same) {
            // One that lingers without a server waits for them.
            Some(daemon) if daemon.servers.is_empty() && !daemon.serves_somebody_else() => {
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

/// Against one server for each client.
fn saved(servers: &[Server]) -> u64 {
    let beyond_the_first = |server: &Server| {
        let others = server.state.clients.saturating_sub(1) as u64;
        others * server.rss_bytes.unwrap_or(0)
    };
    servers.iter().map(beyond_the_first).sum()
}

/// The process trees on record.
fn trees() -> Vec<Recorded> {
    let user = RuntimeDir::find_of_user().ok().flatten();
    let trees = user.and_then(|user| user.existing_subdir("trees").ok()?);
    let recorded = trees.map(|trees| tree::recorded(&trees));
    recorded.and_then(Result::ok).unwrap_or_default()
}

/// What each server holds, with its whole process tree. Where the process that was started is gone, a launcher that left a
/// server behind, the server is shown in its place.
fn weigh(entries: &mut [Entry], trees: &[Recorded]) {
    let families = Families::now().ok();
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
            let family = |pid| families.as_ref().map_or(vec![pid], |all| all.of(pid));
            let family_rss = |pid| {
                family(pid)
                    .into_iter()
                    .filter_map(process::resident_memory)
                    .sum::<u64>()
            };
            let tops = match (&warden, &families) {
                (Some(warden), Some(families)) => families.children(warden.pid()),
                _ => vec![pid],
            };
            let held = tops.iter().map(|&top| family_rss(top)).sum::<u64>();
            server.rss_bytes = (held > 0).then_some(held);
            let stopped = families.as_ref().and_then(|all| tree::stopped(&tops, all));
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

pub(crate) fn looked_at(state: ServerState) -> Server {
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

/// A solo session's own record, as long as it lives. One that a kill leaves behind is not believed.
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

    /// Whole, or not at all: whoever looks sees this or what was there before.
    pub(crate) fn rewrite(&self, entry: &Entry) -> Result<(), DirError> {
        let text = serde_json::to_vec(entry).expect("strings and numbers have a text");
        self.dir.write_whole(&self.name, &text)
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
    fn only_the_key_of_a_daemon_is_known_by_its_first_letters() {
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
