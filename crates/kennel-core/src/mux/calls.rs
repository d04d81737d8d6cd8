//! Requests in flight to the server, and the clients that wait for them.
//!
//! A **call** is one request to the server under an id assigned by the mux. Usually one client waits for its
//! response; several, if they sent the same list request; none, if the mux itself sent it. A **cancelled call** has
//! no client waiting, but the server may still work on it: a server request may be about it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::hello::text_of_bytes;
use crate::lifetime::ClientId;
use crate::message::{IdBytes, Key};
use crate::time::Moment;

use super::Lane;
use super::levels::PreviousLevels;
use super::lists::ListKey;
use super::snapshot::{maybe_bytes, pairs};

/// An id that the mux assigned to a request of either direction: from 1 up, never reused.
pub(super) type AssignedId = u64;

/// Memory of a request in flight besides its bytes: its entries in these tables.
const CALL_OVERHEAD: usize = 768;

/// An assigned id in decimal.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdDigits {
    bytes: [u8; IdDigits::MAX_LEN],
    start: usize,
}

impl IdDigits {
    const MAX_LEN: usize = 20;

    pub(super) fn of(mut assigned: AssignedId) -> IdDigits {
        let (mut bytes, mut start) = ([b'0'; IdDigits::MAX_LEN], IdDigits::MAX_LEN);
        while assigned > 0 {
            start -= 1;
            bytes[start] += (assigned % 10) as u8;
            assigned /= 10;
        }
        // 0 has one digit.
        let start = start.min(IdDigits::MAX_LEN - 1);
        IdDigits { bytes, start }
    }
}

impl Deref for IdDigits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) kind: Kind,
    /// The lane it was written to; its cancellation must use the same one.
    pub(super) lane: Lane,
    pub(super) waiters: SmallVec<[Waiter; 1]>,
    /// The session of the client that sent it. `None`: the mux itself sent it.
    pub(super) session: Option<Arc<str>>,
    /// The client's progress token, as spelled. The server gets the id of the call as its token.
    #[serde(with = "maybe_bytes")]
    pub(super) token: Option<Vec<u8>>,
    /// Whether it sets a log level (modern).
    pub(super) logs: bool,
    /// When the client sent it.
    #[serde(default)]
    pub(super) asked: Option<Moment>,
    /// The client that cancelled it, whose limit it counts against until the server answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) counts_for: Option<ClientId>,
}

/// How the response is processed, besides delivering it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Kind {
    Plain,
    /// A `tools/call`, if the server takes one at a time.
    Turn,
    Initialize,
    /// `initialize` sent to a server of the modern era.
    LateInitialize,
    Discover,
    /// `server/discover` with extra members: an error may be about these.
    OddDiscover,
    List(ListKey),
    Subscribe(String),
    Unsubscribe,
    /// The levels to restore if it fails.
    Level(PreviousLevels),
    /// A request about a task; `ends`: any result means that the task ended.
    Task {
        task: String,
        ends: bool,
    },
    TaskList,
    Listen,
}

impl Kind {
    /// Bytes stored for a request besides its id. Subscriptions are counted elsewhere.
    pub(super) fn bytes(&self) -> usize {
        match self {
            // Once here, once in the lists in flight.
            Kind::List(key) => 2 * key.bytes(),
            Kind::Task { task, .. } => task.len(),
            _ => 0,
        }
    }
}

/// A client that waits for a response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) client: ClientId,
    pub(super) key: Key,
    /// The id as the client spelled it.
    #[serde(with = "text_of_bytes")]
    pub(super) id: IdBytes,
    pub(super) batch: Option<u64>,
    /// The request line, if it may have to be sent separately.
    #[serde(with = "maybe_bytes")]
    pub(super) again: Option<Vec<u8>>,
    /// Bytes stored for it.
    #[serde(default)]
    pub(super) bytes: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CancelledCall {
    pub(super) session: Arc<str>,
    pub(super) logs: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Calls {
    calls: BTreeMap<AssignedId, Call>,
    #[serde(with = "pairs")]
    by_client: BTreeMap<(ClientId, Key), AssignedId>,
    /// Number of requests in flight of each client. An entry of 0 is removed when a client leaves, not with each
    /// response.
    #[serde(default)]
    counts: BTreeMap<ClientId, usize>,
    /// Bytes stored for them.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
    #[serde(rename = "ghosts")]
    cancelled: BTreeMap<AssignedId, CancelledCall>,
    /// Sessions whose cancelled calls are no longer stored one by one; `None` if there were too many sessions.
    #[serde(rename = "haunted")]
    sessions_with_cancelled_calls: BTreeSet<Option<Arc<str>>>,
    #[serde(rename = "minted")]
    last_assigned: AssignedId,
    /// `None` after a restore from an older build, until no call is in flight.
    #[serde(default)]
    tally: Option<CallCounts>,
    /// Number of calls that no client waits for, by session. `None` after a restore, until no call is in flight.
    #[serde(skip)]
    unawaited: Option<BTreeMap<Arc<str>, usize>>,
}

/// Counts of calls in flight, so that no line needs a loop over all calls.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct CallCounts {
    /// Clients that wait for a call that is no `subscriptions/listen`.
    waiting: usize,
    /// Calls of `initialize` to a server of the modern era.
    late_initializes: usize,
}

impl CallCounts {
    fn of<'a>(calls: impl Iterator<Item = &'a Call>) -> CallCounts {
        let mut tally = CallCounts::default();
        calls.for_each(|call| tally.add(call));
        tally
    }

    fn add(&mut self, call: &Call) {
        self.waiting += call.waiting();
        self.late_initializes += call.late_initializes();
    }

    fn remove(&mut self, call: &Call) {
        self.waiting -= call.waiting();
        self.late_initializes -= call.late_initializes();
    }
}

impl Call {
    /// Clients that wait for its response. A `subscriptions/listen` lasts until a client ends it.
    fn waiting(&self) -> usize {
        match self.kind {
            Kind::Listen => 0,
            _ => self.waiters.len(),
        }
    }

    fn late_initializes(&self) -> usize {
        usize::from(self.kind == Kind::LateInitialize)
    }

    /// Whether the server works for a session in this call. Answering `initialize` is no such work.
    fn is_work(&self) -> bool {
        !matches!(self.kind, Kind::Initialize | Kind::LateInitialize)
    }

    /// The session that the server works for, if no client of it waits any more.
    fn unawaited_session(&self) -> Option<&Arc<str>> {
        let session = self.session.as_ref();
        session.filter(|_| self.is_work() && self.waiters.is_empty())
    }
}

impl Calls {
    /// Maximum number of cancelled calls that are stored with all details: a server may never answer them. For older
    /// calls only the session is stored, until the server exits.
    const MAX_CANCELLED: usize = 1024;
    /// Maximum number of such sessions.
    const MAX_SESSIONS: usize = 64;

    pub(super) fn assign_id(&mut self) -> AssignedId {
        self.last_assigned += 1;
        self.last_assigned
    }

    pub(super) fn insert(&mut self, assigned: AssignedId, call: Call) {
        for waiter in &call.waiters {
            let name = (waiter.client, waiter.key.clone());
            self.by_client.insert(name, assigned);
            *self.counts.entry(waiter.client).or_default() += 1;
            *self.bytes.entry(waiter.client).or_default() += waiter.bytes;
        }
        if self.calls.is_empty() {
            self.tally = Some(CallCounts::default());
            self.unawaited = Some(BTreeMap::new());
        }
        if let Some(tally) = &mut self.tally {
            tally.add(&call);
        }
        count_unawaited(&mut self.unawaited, call.unawaited_session(), None);
        self.calls.insert(assigned, call);
    }

    /// Adds a client that waits for a call in flight.
    pub(super) fn join(&mut self, assigned: AssignedId, waiter: Waiter) {
        let call = self
            .calls
            .get_mut(&assigned)
            .expect("the call is in flight");
        let name = (waiter.client, waiter.key.clone());
        self.by_client.insert(name, assigned);
        *self.counts.entry(waiter.client).or_default() += 1;
        *self.bytes.entry(waiter.client).or_default() += waiter.bytes;
        let before = call.waiting();
        let unawaited = call.unawaited_session().cloned();
        call.waiters.push(waiter);
        count_unawaited(&mut self.unawaited, None, unawaited.as_ref());
        if let Some(tally) = &mut self.tally {
            tally.waiting += call.waiting() - before;
        }
    }

    pub(super) fn get(&self, assigned: AssignedId) -> Option<&Call> {
        self.calls.get(&assigned)
    }

    /// The call that this request of a client waits for.
    pub(super) fn find(&self, client: ClientId, key: &Key) -> Option<AssignedId> {
        self.by_client.get(&(client, key.clone())).copied()
    }

    /// Like `find`, but `"1"` also matches `1`. Returns the key as well.
    pub(super) fn find_by_value(&self, client: ClientId, key: &Key) -> Option<(Key, AssignedId)> {
        if let Some(assigned) = self.find(client, key) {
            return Some((key.clone(), assigned));
        }
        let mut found = key.same_integer().filter_map(|it| {
            let assigned = self.find(client, &it)?;
            Some((it, assigned))
        });
        let only = found.next()?;
        found.next().is_none().then_some(only)
    }

    /// Removes an answered call.
    pub(super) fn take(&mut self, assigned: AssignedId) -> Option<Call> {
        let call = self.calls.remove(&assigned)?;
        if let Some(tally) = &mut self.tally {
            tally.remove(&call);
            debug_assert!(!self.calls.is_empty() || *tally == CallCounts::default());
        }
        count_unawaited(&mut self.unawaited, None, call.unawaited_session());
        for waiter in &call.waiters {
            self.by_client.remove(&(waiter.client, waiter.key.clone()));
            decrement(&mut self.counts, waiter.client);
            subtract_bytes(&mut self.bytes, waiter);
        }
        if let Some(client) = call.counts_for {
            decrement(&mut self.counts, client);
        }
        Some(call)
    }

    /// Removes a client from the clients that wait.
    pub(super) fn drop_waiter(
        &mut self,
        client: ClientId,
        key: &Key,
    ) -> Option<(AssignedId, Waiter)> {
        let assigned = self.by_client.remove(&(client, key.clone()))?;
        decrement(&mut self.counts, client);
        let call = self.calls.get_mut(&assigned)?;
        let such = |it: &Waiter| it.client == client && it.key == *key;
        let before = call.waiting();
        let place = call.waiters.iter().position(such)?;
        let waiter = call.waiters.remove(place);
        count_unawaited(&mut self.unawaited, call.unawaited_session(), None);
        if let Some(tally) = &mut self.tally {
            tally.waiting -= before - call.waiting();
        }
        subtract_bytes(&mut self.bytes, &waiter);
        Some((assigned, waiter))
    }

    /// Counts a cancelled call against its client's limit until the server answers it. Otherwise a client could have any
    /// number of them.
    pub(super) fn count_until_answered(&mut self, assigned: AssignedId, client: ClientId) {
        if let Some(call) = self.calls.get_mut(&assigned)
            && call.counts_for.is_none()
        {
            call.counts_for = Some(client);
            *self.counts.entry(client).or_default() += 1;
        }
    }

    /// Turns a call without waiting clients into a cancelled call.
    pub(super) fn mark_cancelled(&mut self, assigned: AssignedId, session: &Arc<str>) {
        let Some(call) = self.take(assigned) else {
            return;
        };
        let call = CancelledCall {
            session: session.clone(),
            logs: call.logs,
        };
        self.cancelled.insert(assigned, call);
        if self.cancelled.len() > Calls::MAX_CANCELLED
            && let Some((_, oldest)) = self.cancelled.pop_first()
        {
            self.sessions_with_cancelled_calls
                .insert(Some(oldest.session));
            if self.sessions_with_cancelled_calls.len() > Calls::MAX_SESSIONS {
                self.sessions_with_cancelled_calls = BTreeSet::from([None]);
            }
        }
    }

    /// Removes a cancelled call that the server answered after all.
    pub(super) fn take_late_response(&mut self, assigned: AssignedId) -> Option<CancelledCall> {
        self.cancelled.remove(&assigned)
    }

    pub(super) fn is_cancelled(&self, assigned: AssignedId) -> bool {
        self.cancelled.contains_key(&assigned)
    }

    /// Removes the zero counts of clients.
    pub(super) fn forget_idle(&mut self) {
        self.counts.retain(|_, count| *count > 0);
        self.bytes.retain(|_, bytes| *bytes > 0);
    }

    /// Number of requests in flight of a client.
    pub(super) fn count_of(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or_default()
    }

    /// Bytes stored for a client's requests.
    pub(super) fn bytes_of(&self, client: ClientId) -> usize {
        self.bytes.get(&client).copied().unwrap_or_default()
    }

    /// Bytes stored for the requests of all clients.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    /// Memory of a client's requests.
    pub(super) fn memory_of(&self, client: ClientId) -> usize {
        self.bytes_of(client) + self.count_of(client) * CALL_OVERHEAD
    }

    /// Memory of all requests besides their [bytes](Self::bytes).
    pub(super) fn memory_beside_bytes(&self) -> usize {
        self.by_client.len().max(self.calls.len()) * CALL_OVERHEAD
    }

    /// The requests in flight of a client and their calls.
    pub(super) fn of(&self, client: ClientId) -> impl Iterator<Item = (&Key, AssignedId)> {
        let first = (client, Key::Number(i64::MIN));
        self.by_client
            .range(first..)
            .take_while(move |((other, _), _)| *other == client)
            .map(|((_, key), assigned)| (key, *assigned))
    }

    /// The clients that wait for a call, `initialize` aside. Does not look at all of their calls: there may be many.
    pub(super) fn waiting_clients(&self) -> impl Iterator<Item = ClientId> {
        let mut first = Some(ClientId(0));
        let clients = std::iter::from_fn(move || {
            let mut its = self.by_client.range((first?, Key::Number(i64::MIN))..);
            let ((client, _), _) = its.next()?;
            first = client.0.checked_add(1).map(ClientId);
            Some(*client)
        });
        clients.filter(|client| {
            let mut its = self
                .of(*client)
                .filter_map(|(_, call)| self.calls.get(&call));
            its.any(Call::is_work)
        })
    }

    /// Whether exactly one request of a client sets a log level, and no cancelled one does.
    pub(super) fn has_one_that_logs(&self, client: ClientId) -> bool {
        let its = self
            .of(client)
            .filter_map(|(_, call)| self.calls.get(&call));
        its.filter(|call| call.logs).take(2).count() == 1
            && !self.cancelled.values().any(|call| call.logs)
    }

    /// The sessions that the server works for in calls that no client waits for.
    pub(super) fn unawaited_sessions(&self) -> BTreeSet<&Arc<str>> {
        match &self.unawaited {
            Some(counts) => counts.keys().collect(),
            None => {
                let calls = self.calls.values();
                calls.filter_map(Call::unawaited_session).collect()
            }
        }
    }

    /// Whether a client waits for the response to a call, `subscriptions/listen` aside.
    pub(super) fn is_awaited(&self) -> bool {
        self.tally().waiting > 0
    }

    /// Whether an `initialize` to a server of the modern era is in flight.
    pub(super) fn has_late_initialize(&self) -> bool {
        self.tally().late_initializes > 0
    }

    fn tally(&self) -> CallCounts {
        let counted = || CallCounts::of(self.calls.values());
        self.tally.unwrap_or_else(counted)
    }

    /// All calls in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Call> {
        self.calls.values()
    }

    /// The calls in flight that the mux did not send itself.
    pub(super) fn client_calls(&self) -> impl Iterator<Item = &Call> {
        let by_somebody = |call: &&Call| call.session.is_some() || !call.waiters.is_empty();
        self.in_flight().filter(by_somebody)
    }

    /// The sessions that have cancelled calls. `None` stands for sessions that were not stored.
    pub(super) fn sessions_of_cancelled_calls(&self) -> impl Iterator<Item = Option<&Arc<str>>> {
        let cancelled = self.cancelled.values().map(|call| Some(&call.session));
        cancelled.chain(
            self.sessions_with_cancelled_calls
                .iter()
                .map(Option::as_ref),
        )
    }
}

/// Counts a call that no client waits for: one of `added`, and one less of `removed`.
fn count_unawaited(
    counts: &mut Option<BTreeMap<Arc<str>, usize>>,
    added: Option<&Arc<str>>,
    removed: Option<&Arc<str>>,
) {
    let Some(counts) = counts else {
        return;
    };
    if let Some(session) = added {
        *counts.entry(session.clone()).or_default() += 1;
    }
    if let Some(session) = removed
        && let Some(count) = counts.get_mut(session)
    {
        *count -= 1;
        if *count == 0 {
            counts.remove(session);
        }
    }
}

fn decrement(counts: &mut BTreeMap<ClientId, usize>, client: ClientId) {
    // Snapshots of older builds have no counts.
    if let Some(count) = counts.get_mut(&client) {
        *count -= 1;
    }
}

fn subtract_bytes(bytes: &mut BTreeMap<ClientId, usize>, waiter: &Waiter) {
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
            assert_eq!(&IdDigits::of(id)[..], id.to_string().as_bytes());
        }
    }
}
