//! Lines of clients that wait until the roots of the client are known. The server has not received them, so a client
//! that goes solo loses nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hello::Text;
use crate::lifetime::ClientId;
use crate::message::{Key, Message};
use crate::time::Moment;

use super::Mux;

/// Maximum time for a client to answer `roots/list`.
const ROOTS_TIMEOUT: Duration = Duration::from_secs(5);

const ROOTS_UNKNOWN: &str = "its roots are not known";

/// The clients whose roots are awaited, and their queued lines.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RootsGate(BTreeMap<ClientId, QueuedLines>);

/// The queued lines of one client.
#[derive(Debug, Serialize, Deserialize)]
struct QueuedLines {
    until: Moment,
    lines: VecDeque<Text>,
    bytes: usize,
    /// Ids of the queued requests, with their number: a batch may repeat an id.
    #[serde(default)]
    asked: IdCounts,
    /// For each line, its id if it is a single request. Computed again after a restore.
    #[serde(skip)]
    single_request: VecDeque<Option<Key>>,
}

/// Ids and how often each occurs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Key>", into = "Vec<Key>")]
struct IdCounts(BTreeMap<Key, usize>);

impl From<Vec<Key>> for IdCounts {
    fn from(keys: Vec<Key>) -> IdCounts {
        let mut counted = IdCounts::default();
        counted.add(keys);
        counted
    }
}

impl From<IdCounts> for Vec<Key> {
    fn from(counted: IdCounts) -> Vec<Key> {
        let each = counted.0.into_iter();
        each.flat_map(|(key, count)| std::iter::repeat_n(key, count))
            .collect()
    }
}

impl IdCounts {
    fn add(&mut self, keys: Vec<Key>) {
        for key in keys {
            *self.0.entry(key).or_default() += 1;
        }
    }

    fn remove_one(&mut self, key: &Key) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }
}

impl RootsGate {
    /// Whether this request of a client is queued.
    pub(super) fn has(&self, client: ClientId, key: &Key) -> bool {
        let waiting = self.0.get(&client);
        waiting.is_some_and(|it| it.asked.0.contains_key(key))
    }

    /// Queues or drops a line; `false` if it must be handled now. Responses must: one of them contains the roots.
    fn queue(&mut self, client: ClientId, line: &[u8], message: &Message<'_>) -> bool {
        let Some(waiting) = self.0.get_mut(&client) else {
            return false;
        };
        let waits = match message {
            Message::Request(request) => !request.method.is("ping"),
            Message::Notification(notification) => match notification.cancelled() {
                Ok(Some(id)) => return waiting.cancel(&id.key()),
                _ => true,
            },
            Message::Response(_) => false,
            Message::Batch(batch) => {
                let mut members = batch.members.iter();
                !members.any(|it| matches!(it.message, Message::Response(_)))
            }
        };
        if waits {
            waiting.bytes += line.len();
            waiting.index();
            waiting.lines.push_back(line.into());
            let requests = message.requests();
            waiting.single_request.push_back(single(&requests));
            waiting.asked.add(requests);
        }
        waits
    }

    fn next_line(&mut self, client: ClientId) -> Option<Text> {
        let waiting = self.0.get_mut(&client)?;
        waiting.index();
        let line = waiting.lines.pop_front()?;
        waiting.single_request.pop_front();
        for key in requests(&line) {
            waiting.asked.remove_one(&key);
        }
        Some(line)
    }

    pub(super) fn forget(&mut self, client: ClientId) {
        self.0.remove(&client);
    }
}

impl QueuedLines {
    /// Removes a queued request that was cancelled; `false` if it is not queued.
    fn cancel(&mut self, key: &Key) -> bool {
        if !self.asked.0.contains_key(key) {
            return false;
        }
        self.index();
        let place = self
            .single_request
            .iter()
            .position(|it| it.as_ref() == Some(key));
        let Some(line) = place.and_then(|place| self.lines.remove(place)) else {
            return false;
        };
        place.map(|place| self.single_request.remove(place));
        self.bytes -= line.as_bytes().len();
        self.asked.remove_one(key);
        true
    }

    /// Computes `single_request` if it is missing.
    fn index(&mut self) {
        if self.single_request.len() != self.lines.len() {
            let keys = self.lines.iter().map(|line| single(&requests(line)));
            self.single_request = keys.collect();
        }
    }
}

/// The key, if there is exactly one.
fn single(keys: &[Key]) -> Option<Key> {
    match keys {
        [key] => Some(key.clone()),
        _ => None,
    }
}

impl Mux {
    /// The time at which the first wait for roots ends and [`advance`](Self::advance) must be called.
    pub fn next_timeout(&self) -> Option<Moment> {
        self.roots_gate.0.values().map(|it| it.until).min()
    }

    /// Dismisses clients whose roots did not arrive in time.
    pub fn advance(&mut self, now: Moment) {
        let late = self.roots_gate.0.iter().filter(|(_, it)| it.until <= now);
        let late: Vec<_> = late.map(|(client, _)| *client).collect();
        for client in late {
            self.dismiss(client, ROOTS_UNKNOWN);
        }
        self.release_ready(now);
    }

    /// Bytes of a client's lines that are queued here: for its roots, or for its turn.
    pub fn queued_bytes(&self, client: ClientId) -> usize {
        let held = self.roots_gate.0.get(&client).map_or(0, |it| it.bytes);
        held + self.queued_call_bytes(client)
    }

    /// Bytes of all clients' queued lines, plus the overhead of their requests in flight.
    pub fn queued_bytes_of_all(&self) -> usize {
        let held: usize = self.roots_gate.0.values().map(|it| it.bytes).sum();
        held + self.turns.bytes() + self.calls.memory_beside_bytes()
    }

    /// Memory of a client's requests in flight.
    pub fn requests_bytes(&self, client: ClientId) -> usize {
        self.calls.memory_of(client)
    }

    /// Whether a server request waits for this client's response.
    pub fn has_server_request(&self, client: ClientId) -> bool {
        self.server_requests.is_asked(client)
    }

    /// Bytes stored apart from queued lines: requests of both sides, subscriptions, responses of incomplete batches.
    pub fn stored_bytes(&self) -> usize {
        self.calls.bytes()
            + self.server_requests.bytes()
            + self.subscriptions.bytes()
            + self.batches.bytes()
    }

    /// Bytes kept for as long as the server runs: roots, and responses that are sent again.
    pub fn kept_bytes(&self) -> usize {
        self.roots_bytes() + self.lists.bytes() + self.handshake.bytes()
    }

    /// The queued requests of a client whose roots are not known yet.
    pub fn queued_requests_of(&self, client: ClientId) -> Vec<Key> {
        let waiting = self.roots_gate.0.get(&client);
        let lines = waiting.into_iter().flat_map(|it| &it.lines);
        lines.flat_map(requests).collect()
    }

    /// Queues the lines of this client until its roots are known.
    pub(super) fn wait_for_roots(&mut self, client: ClientId, now: Moment) {
        self.roots_gate.0.entry(client).or_insert(QueuedLines {
            until: now + ROOTS_TIMEOUT,
            lines: VecDeque::new(),
            bytes: 0,
            asked: IdCounts::default(),
            single_request: VecDeque::new(),
        });
    }

    /// Whether a line was queued until its client's roots are known. Lines that will be refused anyway are not
    /// queued: a request whose id is in flight (a cancellation could mean either), and a batch where the protocol has
    /// none.
    pub(super) fn queue_for_roots(
        &mut self,
        client: ClientId,
        line: &[u8],
        message: &Message<'_>,
    ) -> bool {
        if !self.roots_gate.0.contains_key(&client) {
            return false;
        }
        let is_refused = match message {
            Message::Request(request) => self.is_asked(client, &request.id.key()),
            Message::Batch(_) => !self.class.has_batches(),
            Message::Notification(_) | Message::Response(_) => false,
        };
        !is_refused && self.roots_gate.queue(client, line, message)
    }

    /// Handles the queued lines of the clients whose roots are known and equal. A client that cannot answer any more
    /// goes solo.
    pub(super) fn release_ready(&mut self, now: Moment) {
        if self.roots_gate.0.is_empty() {
            return;
        }
        let is_asked = self.server_requests.server_waits_for_roots();
        let undecided = self.roots.is_undecided() && is_asked;
        let nothing_to_compare = self.roots.is_undecided() && !is_asked;
        let never_tells = |client: &ClientId| {
            let its = &self.clients[client];
            its.input_closed && its.roots.is_none() && !nothing_to_compare
        };
        let unknown = self.roots_gate.0.keys().copied().filter(never_tells);
        for client in unknown.collect::<Vec<_>>() {
            self.dismiss(client, ROOTS_UNKNOWN);
        }
        let may_stay = |client: &ClientId| {
            let its = &self.clients[client];
            (its.input_closed && nothing_to_compare) || (its.roots.is_some() && !undecided)
        };
        let free = self.roots_gate.0.keys().copied().filter(may_stay);
        let free: Vec<_> = free.collect();
        for client in free {
            // One by one: a line may get its client dismissed, and the lines after it are then still unsent.
            while let Some(line) = self.roots_gate.next_line(client) {
                let line = line.as_bytes();
                self.handle_parsed_client_line(client, line, Message::parse(line), now);
            }
            self.roots_gate.forget(client);
        }
    }
}

fn requests(line: &Text) -> Vec<Key> {
    Message::parse(line.as_bytes()).map_or_else(|_| Vec::new(), |it| it.requests())
}
