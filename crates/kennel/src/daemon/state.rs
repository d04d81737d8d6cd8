//! The state file of a daemon, which `kennel ps` reads.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::daemon_state::DaemonState;
use crate::sources::Sources;

/// The name of the state file in the key's directory.
pub(crate) const STATE: &str = "state.json";

/// Changes are written after this time: many at once are written once.
pub(super) const WRITE_CHANGES_AFTER: Duration = Duration::from_millis(50);
/// Delay before a change of request counts alone is written: such changes are frequent, and only people read them.
pub(super) const WRITE_REQUESTS_AFTER: Duration = Duration::from_secs(1);

/// The content of the state file. It may be outdated: the daemon's lock tells whether the daemon lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonListing {
    pub(crate) clients: Vec<ClientState>,
    pub(crate) servers: Vec<ServerState>,
    /// The state of its lifetime.
    pub(crate) state: String,
    /// The owner's pid.
    pub(crate) owner: Option<u32>,
    pub(crate) restarts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_restart: Option<Restart>,
    /// Since when no client is attached, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_since: Option<u64>,
}

/// The last replacement of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restart {
    /// In seconds since 1970.
    pub(crate) at: u64,
    pub(crate) reason: String,
    /// The pid of the replaced server.
    pub(crate) server: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientState {
    pub(crate) pid: u32,
    pub(crate) app_pid: Option<u32>,
    /// The name of the app's process.
    pub(crate) app: Option<String>,
    /// The name of the app (`clientInfo.name`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<String>,
    pub(crate) since: u64,
}

impl ClientState {
    /// The name that the client gives itself, else that of the app's process.
    pub(crate) fn name(&self) -> &str {
        let name = self.client.as_deref().or(self.app.as_deref());
        name.unwrap_or("?")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerState {
    pub(crate) pid: u32,
    pub(crate) class: Option<String>,
    pub(crate) since: u64,
    pub(crate) requests: u64,
    /// The time to an answer in microseconds: the median of the last few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us: Option<u64>,
    /// How many clients share it.
    #[serde(default)]
    pub(crate) clients: usize,
    /// The files that it was started from, so that readers can compare them.
    #[serde(default, skip_serializing_if = "Sources::is_empty")]
    pub(crate) sources: Sources,
}

/// When the state is written. Not at once: to write a file takes longer than all else that a new client waits for, and on a
/// busy disk many times as long.
#[derive(Debug, Default)]
pub(super) struct WriteState {
    /// Something changed since the last write.
    pub(super) is_changed: Cell<bool>,
    /// A client sent a request since the last write.
    pub(super) has_new_requests: Cell<bool>,
    written: RefCell<Vec<u8>>,
}

/// Writes the state file if its content changes.
pub(super) fn write(daemon: &DaemonState) {
    daemon.listing.is_changed.set(false);
    daemon.listing.has_new_requests.set(false);
    let text = text(daemon);
    // Without its runtime directory: the files there may be another daemon's.
    let has_runtime_dir = !daemon.engine.borrow().has_moved() && daemon.lock.borrow().is_some();
    let mut written = daemon.listing.written.borrow_mut();
    // On a full disk `ps` shows old state; clients are served all the same.
    if has_runtime_dir && text != *written && daemon.key_dir.dir().write_whole(STATE, &text).is_ok()
    {
        *written = text;
    }
}

fn text(daemon: &DaemonState) -> Vec<u8> {
    let clients = daemon.clients.borrow();
    let engine = daemon.engine.borrow();
    let servers = daemon.servers.borrow();
    let state = DaemonListing {
        clients: clients
            .iter()
            .map(|(id, conn)| conn.state(engine.client_name(*id)))
            .collect(),
        servers: servers
            .values()
            .filter_map(|server_io| server_io.state(engine.slot(server_io.slot)?))
            .collect(),
        state: engine.life_state(),
        owner: daemon.owner.map(|owner| owner.pid()),
        restarts: daemon.restarts.get(),
        last_restart: daemon.last_restart.borrow().clone(),
        idle_since: daemon.idle_since.get(),
    };
    serde_json::to_vec(&state).expect("strings and numbers can be serialized")
}
