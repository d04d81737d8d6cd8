//! What a client says before it is known whether it may stay. The server has heard nothing of it then, and of
//! one that goes solo nothing is lost: its own server hears it all.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hello::Text;
use crate::lifetime::ClientId;
use crate::message::{Key, Message};
use crate::time::Moment;

use super::Mux;

/// So long a client may take to tell its roots. Alone with its server, nothing else it says would wait for that.
const PATIENCE: Duration = Duration::from_secs(5);

const UNKNOWN: &str = "its roots are not known";

/// Those who are waited for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Held(BTreeMap<ClientId, Waiting>);

/// What one of them said meanwhile.
#[derive(Debug, Serialize, Deserialize)]
struct Waiting {
    until: Moment,
    lines: VecDeque<Text>,
    bytes: usize,
    /// The requests among them, each as often as it was made: a batch may repeat what waits.
    #[serde(default)]
    asked: Counted,
    /// Of each line the request that it is, if it is one alone. Found out again where it was not handed over.
    #[serde(skip)]
    alone: VecDeque<Option<Key>>,
}

/// Ids, and how often each is there.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Key>", into = "Vec<Key>")]
struct Counted(BTreeMap<Key, usize>);

impl From<Vec<Key>> for Counted {
    fn from(keys: Vec<Key>) -> Counted {
        let mut counted = Counted::default();
        counted.add(keys);
        counted
    }
}

impl From<Counted> for Vec<Key> {
    fn from(counted: Counted) -> Vec<Key> {
        let each = counted.0.into_iter();
        each.flat_map(|(key, count)| std::iter::repeat_n(key, count))
            .collect()
    }
}

impl Counted {
    fn add(&mut self, keys: Vec<Key>) {
        for key in keys {
            *self.0.entry(key).or_default() += 1;
        }
    }

    fn take_one(&mut self, key: &Key) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }
}

impl Held {
    /// Whether this request of a client's waits here.
    pub(super) fn has(&self, client: ClientId, key: &Key) -> bool {
        let waiting = self.0.get(&client);
        waiting.is_some_and(|it| it.asked.0.contains_key(key))
    }

    /// Takes a line that need not go on now, or never; `false` if it must. Answers must: one of them is waited for.
    fn takes(&mut self, client: ClientId, line: &[u8], message: &Message<'_>) -> bool {
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
            waiting.alone.push_back(only(&requests));
            waiting.asked.add(requests);
        }
        waits
    }

    fn next_of(&mut self, client: ClientId) -> Option<Text> {
        let waiting = self.0.get_mut(&client)?;
        waiting.index();
        let line = waiting.lines.pop_front()?;
        waiting.alone.pop_front();
        for key in requests(&line) {
            waiting.asked.take_one(&key);
        }
        Some(line)
    }

    pub(super) fn forget(&mut self, client: ClientId) {
        self.0.remove(&client);
    }
}

impl Waiting {
    /// What nobody wants any more need not be heard; `false` if it is not here.
    fn cancel(&mut self, key: &Key) -> bool {
        if !self.asked.0.contains_key(key) {
            return false;
        }
        self.index();
        let place = self.alone.iter().position(|it| it.as_ref() == Some(key));
        let Some(line) = place.and_then(|place| self.lines.remove(place)) else {
            return false;
        };
        place.map(|place| self.alone.remove(place));
        self.bytes -= line.as_bytes().len();
        self.asked.take_one(key);
        true
    }

    /// Finds out which lines are one request, if that is not known.
    fn index(&mut self) {
        if self.alone.len() != self.lines.len() {
            let keys = self.lines.iter().map(|line| only(&requests(line)));
            self.alone = keys.collect();
        }
    }
}

/// The key, if there is one and no more.
fn only(keys: &[Key]) -> Option<Key> {
    match keys {
        [key] => Some(key.clone()),
        _ => None,
    }
}

impl Mux {
    /// Until when somebody's roots are waited for: [`tick`](Self::tick) is due then.
    pub fn due(&self) -> Option<Moment> {
        self.held.0.values().map(|it| it.until).min()
    }

    /// It is this late now: who has not told its roots by then goes solo, with all it said.
    pub fn tick(&mut self, now: Moment) {
        let late = self.held.0.iter().filter(|(_, it)| it.until <= now);
        let late: Vec<_> = late.map(|(client, _)| *client).collect();
        for client in late {
            self.dismiss(client, UNKNOWN);
        }
        self.let_go(now);
    }

    /// How much of what a client said waits here, and not for the server.
    pub fn keeps(&self, client: ClientId) -> usize {
        let held = self.held.0.get(&client).map_or(0, |it| it.bytes);
        held + self.bytes_in_turn(client)
    }

    /// The same of all clients, and what their requests in flight take beside the bytes that are kept of them.
    pub fn keeps_for_all(&self) -> usize {
        let held: usize = self.held.0.values().map(|it| it.bytes).sum();
        held + self.turns.bytes() + self.calls.memory_beside_bytes()
    }

    /// How much memory the requests in flight of a client take.
    pub fn requests_bytes(&self, client: ClientId) -> usize {
        self.calls.memory_of(client)
    }

    /// Whether a request waits for this client's answer.
    pub fn owes_an_answer(&self, client: ClientId) -> bool {
        self.asks.is_asked(client)
    }

    /// How many bytes are held for clients and the server beside the lines on their way: questions of either side,
    /// subscriptions, answers for batches that are not complete.
    pub fn holds(&self) -> usize {
        self.calls.bytes() + self.asks.bytes() + self.subscriptions.bytes() + self.batches.bytes()
    }

    /// The requests of a client that wait until it is known whether it may stay.
    pub fn held_of(&self, client: ClientId) -> Vec<Key> {
        let waiting = self.held.0.get(&client);
        let lines = waiting.into_iter().flat_map(|it| &it.lines);
        lines.flat_map(requests).collect()
    }

    /// From now on, what this client says waits.
    pub(super) fn hold(&mut self, client: ClientId, now: Moment) {
        self.held.0.entry(client).or_insert(Waiting {
            until: now + PATIENCE,
            lines: VecDeque::new(),
            bytes: 0,
            asked: Counted::default(),
            alone: VecDeque::new(),
        });
    }

    /// Whether a line waits until it is known whether its client may stay. What will be refused anyway does not: a request
    /// whose id is taken, for a cancellation could mean either, and a batch where there are none.
    pub(super) fn takes(&mut self, client: ClientId, line: &[u8], message: &Message<'_>) -> bool {
        if !self.held.0.contains_key(&client) {
            return false;
        }
        let is_refused = match message {
            Message::Request(request) => self.is_asked(client, &request.id.key()),
            Message::Batch(_) => !self.class.has_batches(),
            Message::Notification(_) | Message::Response(_) => false,
        };
        !is_refused && self.held.takes(client, line, message)
    }

    /// Those of whom it is known now that they may stay are heard with all they said. Who will never tell goes solo.
    pub(super) fn let_go(&mut self, now: Moment) {
        if self.held.0.is_empty() {
            return;
        }
        let is_asked = self.asks.server_waits_for_roots();
        let undecided = self.roots.is_undecided() && is_asked;
        let nothing_to_compare = self.roots.is_undecided() && !is_asked;
        let never_tells = |client: &ClientId| {
            let its = &self.clients[client];
            its.silent && its.roots.is_none() && !nothing_to_compare
        };
        let unknown = self.held.0.keys().copied().filter(never_tells);
        for client in unknown.collect::<Vec<_>>() {
            self.dismiss(client, UNKNOWN);
        }
        let may_stay = |client: &ClientId| {
            let its = &self.clients[client];
            (its.silent && nothing_to_compare) || (its.roots.is_some() && !undecided)
        };
        let free = self.held.0.keys().copied().filter(may_stay);
        let free: Vec<_> = free.collect();
        for client in free {
            // One by one: a line may cost it its place, and those after it are still unheard then.
            while let Some(line) = self.held.next_of(client) {
                let line = line.as_bytes();
                self.hear_client(client, line, Message::parse(line), now);
            }
            self.held.forget(client);
        }
    }
}

fn requests(line: &Text) -> Vec<Key> {
    Message::parse(line.as_bytes()).map_or_else(|_| Vec::new(), |it| it.requests())
}
