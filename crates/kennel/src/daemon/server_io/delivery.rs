//! Decides when a server is read. It is not read while its clients have a backlog and the daemon holds much: all clients
//! that read are served as fast as the slowest of them, and memory is bounded. A client that does not read, or that holds up
//! the others for too long, is disconnected.

use kennel_core::engine::daemon::{BACKLOG, ServerSlot, ServerThrottle};

use super::super::daemon_state::DaemonState;
use super::super::queue::queued_bytes;
use super::super::timers::Timer;
use super::ServerIo;

impl ServerIo {
    /// Whether the server may be read. If not, it is run when that may have changed.
    pub(in crate::daemon) fn update_throttle(&self, daemon: &DaemonState) -> bool {
        let throttle = self.throttle(daemon);
        let is_throttled = throttle.is_some();
        if is_throttled || self.is_throttled.get() {
            let mut throttled = daemon.throttled_servers.borrow_mut();
            match is_throttled {
                true => throttled.insert(self.slot),
                false => throttled.remove(&self.slot),
            };
            drop(throttled);
            self.is_throttled.set(is_throttled);
            let engine = daemon.engine.borrow();
            let clients = engine.slot(self.slot).map_or(0, ServerSlot::clients);
            drop(engine);
            // An only client holds up nobody.
            if clients > 1 {
                self.hold_up.borrow_mut().record(daemon.now());
            }
            let until = match throttle {
                Some(ServerThrottle::Memory) => Some(daemon.drop_stalled()),
                Some(ServerThrottle::OnlyClient) | None => None,
            };
            daemon.set_timer(Timer::ServerThrottle(self.slot), until);
        }
        !is_throttled
    }

    fn throttle(&self, daemon: &DaemonState) -> Option<ServerThrottle> {
        if queued_bytes() < BACKLOG {
            return None;
        }
        let clients = daemon.engine.borrow().clients_of(self.slot);
        let unread = |id| daemon.client(id).map(|conn| conn.to_client.len());
        let unread: Vec<usize> = clients.into_iter().filter_map(unread).collect();
        let held = daemon.count_memory();
        daemon.memory.borrow().server_throttle(&unread, held)
    }
}
