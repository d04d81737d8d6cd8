//! What the server was asked, and who waits for the answer.
//!
//! A **call** is one request to the server under an id minted here. Usually one client waits for its
//! answer; several, where they asked for the same; none, where it was asked by the mux itself.
//! A **ghost** is a call that nobody waits for any more but that the server may still be working on:
//! whatever it asks meanwhile could be about that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Key, Short};
use crate::time::Moment;

use super::Lane;
use super::few::Few;
use super::levels::Before;
use super::lists::ListKey;
use super::snapshot::{bytes, maybe_bytes, pairs};

/// An id given here, to a request of either direction: from 1 up, and never twice.
pub(super) type Minted = u64;

/// Memory that a request in flight takes beside the bytes that are kept of it: its entries in the tables here.
const EACH_CALL: usize = 768;

/// Such an id as it is spelled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digits {
    bytes: [u8; Digits::MOST],
    start: usize,
}

impl Digits {
    const MOST: usize = 20;

    pub(super) fn of(mut minted: Minted) -> Digits {
        let (mut bytes, mut start) = ([b'0'; Digits::MOST], Digits::MOST);
        while minted > 0 {
            start -= 1;
            bytes[start] += (minted % 10) as u8;
            minted /= 10;
        }
        // None has no digits.
        let start = start.min(Digits::MOST - 1);
        Digits { bytes, start }
    }
}

impl Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) kind: Kind,
    /// Where it was written; what cancels it must follow there.
    pub(super) lane: Lane,
    pub(super) waiters: Few<Waiter>,
    /// The session of who waited first, or last. `None`: the mux itself asked.
    pub(super) session: Option<Arc<str>>,
    /// What its client knows the progress by, as spelled there. The server knows it by the call's id.
    #[serde(with = "maybe_bytes")]
    pub(super) token: Option<Vec<u8>>,
    /// It set a log level of its own (modern).
    pub(super) logs: bool,
    /// When a client asked.
    #[serde(default)]
    pub(super) asked: Option<Moment>,
    /// Who does not wait for it any more, and for whom it counts until it is answered all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) counts_for: Option<ClientId>,
}

/// What follows from the answer, beside giving it to those who wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Kind {
    Plain,
    /// One of those that take turns.
    Turn,
    Initialize,
    /// `initialize` for a server that speaks the modern era.
    LateInitialize,
    Discover,
    /// `server/discover` with more than every client says: what the server answers may be about that.
    OddDiscover,
    List(ListKey),
    Subscribe(String),
    Unsubscribe,
    /// What to go back to if it is refused.
    Level(Before),
    /// About one task: whether any result means that it ended.
    Task {
        task: String,
        ends: bool,
    },
    TaskList,
    Listen,
}

impl Kind {
    /// How much is kept of a request beside its id. Subscriptions are counted elsewhere.
    pub(super) fn bytes(&self) -> usize {
        match self {
            // Here, and among the lists in flight.
            Kind::List(key) => 2 * key.bytes(),
            Kind::Task { task, .. } => task.len(),
            _ => 0,
        }
    }
}

/// Somebody who waits for an answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) client: ClientId,
    pub(super) key: Key,
    /// As spelled.
    #[serde(with = "bytes")]
    pub(super) id: Short,
    pub(super) batch: Option<u64>,
    /// The request, should it have to be asked separately after all.
    #[serde(with = "maybe_bytes")]
    pub(super) again: Option<Vec<u8>>,
    /// How much is kept because of it.
    #[serde(default)]
    pub(super) bytes: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ghost {
    pub(super) session: Arc<str>,
    pub(super) logs: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Calls {
    calls: BTreeMap<Minted, Call>,
    #[serde(with = "pairs")]
    by_client: BTreeMap<(ClientId, Key), Minted>,
    /// How many requests of each client wait. An entry of 0 is removed when a client leaves, not with each answer.
    #[serde(default)]
    counts: BTreeMap<ClientId, usize>,
    /// How many bytes are kept of them.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
    ghosts: BTreeMap<Minted, Ghost>,
    /// Sessions with more ghosts than are remembered one by one; `None` for those beyond counting.
    haunted: BTreeSet<Option<Arc<str>>>,
    minted: Minted,
}

impl Calls {
    /// How many ghosts are remembered one by one: a server need not ever answer them. Of older ones
    /// only the session is, for it counts as long as the server lives.
    const GHOSTS: usize = 1024;
    /// How many such sessions.
    const HAUNTED: usize = 64;

    pub(super) fn mint(&mut self) -> Minted {
        self.minted += 1;
        self.minted
    }

    pub(super) fn insert(&mut self, minted: Minted, call: Call) {
        for waiter in &call.waiters {
            let name = (waiter.client, waiter.key.clone());
            self.by_client.insert(name, minted);
            *self.counts.entry(waiter.client).or_default() += 1;
            *self.bytes.entry(waiter.client).or_default() += waiter.bytes;
        }
        self.calls.insert(minted, call);
    }

    /// One more who waits for a call that is there.
    pub(super) fn join(&mut self, minted: Minted, waiter: Waiter) {
        let call = self.calls.get_mut(&minted).expect("the call is in flight");
        let name = (waiter.client, waiter.key.clone());
        self.by_client.insert(name, minted);
        *self.counts.entry(waiter.client).or_default() += 1;
        *self.bytes.entry(waiter.client).or_default() += waiter.bytes;
        call.waiters.push(waiter);
    }

    pub(super) fn get(&self, minted: Minted) -> Option<&Call> {
        self.calls.get(&minted)
    }

    /// Which call this request of a client waits for.
    pub(super) fn find(&self, client: ClientId, key: &Key) -> Option<Minted> {
        self.by_client.get(&(client, key.clone())).copied()
    }

    /// The same for an id that may be spelled otherwise, `"1"` for `1`, and its key.
    pub(super) fn find_loosely(&self, client: ClientId, key: &Key) -> Option<(Key, Minted)> {
        if let Some(minted) = self.find(client, key) {
            return Some((key.clone(), minted));
        }
        let mut found = key.same_integer().filter_map(|it| {
            let minted = self.find(client, &it)?;
            Some((it, minted))
        });
        let only = found.next()?;
        found.next().is_none().then_some(only)
    }

    /// It is answered.
    pub(super) fn take(&mut self, minted: Minted) -> Option<Call> {
        let call = self.calls.remove(&minted)?;
        for waiter in &call.waiters {
            self.by_client.remove(&(waiter.client, waiter.key.clone()));
            one_less(&mut self.counts, waiter.client);
            fewer(&mut self.bytes, waiter);
        }
        if let Some(client) = call.counts_for {
            one_less(&mut self.counts, client);
        }
        Some(call)
    }

    /// A client does not wait any more.
    pub(super) fn drop_waiter(&mut self, client: ClientId, key: &Key) -> Option<(Minted, Waiter)> {
        let minted = self.by_client.remove(&(client, key.clone()))?;
        one_less(&mut self.counts, client);
        let call = self.calls.get_mut(&minted)?;
        let such = |it: &Waiter| it.client == client && it.key == *key;
        let waiter = call.waiters.take(such)?;
        fewer(&mut self.bytes, &waiter);
        Some((minted, waiter))
    }

    /// A client does not wait for it any more, and it goes on: it counts for the client until it is answered. Without that
    /// a client could have any number of them.
    pub(super) fn count_on(&mut self, minted: Minted, client: ClientId) {
        if let Some(call) = self.calls.get_mut(&minted)
            && call.counts_for.is_none()
        {
            call.counts_for = Some(client);
            *self.counts.entry(client).or_default() += 1;
        }
    }

    /// Nobody waits, and the server was told so.
    pub(super) fn bury(&mut self, minted: Minted, session: &Arc<str>) {
        let Some(call) = self.take(minted) else {
            return;
        };
        let ghost = Ghost {
            session: session.clone(),
            logs: call.logs,
        };
        self.ghosts.insert(minted, ghost);
        if self.ghosts.len() > Calls::GHOSTS
            && let Some((_, oldest)) = self.ghosts.pop_first()
        {
            self.haunted.insert(Some(oldest.session));
            if self.haunted.len() > Calls::HAUNTED {
                self.haunted = BTreeSet::from([None]);
            }
        }
    }

    /// The server answered it after all.
    pub(super) fn lay(&mut self, minted: Minted) -> Option<Ghost> {
        self.ghosts.remove(&minted)
    }

    pub(super) fn is_ghost(&self, minted: Minted) -> bool {
        self.ghosts.contains_key(&minted)
    }

    /// A client left: nothing is counted for who has nothing.
    pub(super) fn forget_idle(&mut self) {
        self.counts.retain(|_, count| *count > 0);
        self.bytes.retain(|_, bytes| *bytes > 0);
    }

    /// How many requests of a client wait.
    pub(super) fn count_of(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or_default()
    }

    /// How many bytes are kept of a client's requests.
    pub(super) fn bytes_of(&self, client: ClientId) -> usize {
        self.bytes.get(&client).copied().unwrap_or_default()
    }

    /// How many bytes are kept of all requests of clients.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    /// How much memory a client's requests take.
    pub(super) fn memory_of(&self, client: ClientId) -> usize {
        self.bytes_of(client) + self.count_of(client) * EACH_CALL
    }

    /// How much memory all requests take beside their [bytes](Self::bytes).
    pub(super) fn memory_beside_bytes(&self) -> usize {
        self.by_client.len().max(self.calls.len()) * EACH_CALL
    }

    /// The requests of a client, and what they wait for.
    pub(super) fn of(&self, client: ClientId) -> impl Iterator<Item = (&Key, Minted)> {
        let first = (client, Key::Number(i64::MIN));
        self.by_client
            .range(first..)
            .take_while(move |((other, _), _)| *other == client)
            .map(|((_, key), minted)| (key, *minted))
    }

    /// All calls in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Call> {
        self.calls.values()
    }

    /// The calls in flight, but for what the mux asked itself.
    pub(super) fn asked(&self) -> impl Iterator<Item = &Call> {
        let by_somebody = |call: &&Call| call.session.is_some() || !call.waiters.is_empty();
        self.in_flight().filter(by_somebody)
    }

    pub(super) fn ghosts(&self) -> impl Iterator<Item = &Ghost> {
        self.ghosts.values()
    }

    /// Every session that something unfinished was asked for and is not waited for. `None` stands for
    /// more than are remembered.
    pub(super) fn haunting(&self) -> impl Iterator<Item = Option<&Arc<str>>> {
        let ghosts = self.ghosts.values().map(|ghost| Some(&ghost.session));
        ghosts.chain(self.haunted.iter().map(Option::as_ref))
    }
}

fn one_less(counts: &mut BTreeMap<ClientId, usize>, client: ClientId) {
    // What an older build wrote down was not counted.
    if let Some(count) = counts.get_mut(&client) {
        *count -= 1;
    }
}

fn fewer(bytes: &mut BTreeMap<ClientId, usize>, waiter: &Waiter) {
    if let Some(kept) = bytes.get_mut(&waiter.client) {
        *kept -= waiter.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_spelled_as_a_number_is() {
        for id in [0, 1, 9, 10, 1234567890, u64::MAX] {
            assert_eq!(&Digits::of(id)[..], id.to_string().as_bytes());
        }
    }
}
