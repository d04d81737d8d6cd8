//! Decides everything that `kennel daemon` does: which server a client gets, what its lines mean, when servers start,
//! stop, hibernate and are replaced, and when the daemon itself ends.
//!
//! [`Daemon`] has no clock and does no I/O. A driver
//!
//! 1. passes in events: a client's connection, lines, the end of a process;
//! 2. carries out the actions of [`poll_action`](Daemon::poll_action) until there are none;
//! 3. calls [`advance`](Daemon::advance) at [`next_timeout`](Daemon::next_timeout); or, if it has a timer for each slot,
//!    [`advance_slot`](Daemon::advance_slot) at [`slot_timeout`](Daemon::slot_timeout), and
//!    [`advance_life`](Daemon::advance_life) at [`life_timeout`](Daemon::life_timeout) and after any other event.
//!
//! | file | decides |
//! |---|---|
//! | `client.rs` | which server a first line opens, what control messages mean, when a connection is closed |
//! | `pool.rs` | which slot a client gets, when a slot's server may start |
//! | `server.rs` | what clients get when their server is lost, hibernates or is replaced |
//! | `slot.rs`, `lanes.rs` | when one server stops or hibernates, and the order of its queued lines |
//! | `restarts.rs` | when a lost server starts again |
//! | `era.rs` | whether a server is asked for the modern era |
//! | `life.rs` | when the daemon ends |
//! | `memory.rs` | who is read, and who is disconnected, when much memory is held |
//! | `replies.rs` | what a connection hears that is not served, and how long its first line may take |
//! | `upgrade.rs` | when it hands over to a newer build, and to which |
//! | `action.rs` | nothing: events and actions |

mod action;
mod client;
mod era;
mod lanes;
mod life;
mod memory;
mod pool;
mod replies;
mod restarts;
mod server;
mod slot;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use action::{
    Action, ClientPlace, ClientSnapshot, Dedicated, ExitAttempt, FirstLine, InputLine,
    Introduction, Report, SlotId, StartFailure,
};
pub use lanes::{CHUNK, Lanes};
pub use memory::{
    BACKLOG, ClientMemory, FULL_QUEUE, HalfLine, HoldUpTimer, IDLE, MIN_PER_CONNECTION,
    MIN_READ_BYTES, MemoryUse, MemoryWatch, RECHECK_INTERVAL, Reader, STALL_TIMEOUT,
    ServerThrottle, Stalled, excess_unadmitted, has_much_unread, has_room_for_hello, hello_bytes,
    is_stalled, text_bytes,
};
pub use replies::{
    CLOSE_TIMEOUT, FIRST_LINE_TIMEOUT, RefusedConnection, Replies, TOO_MANY_ENVIRONMENTS,
    UnfinishedFirstLine,
};
pub use slot::{ServerSlot, SlotSnapshot, SlotState};
pub use upgrade::{CheckAnswer, HandoverWait};

use client::Client;
use era::EraKnowledge;
use life::{Life, Shutdown};
use restarts::{Restarts, SlotKey};
use slot::SlotAction;

use crate::lifetime::{self, ClientId, Owner};
use crate::mux::Output;
use crate::time::Moment;

/// The settings of a daemon.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// When it ends.
    pub lifetime: lifetime::Policy,
    /// Whether it ends with an owner process.
    pub owner: Owner,
    /// Maximum bytes of a line.
    pub max_line: usize,
}

/// The state of a daemon in a snapshot, without its clients and slots.
#[derive(Debug, Clone, Copy)]
pub struct DaemonSnapshot {
    /// The number of its next client.
    pub next_client: u64,
    /// Whether its servers have shown that they are modern, or that they are not.
    pub modern: Option<bool>,
    /// When it ends.
    pub lifetime: lifetime::Policy,
}

/// All clients and servers of a daemon.
#[derive(Debug)]
pub struct Daemon {
    clients: BTreeMap<ClientId, Client>,
    /// Each from its first client until its server's process tree is empty.
    slots: BTreeMap<SlotId, ServerSlot>,
    restarts: Restarts,
    era: EraKnowledge,
    life: Life,
    shutdown: Shutdown,
    /// No client is admitted any more.
    closed: bool,
    /// Its runtime directory is gone.
    moved: bool,
    /// Clients that closed their sending half and wait for responses.
    half_closed: BTreeSet<ClientId>,
    short_of_memory: bool,
    max_line: usize,
    next_client: u64,
    next_slot: u64,
    /// The time of the last event.
    now: Moment,
    actions: VecDeque<Action>,
    /// The slot whose mux is polled next, and the client whose line caused it.
    active_slot: Option<(SlotId, Option<ClientId>)>,
}

impl Daemon {
    /// Creates a daemon without clients.
    pub fn new(settings: &Settings, now: Moment) -> Daemon {
        Daemon {
            clients: BTreeMap::new(),
            slots: BTreeMap::new(),
            restarts: Restarts::default(),
            era: EraKnowledge::default(),
            life: Life::new(settings.lifetime, settings.owner, now),
            shutdown: Shutdown::None,
            closed: false,
            moved: false,
            half_closed: BTreeSet::new(),
            short_of_memory: false,
            max_line: settings.max_line,
            next_client: 1,
            next_slot: 0,
            now,
            actions: VecDeque::new(),
            active_slot: None,
        }
    }

    /// The state for a newer build, without the clients and slots.
    pub fn snapshot(&self) -> DaemonSnapshot {
        let Daemon {
            clients: _,
            slots: _,
            era,
            life,
            next_client,
            // Client by client.
            half_closed: _,
            // Begin anew.
            restarts: _,
            next_slot: _,
            now: _,
            // A daemon that ends, or has no runtime directory, hands nothing over.
            shutdown: _,
            closed: _,
            moved: _,
            // Settings, and what the driver counts again.
            max_line: _,
            short_of_memory: _,
            // Without a meaning between two events.
            actions: _,
            active_slot: _,
        } = self;
        DaemonSnapshot {
            next_client: *next_client,
            modern: era.is_modern(),
            lifetime: life.policy,
        }
    }

    /// Restores the state of an older build: the number of its next client, and whether its servers are modern.
    pub fn restore(&mut self, next_client: u64, modern: Option<bool>) {
        self.next_client = next_client;
        self.era = EraKnowledge::restore(modern);
    }

    /// Restores a slot of an older build. Restore slots in order, and before clients.
    pub fn restore_slot(&mut self, snapshot: SlotSnapshot, session: &str, now: Moment) -> SlotId {
        let id = self.next_slot();
        let key = SlotKey::new(snapshot.mux.class(), session);
        let mut slot = ServerSlot::restore(id, key, snapshot, self.life.linger(), now);
        slot.mux_mut().set_max_line(self.max_line);
        slot.mux_mut().return_legacy_sessions();
        self.slots.insert(id, slot);
        id
    }

    /// Whether a server has shown that it is modern, or that it is not.
    pub fn known_modern(&self) -> Option<bool> {
        self.era.is_modern()
    }

    /// Sets whether memory is short: then servers store nothing beyond what they need.
    pub fn set_short_of_memory(&mut self, is_short: bool) {
        self.short_of_memory = is_short;
    }

    /// A slot.
    pub fn slot(&self, id: SlotId) -> Option<&ServerSlot> {
        self.slots.get(&id)
    }

    /// All slots, in order.
    pub fn slots(&self) -> impl Iterator<Item = &ServerSlot> {
        self.slots.values()
    }

    /// All clients.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.keys().copied()
    }

    /// Whether no request is pending and no line is queued for a server.
    pub fn is_quiet(&self) -> bool {
        self.slots.values().all(ServerSlot::is_quiet)
    }

    /// Performs what is due in all slots and for the daemon's end.
    pub fn advance(&mut self, now: Moment) {
        let due = |slot: &&ServerSlot| {
            self.slot_timeout(slot.id(), now)
                .is_some_and(|at| at <= now)
        };
        let due: Vec<SlotId> = self
            .slots
            .values()
            .filter(due)
            .map(ServerSlot::id)
            .collect();
        for slot in due {
            self.advance_slot(slot, now);
        }
        self.advance_life(now);
    }

    /// When to call [`advance`](Self::advance).
    pub fn next_timeout(&self, now: Moment) -> Option<Moment> {
        let slots = self.slots.keys();
        let slots = slots.filter_map(|slot| self.slot_timeout(*slot, now));
        slots.chain(self.life_timeout()).min()
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            let (slot, by) = self.active_slot?;
            if let Some(action) = self.poll_slot(slot, by) {
                return Some(action);
            }
        }
    }

    /// Marks a slot as changed: its mux is polled from now on.
    fn activate_slot(&mut self, slot: SlotId, by: Option<ClientId>) {
        if let Some((other, _)) = self.active_slot.replace((slot, by))
            && other != slot
        {
            self.flush(other);
            self.finish_slot(other);
        }
    }

    /// The next action of this slot. `None`: it has no action, or the action is in `actions`.
    fn poll_slot(&mut self, id: SlotId, by: Option<ClientId>) -> Option<Action> {
        let Some(slot) = self.slots.get_mut(&id) else {
            self.active_slot = None;
            return None;
        };
        match slot.mux_mut().poll_output() {
            Some(Output::ToServer { lane, line }) => slot.write_or_queue(lane, line, by, self.now),
            Some(Output::ToClient { client, line }) => slot.deliver(client, line),
            Some(out) => self.handle_output(id, out),
            None => {
                self.active_slot = None;
                // Only now: all lines for the server are queued or written.
                if slot.must_be_replaced() {
                    self.replace(id);
                }
                self.finish_slot(id);
                self.actions.pop_front()
            }
        }
    }

    /// Moves all actions of this slot into `actions`.
    fn flush(&mut self, id: SlotId) {
        while let Some(slot) = self.slots.get_mut(&id)
            && let Some(out) = slot.mux_mut().poll_output()
        {
            let action = self.handle_output(id, out);
            self.actions.extend(action);
        }
    }

    /// The action for an output of the mux.
    fn handle_output(&mut self, id: SlotId, out: Output) -> Option<Action> {
        let slot = self.slots.get_mut(&id)?;
        match out {
            Output::ToServer { lane, line } => slot.write_or_queue(lane, line, None, self.now),
            Output::ToClient { client, line } => slot.deliver(client, line),
            Output::ToClients { mut clients, line } => {
                clients.retain(|client| slot.serves(*client));
                Some(Action::ToClients { clients, line })
            }
            Output::Dismiss {
                client,
                unsent,
                why,
            } => {
                if slot.dismiss(client, self.now) {
                    self.make_dedicated(client, Dedicated::Later, why, unsent);
                }
                None
            }
        }
    }

    /// Completes the actions of this slot.
    fn finish_slot(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        while let Some(note) = slot.mux_mut().poll_note() {
            self.actions.push_back(Action::Note { slot: id, note });
        }
        if slot.take_clients_changed() {
            self.actions.push_back(Action::ClientsChanged { slot: id });
        }
        if !self.half_closed.is_empty() {
            self.finish_half_closed(id);
        }
        self.actions.push_back(Action::UpdateTimer { slot: id });
    }
}
