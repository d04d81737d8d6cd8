//! What `kennel ps` shows of a daemon: written when it changes, read by whoever looks.

use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::daemon_state::DaemonState;
use super::tasks::{first_of, moments};
use crate::sources::Sources;

/// The state's name in the key's directory.
pub(crate) const STATE: &str = "state.json";

/// A crowd is one change.
const CROWD: Duration = Duration::from_millis(50);
/// Requests alone are written down no more often: they are many, and nobody but a person wants to know.
pub(super) const TALK: Duration = Duration::from_secs(1);

/// Who is here. It may be outdated: the daemon's lock tells whether it lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonListing {
    pub(crate) clients: Vec<ClientState>,
    pub(crate) servers: Vec<ServerState>,
    /// Where its life stands, in words.
    pub(crate) state: String,
    /// The owner's pid.
    pub(crate) owner: Option<u32>,
    pub(crate) restarts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_restart: Option<Restart>,
    /// Since when nobody is attached, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_since: Option<u64>,
}

/// Why and when another server took the place of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restart {
    /// In seconds since 1970.
    pub(crate) at: u64,
    pub(crate) reason: String,
    /// The pid of the one that is gone.
    pub(crate) server: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientState {
    pub(crate) pid: u32,
    pub(crate) app_pid: Option<u32>,
    /// The name of the app's process.
    pub(crate) app: Option<String>,
    /// What the app calls itself (`clientInfo.name`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<String>,
    pub(crate) since: u64,
}

impl ClientState {
    /// What people call it: what it calls itself, else the name of its process.
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
    /// How long it takes for an answer, in microseconds: the median of the last few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us: Option<u64>,
    /// How many share it.
    #[serde(default)]
    pub(crate) clients: usize,
    /// What it was started from: whoever lists it sees whether that is still so.
    #[serde(default, skip_serializing_if = "Sources::is_empty")]
    pub(crate) sources: Sources,
}

/// Writes the state soon after it changed. Not at once: a file costs more than all that a client waits for when
/// it comes, and on a busy disk many times as much.
pub(super) async fn keep(daemon: Rc<DaemonState>) {
    let mut written = Vec::new();
    loop {
        first_of! {
            () = daemon.changed.notified() => moments::after(CROWD).await,
            () = daemon.talked.notified() => first_of! {
                () = daemon.changed.notified() => moments::after(CROWD).await,
                () = moments::after(TALK) => {},
            },
        }
        let text = text(&daemon);
        // Not at our place any more: there may be somebody else's.
        let has_place = !daemon.engine.borrow().has_moved() && daemon.lock.borrow().is_some();
        if has_place && text != written {
            // A full disk keeps people from seeing, not clients from being served.
            if daemon.meeting.dir().write_whole(STATE, &text).is_ok() {
                written = text;
            }
        }
    }
}

fn text(daemon: &DaemonState) -> Vec<u8> {
    let clients = daemon.clients.borrow();
    let engine = daemon.engine.borrow();
    let servers = daemon.servers.borrow();
    let state = DaemonListing {
        clients: clients
            .iter()
            .map(|(id, link)| link.state(engine.client_name(*id)))
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
    serde_json::to_vec(&state).expect("strings and numbers have a text")
}
