//! One call at a time, for servers that mix up what they do at once: two writes that would lose one of
//! them in a server for each client are both kept here.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::Key;

use super::calls::Minted;
use super::{Lane, Mux};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Turns {
    /// The call the server is busy with.
    busy: Option<Minted>,
    /// What waits for its turn, of each client.
    waiting: BTreeMap<ClientId, Waiting>,
    /// Whose turn it was last.
    last: Option<ClientId>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Waiting {
    calls: VecDeque<(Minted, Vec<u8>)>,
    bytes: usize,
}

impl Turns {
    /// How many bytes wait for their turn, of all clients.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.values().map(|queue| queue.bytes).sum()
    }

    /// The clients take turns, however much one of them wants.
    fn next(&mut self) -> Option<(ClientId, Minted, Vec<u8>)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let turn = self.waiting.range((after, Bound::Unbounded)).next();
        let client = *turn.or_else(|| self.waiting.first_key_value())?.0;
        let queue = self.waiting.get_mut(&client)?;
        let (minted, line) = queue.calls.pop_front()?;
        queue.bytes -= line.len();
        if queue.calls.is_empty() {
            self.waiting.remove(&client);
        }
        self.last = Some(client);
        Some((client, minted, line))
    }

    /// Forgets a call that waits; `false` if it does not.
    fn forget(&mut self, client: ClientId, minted: Minted) -> bool {
        let Some(queue) = self.waiting.get_mut(&client) else {
            return false;
        };
        let place = queue.calls.iter().position(|(it, _)| *it == minted);
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
    /// How much of a client's waits for its turn.
    pub(super) fn bytes_in_turn(&self, client: ClientId) -> usize {
        let waiting = self.turns.waiting.get(&client);
        waiting.map_or(0, |queue| queue.bytes)
    }

    /// What waits for its turn, as it would be sent to the server.
    pub fn lines_in_turn(&self) -> impl Iterator<Item = &[u8]> {
        let calls = self.turns.waiting.values().flat_map(|queue| &queue.calls);
        calls.map(|(_, line)| &line[..])
    }

    /// The requests of a client that wait for their turn.
    pub(super) fn keys_in_turn(&self, client: ClientId) -> Vec<Key> {
        let of = |(key, minted): (&Key, Minted)| {
            let waiting = self.turns.waiting.get(&client)?;
            let waits = waiting.calls.iter().any(|(it, _)| *it == minted);
            waits.then(|| key.clone())
        };
        self.calls.of(client).filter_map(of).collect()
    }

    /// Sends a call when it is its turn.
    pub(super) fn take_turn(&mut self, client: ClientId, minted: Minted, line: Vec<u8>) {
        let queue = self.turns.waiting.entry(client).or_default();
        queue.bytes += line.len();
        queue.calls.push_back((minted, line));
        if self.turns.busy.is_none() {
            self.next_turn();
        }
    }

    /// A call is answered, or nobody wants it any more: the server may go on with it, but nobody waits.
    pub(super) fn turn_is_over(&mut self, minted: Minted) {
        if self.turns.busy == Some(minted) {
            self.next_turn();
        }
    }

    /// A call that nobody wants any more was never sent: then the server need not hear of it.
    pub(super) fn never_had_its_turn(&mut self, client: ClientId, minted: Minted) -> bool {
        self.turns.forget(client, minted)
    }

    fn next_turn(&mut self) {
        self.turns.busy = None;
        if let Some((client, minted, line)) = self.turns.next() {
            self.turns.busy = Some(minted);
            self.tell_server(Lane::Of(client), line);
        }
    }
}
