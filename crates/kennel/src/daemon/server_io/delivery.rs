//! When a server is read. It is not read while its clients have a backlog and the daemon
//! holds much: so all that read are served, as fast as the slowest of them, and memory is bounded. Only a client that does
//! not read at all is disconnected.

use std::time::Instant;

use super::super::daemon_state::DaemonState;
use super::super::memory::{BACKLOG, SMALL};
use super::super::queue::queued_bytes;
use super::super::tasks::{first_of, moments};
use super::ServerIo;

/// Why the server is not read for now.
enum Hold {
    /// Its only client has enough to read.
    Alone,
    /// The daemon holds much; until when to wait for clients to read.
    Memory(Instant),
}

impl ServerIo {
    /// Waits until the server may be read.
    pub(in crate::daemon) async fn may_speak(&self, daemon: &DaemonState) {
        while let Some(hold) = self.hold(daemon) {
            let until = match hold {
                Hold::Alone => None,
                Hold::Memory(until) => Some(until),
            };
            first_of! {
                () = daemon.drained.notified() => {},
                () = self.stirred.notified() => {},
                () = moments::until(until) => {},
            }
        }
    }

    fn hold(&self, daemon: &DaemonState) -> Option<Hold> {
        if queued_bytes() < BACKLOG {
            return None;
        }
        let (alone, unread) = {
            let ids = daemon.engine.borrow().clients_of(self.slot);
            let clients = daemon.clients.borrow();
            let its = ids.iter().filter_map(|id| clients.get(id));
            let alone = ids.len() == 1 && its.clone().all(|it| it.to_client.is_full());
            (alone, its.map(|it| it.to_client.len()).max().unwrap_or(0))
        };
        match unread >= SMALL && daemon.holds_much_with(unread) {
            true => Some(Hold::Memory(daemon.drop_stalled())),
            false => alone.then_some(Hold::Alone),
        }
    }
}
