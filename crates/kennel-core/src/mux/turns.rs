//! Sends one call at a time, for servers that lose writes when two calls overlap.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::Key;

use super::calls::AssignedId;
use super::{Lane, Mux};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Turns {
    /// The call that the server works on.
    busy: Option<AssignedId>,
    /// The queued calls of each client.
    waiting: BTreeMap<ClientId, CallQueue>,
    /// The client whose call was sent last.
    last: Option<ClientId>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct CallQueue {
    calls: VecDeque<(AssignedId, Vec<u8>)>,
    bytes: usize,
}

impl Turns {
    /// Bytes of the queued calls of all clients.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.values().map(|queue| queue.bytes).sum()
    }

    /// Takes the next call, round robin over the clients.
    fn next(&mut self) -> Option<(ClientId, AssignedId, Vec<u8>)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let turn = self.waiting.range((after, Bound::Unbounded)).next();
        let client = *turn.or_else(|| self.waiting.first_key_value())?.0;
        let queue = self.waiting.get_mut(&client)?;
        let (assigned, line) = queue.calls.pop_front()?;
        queue.bytes -= line.len();
        if queue.calls.is_empty() {
            self.waiting.remove(&client);
        }
        self.last = Some(client);
        Some((client, assigned, line))
    }

    /// Removes a queued call; `false` if it is not queued.
    fn forget(&mut self, client: ClientId, assigned: AssignedId) -> bool {
        let Some(queue) = self.waiting.get_mut(&client) else {
            return false;
        };
        let place = queue.calls.iter().position(|(it, _)| *it == assigned);
        let call = place.and_then(|place| queue.calls.remove(place));
        let waited = call.is_some();
        queue.bytes -= call.map_or(0, |(_, line)| line.len());
        if queue.calls.is_empty() {
            self.waiting.remove(&client);
        }
        waited
    }
}

impl Mux {
    /// Bytes of a client's queued calls.
    pub(super) fn queued_call_bytes(&self, client: ClientId) -> usize {
        let waiting = self.turns.waiting.get(&client);
        waiting.map_or(0, |queue| queue.bytes)
    }

    /// The queued lines, as they would be sent to the server.
    pub fn queued_call_lines(&self) -> impl Iterator<Item = &[u8]> {
        let calls = self.turns.waiting.values().flat_map(|queue| &queue.calls);
        calls.map(|(_, line)| &line[..])
    }

    /// The queued requests of a client.
    pub(super) fn queued_calls(&self, client: ClientId) -> Vec<Key> {
        let of = |(key, assigned): (&Key, AssignedId)| {
            let waiting = self.turns.waiting.get(&client)?;
            let waits = waiting.calls.iter().any(|(it, _)| *it == assigned);
            waits.then(|| key.clone())
        };
        self.calls.of(client).filter_map(of).collect()
    }

    /// Queues a call, and sends it if the server is free.
    pub(super) fn queue_call(&mut self, client: ClientId, assigned: AssignedId, line: Vec<u8>) {
        let queue = self.turns.waiting.entry(client).or_default();
        queue.bytes += line.len();
        queue.calls.push_back((assigned, line));
        if self.turns.busy.is_none() {
            self.next_turn();
        }
    }

    /// Sends the next call after one was answered or cancelled.
    pub(super) fn end_turn(&mut self, assigned: AssignedId) {
        if self.turns.busy == Some(assigned) {
            self.next_turn();
        }
    }

    /// Removes a cancelled call that was never sent; `false` if it was sent.
    pub(super) fn remove_queued_call(&mut self, client: ClientId, assigned: AssignedId) -> bool {
        self.turns.forget(client, assigned)
    }

    fn next_turn(&mut self) {
        self.turns.busy = None;
        if let Some((client, assigned, line)) = self.turns.next() {
            self.turns.busy = Some(assigned);
            self.send_to_server(Lane::Of(client), line);
        }
    }
}
