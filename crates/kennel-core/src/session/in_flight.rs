//! The app's requests that wait for an answer.

use std::collections::{BTreeMap, VecDeque};

use crate::message::{Key, Request};

use super::queue::Ticket;
use super::reply::shortened;

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// `initialize`: it is sent to one upstream after the other until one answers.
    Handshake,

    /// It waits for an upstream.
    Queued(Ticket),

    /// The upstream has it.
    Sent,

    /// The upstream has it, and the app does not want the answer any more. One may come all the
    /// same and is passed on; none is owed. Known until then so that the answer is not taken for
    /// another request's that has the same id.
    Cancelled,
}

/// A request without its answer.
#[derive(Debug)]
pub(super) struct Awaited {
    /// As the app spelled it.
    pub(super) id: Vec<u8>,
    /// For people: cut if it is long.
    pub(super) method: Box<str>,
    /// Older ones have less.
    order: u64,
    stage: Stage,
}

#[derive(Debug, Default)]
pub(super) struct InFlight {
    requests: BTreeMap<Key, Awaited>,
    /// The latest cancelled ones, oldest first; some may be answered since.
    cancelled: VecDeque<(u64, Key)>,
    next: u64,
}

impl InFlight {
    /// How many cancelled requests are remembered: a server need not ever answer them.
    const CANCELLED_LIMIT: usize = 1024;

    pub(super) fn stage(&self, key: &Key) -> Option<Stage> {
        self.requests.get(key).map(|request| request.stage)
    }

    /// Whether the upstream has it, and it is one that lasts until either side ends it.
    pub(super) fn is_subscription(&self, key: &Key) -> bool {
        self.requests.get(key).is_some_and(|request| {
            request.stage == Stage::Sent && &*request.method == "subscriptions/listen"
        })
    }

    /// A request whose id is free.
    pub(super) fn insert(&mut self, key: Key, request: &Request<'_>, stage: Stage) {
        let awaited = Awaited {
            id: request.id.raw().to_vec(),
            method: shortened(&request.method),
            order: self.next,
            stage,
        };
        self.next += 1;
        self.requests.insert(key, awaited);
    }

    /// The upstream has got it.
    pub(super) fn sent(&mut self, key: &Key) {
        if let Some(request) = self.requests.get_mut(key) {
            request.stage = Stage::Sent;
        }
    }

    /// The app does not want the answer any more of a request that was sent.
    pub(super) fn cancel(&mut self, key: &Key) {
        let Some(request) = self.requests.get_mut(key) else {
            return;
        };
        request.stage = Stage::Cancelled;
        self.cancelled.push_back((request.order, key.clone()));
        if self.cancelled.len() > InFlight::CANCELLED_LIMIT {
            self.forget_oldest_cancelled();
        }
    }

    /// It is answered, or will never be.
    pub(super) fn remove(&mut self, key: &Key) {
        self.requests.remove(key);
    }

    /// Takes out what the lost upstream will not answer, and gives back what is owed, oldest first.
    pub(super) fn upstream_lost(&mut self) -> Vec<Awaited> {
        self.cancelled.clear();
        self.take(|stage| matches!(stage, Stage::Sent | Stage::Cancelled))
    }

    /// Takes out all that waits for an upstream, oldest first.
    pub(super) fn unsent(&mut self) -> Vec<Awaited> {
        self.take(|stage| matches!(stage, Stage::Handshake | Stage::Queued(_)))
    }

    /// How many are waited for.
    pub(super) fn awaited(&self) -> usize {
        self.requests
            .values()
            .filter(|request| request.stage != Stage::Cancelled)
            .count()
    }

    /// Takes out those at such stages, and gives back those that are waited for.
    fn take(&mut self, such: impl Fn(Stage) -> bool) -> Vec<Awaited> {
        let mut taken: Vec<Awaited> = self
            .requests
            .extract_if(.., |_, request| such(request.stage))
            .map(|(_, request)| request)
            .filter(|request| request.stage != Stage::Cancelled)
            .collect();
        taken.sort_by_key(|request| request.order);
        taken
    }

    fn forget_oldest_cancelled(&mut self) {
        if let Some((order, key)) = self.cancelled.pop_front()
            && self.requests.get(&key).is_some_and(|it| it.order == order)
        {
            self.requests.remove(&key);
        }
    }
}
