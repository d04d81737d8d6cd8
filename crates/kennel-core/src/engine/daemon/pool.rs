//! Decides which server slot a client gets, and when its server may start.

use super::{Action, Daemon, Dedicated, Report, ServerSlot, SlotId, SlotKey};
use crate::lifetime::ClientId;
use crate::mux::Class;
use crate::time::Moment;

/// Maximum number of servers that linger without a client when another one starts.
const MAX_LINGERING: usize = 8;

impl Daemon {
    /// Joins the slot of this class, or a new one. `Err`: the reason why the client must go dedicated.
    pub(super) fn assign_slot(
        &mut self,
        client: ClientId,
        class: Class,
    ) -> Result<SlotId, &'static str> {
        let open = |slot: &&ServerSlot| class.is_shared() && slot.is_open_for(&class);
        let found = self.slots.values().find(open);
        let found = found.map(|slot| (slot.id(), slot.may_join(), slot.must_be_replaced()));
        let slot = match found {
            Some((slot, may_join, false)) => may_join.map(|()| slot)?,
            // A new client gets a server of the changed files.
            Some((outdated, _, true)) => {
                self.replace(outdated);
                self.open_slot(client, class)
            }
            None => self.open_slot(client, class),
        };
        let (session, hibernate_after) = match &self.clients[&client].introduction {
            Some(it) => (it.session.clone(), it.hibernate_after),
            None => (String::new(), None),
        };
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.join(client, &session, hibernate_after);
        }
        Ok(slot)
    }

    fn open_slot(&mut self, client: ClientId, class: Class) -> SlotId {
        self.limit_lingering();
        let introduction = self.clients[&client].introduction.as_ref();
        let session = introduction.map_or("", |it| &it.session);
        let policy = introduction.map_or_else(Default::default, |it| it.policy);
        let key = SlotKey::new(&class, session);
        let start_at = self.restarts.start_at(&key, self.now);
        let id = self.next_slot();
        let linger = self.life.linger();
        let mut slot = ServerSlot::new(id, key, class, policy, linger, self.now);
        slot.set_start_at(start_at);
        slot.mux_mut().set_max_line(self.max_line);
        slot.mux_mut().return_legacy_sessions();
        self.slots.insert(id, slot);
        let open = Action::OpenSlot { slot: id, client };
        self.actions.push_back(open);
        id
    }

    pub(super) fn next_slot(&mut self) -> SlotId {
        self.next_slot += 1;
        SlotId(self.next_slot)
    }

    /// Whether no earlier slot has the same key: two servers of one class might share a store.
    fn is_first(&self, slot: &ServerSlot) -> bool {
        let mut slots = self.slots.values();
        let first = slots.find(|other| other.key() == slot.key());
        first.is_none_or(|first| first.id() == slot.id())
    }

    /// When the slot's server starts. `None`: it runs, or an earlier server of the key is not gone.
    pub(super) fn start_at(&self, slot: &ServerSlot) -> Option<Moment> {
        let waits = slot.is_waiting() && self.is_first(slot);
        waits.then(|| slot.start_at())
    }

    pub(super) fn start_if_due(&mut self, id: SlotId) {
        let start_at = self.slots.get(&id).and_then(|slot| self.start_at(slot));
        if start_at.is_some_and(|at| self.now >= at)
            && let Some(slot) = self.slots.get_mut(&id)
        {
            slot.starting();
            self.actions.push_back(Action::StartServer { slot: id });
        }
    }

    /// Handles a client that may not have a server of this daemon, as a check before the start found. Nothing that it
    /// sent went to a server.
    pub fn handle_client_refused(&mut self, client: ClientId, why: &str, now: Moment) {
        self.now = now;
        let Some(id) = self.slot_of(client) else {
            return;
        };
        self.flush(id);
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        let mut unsent = slot.unsent(std::iter::empty());
        let unsent = unsent.remove(&client).unwrap_or_default();
        slot.leave(client, now);
        let is_empty = slot.clients() == 0;
        self.make_dedicated(client, Dedicated::AtStart, why, unsent);
        if is_empty {
            self.close_slot(id);
        }
        self.activate_slot(id, None);
    }

    /// Handles the end of a slot: its server's process tree is empty, or was never started.
    pub fn handle_slot_ended(&mut self, id: SlotId, now: Moment) {
        self.now = now;
        let Some(ended) = self.slots.remove(&id) else {
            return;
        };
        let successors = self.slots.values();
        let successors = successors.filter(|it| it.key() == ended.key());
        let successors: Vec<SlotId> = successors.map(ServerSlot::id).collect();
        for slot in successors {
            self.start_if_due(slot);
            self.actions.push_back(Action::UpdateTimer { slot });
        }
    }

    /// Stops the slot's server. No client joins it any more.
    pub fn close_slot(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(&id)
            && !slot.is_closing()
        {
            slot.close();
            self.actions.push_back(Action::StopServer { slot: id });
        }
    }

    /// Frees what the slots have cached: memory is short.
    pub fn handle_memory_shortage(&mut self) {
        for slot in self.slots.values_mut() {
            slot.mux_mut().drop_cached_lists();
        }
    }

    /// Stops the servers that have lingered longest, if many do: one client could open a slot of another class again and
    /// again.
    pub(super) fn limit_lingering(&mut self) {
        let empty = self.slots.values().filter(|it| !it.is_closing());
        let empty = empty.filter_map(|it| Some((it.empty_since()?, it.id())));
        let mut empty: Vec<_> = empty.collect();
        empty.sort();
        let excess = empty.len().saturating_sub(MAX_LINGERING);
        for (_, slot) in empty.into_iter().take(excess) {
            self.close_slot(slot);
        }
    }

    /// Stops the servers without clients: no client will come.
    pub(super) fn close_empty_slots(&mut self) {
        let empty = self.slots.values().filter(|slot| slot.clients() == 0);
        let empty: Vec<SlotId> = empty.map(ServerSlot::id).collect();
        for slot in empty {
            self.close_slot(slot);
        }
    }

    pub(super) fn close_all(&mut self) {
        let all: Vec<SlotId> = self.slots.keys().copied().collect();
        for slot in all {
            self.close_slot(slot);
        }
    }

    pub(super) fn report(&mut self, report: Report) {
        self.actions.push_back(Action::Report(report));
    }
}
