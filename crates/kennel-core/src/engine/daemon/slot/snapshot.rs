//! The snapshot of a slot, and how a newer build restores it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Lanes, Phase, ServerSlot, SlotId, SlotKey};
use crate::engine::silence::SilenceTimer;
use crate::mux::{Mux, MuxPolicy};
use crate::session::ServerExit;
use crate::time::Moment;

/// The state of a slot that a newer build restores.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlotSnapshot {
    /// The state of the mux.
    pub mux: Mux,
    /// The lines queued for its server.
    pub lanes: Lanes,
    /// Whether its server runs.
    pub running: bool,
    /// Whether some taken lines are not written completely.
    pub writing: bool,
    /// When its server may start.
    pub start_at: Moment,
    /// Since when it has no client.
    #[serde(rename = "deserted_since")]
    pub empty_since: Option<Moment>,
    /// How the first process of its server ended, if it did.
    pub first_process: Option<ServerExit>,
}

/// The state of a slot in a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct SlotState<'a> {
    /// The state of the mux.
    pub mux: &'a Mux,
    /// The lines queued for its server.
    pub lanes: &'a Lanes,
    /// When its server may start.
    pub start_at: Moment,
    /// Since when it has no client.
    pub empty_since: Option<Moment>,
}

impl ServerSlot {
    /// Restores a slot of an older build.
    pub(in crate::engine::daemon) fn restore(
        id: SlotId,
        key: SlotKey,
        snapshot: SlotSnapshot,
        linger: Option<Duration>,
        now: Moment,
    ) -> ServerSlot {
        let class = snapshot.mux.class().clone();
        let mut silence = SilenceTimer::default();
        if let Some(ending) = snapshot.first_process {
            silence.handle_first_process_exit(ending);
        }
        ServerSlot {
            silence,
            start_at: snapshot.start_at,
            mux: snapshot.mux,
            lanes: snapshot.lanes,
            writing: snapshot.writing,
            empty_since: snapshot.empty_since,
            phase: match snapshot.running {
                true => Phase::Running,
                false => Phase::Waiting,
            },
            ..ServerSlot::new(id, key, class, MuxPolicy::default(), linger, now)
        }
    }

    /// The state for a newer build. The driver adds what it knows: whether the server runs, which bytes are not written,
    /// and how the first process ended.
    pub fn snapshot(&self) -> SlotState<'_> {
        let ServerSlot {
            mux,
            lanes,
            start_at,
            empty_since,
            // Follow from the mux, the clients and the settings.
            id: _,
            key: _,
            clients: _,
            clients_changed: _,
            linger: _,
            hibernate_after: _,
            // The driver knows these.
            phase: _,
            writing: _,
            silence: _,
            // The files are compared again.
            outdated: _,
            // Begins anew.
            last_used: _,
        } = self;
        SlotState {
            mux,
            lanes,
            start_at: *start_at,
            empty_since: *empty_since,
        }
    }
}
