//! The decisions of `kennel daemon`: which server a client gets, what its lines mean, when servers start, stop, hibernate
//! and are replaced, and when the daemon itself ends.
//!
//! [`Daemon`] has no clock and does no I/O. A driver
//!
//! 1. hands in what happened: a client's connection, lines, the end of a process;
//! 2. carries out what [`poll_action`](Daemon::poll_action) gives, until there is nothing left;
//! 3. calls [`advance`](Daemon::advance) at [`next_timeout`](Daemon::next_timeout); or, if it has a timer for each slot,
//!    [`advance_slot`](Daemon::advance_slot) at [`slot_timeout`](Daemon::slot_timeout), and
//!    [`advance_life`](Daemon::advance_life) at [`life_timeout`](Daemon::life_timeout) and after any other event.
//!
//! | file | what it decides |
//! |---|---|
//! | `client.rs` | what a client's lines open or mean, what it is told, when it is finished |
//! | `pool.rs` | which slot a client gets, when a slot's server may start |
//! | `server.rs` | what follows from a server's lines, loss, hibernation and replacement |
//! | `slot.rs`, `lanes.rs` | when one server stops or hibernates, and what waits for it |
//! | `restarts.rs` | when a lost server starts again |
//! | `era.rs` | whether a server is asked for the modern era |
//! | `life.rs` | when the daemon ends |
//! | `upgrade.rs` | when it hands over to a newer build |
//! | `action.rs` | nothing: events and actions |

mod action;
mod client;
mod era;
mod lanes;
mod life;
mod pool;
mod restarts;
mod server;
mod slot;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use action::{
    Action, ClientPlace, ClientSnapshot, Dedicated, FirstLine, InputLine, Introduction, LeaveTried,
    Report, SlotId, StartFailure,
};
pub use lanes::{CHUNK, Lanes};
pub use slot::{ServerSlot, SlotSnapshot};
pub use upgrade::HandoverWait;

use client::Client;
use era::KnownEra;
use life::{Ending, Life};
use restarts::{Restarts, SlotKey};
use slot::SlotAction;

use crate::lifetime::{self, ClientId, Owner};
use crate::mux::Out;
use crate::time::Moment;

/// How a daemon is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// When it ends by itself.
    pub lifetime: lifetime::Policy,
    /// Whether a process outside bounds its life.
    pub owner: Owner,
    /// Maximum bytes of a line.
    pub max_line: usize,
}

/// All clients and servers of a daemon.
#[derive(Debug)]
pub struct Daemon {
    clients: BTreeMap<ClientId, Client>,
    /// From a slot's first client until nothing is left of its server's process tree.
    slots: BTreeMap<SlotId, ServerSlot>,
    restarts: Restarts,
    era: KnownEra,
    life: Life,
    ending: Ending,
    /// No further client is let in.
    closed: bool,
    /// Its runtime directory is gone.
    moved: bool,
    /// Clients that send no more, and wait for answers.
    half_closed: BTreeSet<ClientId>,
    short_of_memory: bool,
    max_line: usize,
    next_client: u64,
    next_slot: u64,
    /// The moment of the last event.
    now: Moment,
    actions: VecDeque<Action>,
    /// The slot whose mux is polled next, and whose line led to that.
    settling: Option<(SlotId, Option<ClientId>)>,
}

impl Daemon {
    /// A daemon without clients.
    pub fn new(settings: &Settings, now: Moment) -> Daemon {
        Daemon {
            clients: BTreeMap::new(),
            slots: BTreeMap::new(),
            restarts: Restarts::default(),
            era: KnownEra::default(),
            life: Life::new(settings.lifetime, settings.owner, now),
            ending: Ending::No,
            closed: false,
            moved: false,
            half_closed: BTreeSet::new(),
            short_of_memory: false,
            max_line: settings.max_line,
            next_client: 1,
            next_slot: 0,
            now,
            actions: VecDeque::new(),
            settling: None,
        }
    }

    /// Goes on with what an older build knew: the number of its next client, and whether its servers know the modern era.
    pub fn restore(&mut self, next_client: u64, modern: Option<bool>) {
        self.next_client = next_client;
        self.era = KnownEra::restore(modern);
    }

    /// Goes on with a slot of an older build. Slots are restored in order, and before clients.
    pub fn restore_slot(&mut self, snapshot: SlotSnapshot, session: &str, now: Moment) -> SlotId {
        let id = self.next_slot();
        let key = SlotKey::new(snapshot.mux.class(), session);
        let mut slot = ServerSlot::restore(id, key, snapshot, self.life.linger(), now);
        slot.mux_mut().set_max_line(self.max_line);
        self.slots.insert(id, slot);
        id
    }

    /// The number of the next client.
    pub fn next_client(&self) -> u64 {
        self.next_client
    }

    /// Whether a server has shown to know the modern era, or not to.
    pub fn knows_modern(&self) -> Option<bool> {
        self.era.is_modern()
    }

    /// Whether the daemon holds so much that servers take nothing beyond what they need: of the lines that follow.
    pub fn set_short_of_memory(&mut self, is_short: bool) {
        self.short_of_memory = is_short;
    }

    /// A slot, to look at.
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

    /// Whether no request is pending, and nothing is on its way to a server.
    pub fn is_quiet(&self) -> bool {
        self.slots.values().all(ServerSlot::is_quiet)
    }

    /// Does all that is due by now.
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

    /// When to call [`advance`](Self::advance), if nothing happens before.
    pub fn next_timeout(&self, now: Moment) -> Option<Moment> {
        let slots = self.slots.keys();
        let slots = slots.filter_map(|slot| self.slot_timeout(*slot, now));
        slots.chain(self.life_timeout()).min()
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            let (slot, by) = self.settling?;
            if let Some(action) = self.poll_slot(slot, by) {
                return Some(action);
            }
        }
    }

    /// Something happened at this slot: its mux is polled from now on.
    fn settle(&mut self, slot: SlotId, by: Option<ClientId>) {
        if let Some((other, _)) = self.settling.replace((slot, by))
            && other != slot
        {
            self.flush(other);
            self.settled(other);
        }
    }

    /// What follows next at this slot. `None`: nothing, or it is in `actions`.
    fn poll_slot(&mut self, id: SlotId, by: Option<ClientId>) -> Option<Action> {
        let Some(slot) = self.slots.get_mut(&id) else {
            self.settling = None;
            return None;
        };
        match slot.mux_mut().poll() {
            Some(Out::ToServer { lane, line }) => slot.write_or_queue(lane, line, by, self.now),
            Some(Out::ToClient { client, line }) => slot.deliver(client, line),
            Some(out) => self.take_out(id, out),
            None => {
                self.settling = None;
                // Not before: what was for the server is queued or written by now.
                if slot.is_to_be_replaced() {
                    self.replace(id);
                }
                self.settled(id);
                self.actions.pop_front()
            }
        }
    }

    /// Takes all that follows at this slot into `actions`.
    fn flush(&mut self, id: SlotId) {
        while let Some(slot) = self.slots.get_mut(&id)
            && let Some(out) = slot.mux_mut().poll()
        {
            let action = match out {
                Out::ToServer { lane, line } => slot.write_or_queue(lane, line, None, self.now),
                Out::ToClient { client, line } => slot.deliver(client, line),
                out => self.take_out(id, out),
            };
            self.actions.extend(action);
        }
    }

    /// What follows from what the mux gives for several clients, or less often than for each line.
    fn take_out(&mut self, id: SlotId, out: Out) -> Option<Action> {
        let slot = self.slots.get_mut(&id)?;
        match out {
            Out::ToServer { lane, line } => slot.write_or_queue(lane, line, None, self.now),
            Out::ToClient { client, line } => slot.deliver(client, line),
            Out::ToClients { mut clients, line } => {
                clients.retain(|client| slot.serves(*client));
                Some(Action::ToClients { clients, line })
            }
            Out::Dismiss {
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

    /// All that followed at this slot is carried out, or on its way.
    fn settled(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        while let Some(note) = slot.mux_mut().poll_note() {
            self.actions.push_back(Action::Note { slot: id, note });
        }
        if !self.half_closed.is_empty() {
            self.finish_half_closed(id);
        }
        self.actions.push_back(Action::Settled { slot: id });
    }
}
