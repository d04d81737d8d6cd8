//! Counts the memory that the daemon holds for its clients and servers, and does what the engine decides about it.

use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::{
    BACKLOG, ClientMemory, MIN_PER_CONNECTION, MemoryUse, Reader, STALL_TIMEOUT, ServerSlot,
    excess_unadmitted, has_room_for_hello, hello_bytes, is_stalled,
};
use kennel_core::hello::ClientHello;
use kennel_core::lifetime::ClientId;
use kennel_core::time::Moment;
use kennel_sys::memory::{release_free_memory, release_large_blocks};

use super::client::ClientConn;
use super::daemon_state::DaemonState;
use super::queue::queued_bytes;
use crate::lines::{max_line, retain_nothing};

/// Maximum bytes of a line that is malformed, a batch, or otherwise unusual: all of it is parsed several times while the
/// other clients wait. 4 MiB take less than 0.1 s.
pub(super) const MAX_ODD_LINE: usize = 4 << 20;
/// Number of connections from which on the memory of lines is returned to the system at once. For fewer connections it is
/// faster to keep it.
const MANY_CONNECTIONS: usize = 64;

impl DaemonState {
    /// Whether the hello of another client fits into the memory limit.
    pub(super) fn has_room_for(&self, hello: &ClientHello) -> bool {
        let clients = self.clients.borrow();
        let admitted = clients.values().filter(|conn| conn.is_admitted());
        let kept: usize = admitted.clone().map(|conn| conn.hello_bytes()).sum();
        // A server keeps the hello of the client that it was started for, though that one left.
        let servers = self.servers.borrow();
        let orphaned = servers
            .values()
            .filter(|it| Rc::strong_count(&it.hello) == 1);
        let orphaned: usize = orphaned.map(|it| hello_bytes(&it.hello)).sum();
        let kept = kept + orphaned;
        has_room_for_hello(hello_bytes(hello), kept, admitted.count(), max_line())
    }

    /// Whether memory was short at the last count.
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.memory.borrow().is_short()
    }

    /// Counts the held bytes if the last count is too old.
    pub(super) fn count_memory_if_due(&self, now: Moment) {
        if self.memory.borrow().is_due(now) {
            self.count_memory_at(now);
        }
    }

    /// Whether servers take only the lines that they need.
    pub(super) fn servers_save_memory(&self, now: Moment) -> bool {
        let holds_much = || self.memory.borrow().holds_much(self.held_bytes());
        self.count_memory_if_due(now);
        self.is_short_of_memory() || (queued_bytes() >= BACKLOG && holds_much())
    }

    /// Counts the held bytes, and returns memory to the system that is free between them.
    pub(super) fn count_memory(&self) -> usize {
        self.count_memory_at(self.now())
    }

    fn count_memory_at(&self, now: Moment) -> usize {
        let held = self.held_bytes();
        if self.memory.borrow_mut().counted(held, now) {
            release_free_memory();
        }
        // While the engine handles something, it is counted again soon.
        if self.is_short_of_memory()
            && let Ok(mut engine) = self.engine.try_borrow_mut()
        {
            engine.handle_memory_shortage();
        }
        held
    }

    /// A client was added. The lines of many leave gaps in the memory that nothing fits into, and their buffers add up.
    pub(super) fn return_memory_of_many(&self) {
        if self.clients.borrow().len() == MANY_CONNECTIONS {
            release_large_blocks();
            retain_nothing();
        }
    }

    /// Bytes held for all clients and servers: half lines, and lines in queues.
    fn held_bytes(&self) -> usize {
        let clients = self.clients.borrow();
        let half_lines: usize = clients.values().map(|it| it.half_line_memory()).sum();
        half_lines + queued_bytes() + self.held_for_servers()
    }

    /// Bytes of lines and hellos that a snapshot has: a line that waits in several queues counts in each.
    pub(super) fn snapshot_bytes(&self) -> usize {
        let clients = self.clients.borrow();
        let of = |it: &Rc<ClientConn>| it.half_line_length() + it.to_client.len() + it.text_bytes();
        let clients: usize = clients.values().map(of).sum();
        clients + self.held_for_servers()
    }

    /// Drops the half lines of clients that began at a moment for which `is_stale` holds, so that a newer build can take
    /// over: a request among them gets an error when its line ends. Returns whether there was one.
    pub(super) fn drop_half_lines(&self, is_stale: impl Fn(Moment) -> bool) -> bool {
        let clients = self.clients.borrow();
        let is_dropped = |conn: &&Rc<ClientConn>| {
            let began = conn.half_line_since().map(|since| self.moment(since));
            conn.half_line_length() > MIN_PER_CONNECTION && began.is_some_and(&is_stale)
        };
        let dropped = clients.values().filter(is_dropped);
        let count = dropped.map(|conn| conn.skip_half_line()).count();
        if count > 0 {
            self.log.line(format_args!(
                "half lines of {count} clients are skipped, so that a newer build can take over"
            ));
        }
        count > 0
    }

    /// Bytes of lines to and from servers, without those in clients' queues.
    fn held_for_servers(&self) -> usize {
        let engine = self.engine.borrow();
        let slots: usize = engine.slots().map(ServerSlot::held_bytes).sum();
        let servers = self.servers.borrow();
        slots + servers.values().map(|it| it.held_bytes()).sum::<usize>()
    }

    /// The memory use, for the engine's decision.
    pub(super) fn memory_use(&self) -> MemoryUse {
        let (clients, engine) = (self.clients.borrow(), self.engine.borrow());
        let now = Instant::now();
        let memory_of = |(id, conn): (&ClientId, &Rc<ClientConn>)| ClientMemory {
            client: *id,
            slot: engine.slot_of(*id),
            is_admitted: conn.is_admitted(),
            is_leaving: conn.is_leaving(),
            half_line: conn.half_line_length(),
            half_line_memory: conn.half_line_memory(),
            half_line_since: conn.half_line_since().map(|at| self.moment(at)),
            waits_since: conn.waits_since().map(|at| self.moment(at)),
            last_read: self.moment(conn.last_read()),
            unread: conn.to_client.len(),
            unread_since: conn.unread_since(now).map(|at| self.moment(at)),
            holds_up_others: self.holds_up_others(conn),
        };
        MemoryUse {
            max_line: max_line(),
            clients: clients.iter().map(memory_of).collect(),
            elsewhere: queued_bytes() + self.held_for_servers(),
        }
    }

    /// Whether there is room for this half line, perhaps after dropping others.
    pub(super) fn make_room(&self, reader: Reader) -> bool {
        self.count_memory();
        if !self.is_short_of_memory() {
            return true;
        }
        // Those whose unread lines are Kennel's own have no server that would drop them.
        self.drop_stalled();
        let has_input = |id: ClientId| self.client(id).is_some_and(|conn| conn.has_input());
        let has_room = self
            .memory_use()
            .make_room(reader, self.now(), has_input, |id| self.drop_half_line(id));
        self.count_memory();
        has_room
    }

    /// The same for a client's half line.
    pub(super) fn make_room_for_client(&self, client: ClientId) -> bool {
        let engine = self.engine.borrow();
        let slot = engine.slot_of(client).and_then(|slot| engine.slot(slot));
        let server_has_queue = slot.is_some_and(|slot| !slot.lanes().is_empty());
        drop(engine);
        self.make_room(Reader::Client {
            client,
            server_has_queue,
        })
    }

    /// Returns how many bytes of memory are free by that.
    fn drop_half_line(&self, client: ClientId) -> usize {
        let Some(conn) = self.client(client) else {
            return 0;
        };
        let before = conn.half_line_memory();
        conn.drop_half_line(self);
        before.saturating_sub(conn.half_line_memory())
    }

    /// Handles a new connection. If too many have not sent their first line, the oldest of them is refused.
    pub(super) fn limit_unadmitted(&self) {
        let clients = self.clients.borrow();
        let unadmitted = clients.values();
        let unadmitted = unadmitted.filter(|it| !it.is_admitted() && !it.is_leaving());
        let refused = excess_unadmitted(unadmitted.map(|it| it.id));
        if let Some(conn) = refused.and_then(|id| clients.get(&id)) {
            conn.refuse_for_shortage(self);
        }
    }

    /// Whether its server has other clients, and was held up for too long.
    fn holds_up_others(&self, conn: &ClientConn) -> bool {
        let engine = self.engine.borrow();
        let slot = engine.slot_of(conn.id);
        let server_io = slot.and_then(|slot| self.server_io(slot));
        server_io.is_some_and(|it| it.hold_up.borrow().is_too_long())
            && engine.shares_server(conn.id)
    }

    /// Disconnects clients that do not read, if much memory is held. Returns when to check again if nothing is written
    /// before.
    pub(super) fn drop_stalled(&self) -> Instant {
        let can_write = |id: ClientId| self.client(id).is_some_and(|conn| conn.can_write());
        let stalled = self.memory_use().stalled(self.now(), can_write);
        for id in stalled.clients {
            if let Some(conn) = self.client(id) {
                self.disconnect_stalled(&conn);
            }
        }
        self.instant(stalled.check_again)
    }

    /// Disconnects a client that does not read, or too slowly, and logs that.
    pub(super) fn disconnect_stalled(&self, conn: &ClientConn) {
        let (client, unread) = (conn.id.0, conn.to_client.len());
        let since = conn.to_client.waits_since().map(|at| self.moment(at));
        match is_stalled(since, self.now()) {
            true => self.log.line(format_args!(
                "client {client} does not read: {unread} bytes are queued for it, and it has taken none for {} s",
                STALL_TIMEOUT.as_secs()
            )),
            false => self.log.line(format_args!(
                "client {client} reads too slowly: {unread} bytes are queued for it, and others wait for its server"
            )),
        }
        conn.disconnect();
    }
}
