//! List requests of several clients: sent once, and cached for as long as the protocol allows.
//!
//! Requests share a response only if that cannot be noticed: no cursor, no progress, no log level, no exchange state,
//! and in the legacy era nothing in `_meta`. A response for one client only (it has a cursor, or wants input) goes to
//! the first; the requests of the others are then sent separately.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Message, Outcome, Part, Request, Response};
use crate::time::Moment;

use super::calls::{AssignedId, Call, Kind};
use super::class::{Envelope, Era};
use super::from_client::{LOG_LEVEL, in_meta};
use super::handshake::{Handshake, waiter};
use super::raw_message::{ClientMessage, KeptMessage, RawMessage};
use super::refused::Refused;
use super::snapshot::pairs;
use super::{Lane, Mux};

/// The kinds of lists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum List {
    Tools,
    Prompts,
    Resources,
    Templates,
    /// Not a list, but requested by every client (modern).
    Discover,
}

/// Requests with the same key share a response. In the modern era it contains all parameters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct ListKey {
    list: List,
    params: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Lists {
    /// Calls that another client may join.
    #[serde(with = "pairs")]
    in_flight: BTreeMap<ListKey, AssignedId>,
    /// Cached responses, oldest first.
    kept: VecDeque<CachedList>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CachedList {
    key: ListKey,
    answer: KeptMessage,
    /// When it expires. `None`: when the server announces a change.
    until: Option<Moment>,
    /// The session that may use it. `None`: all sessions.
    only: Option<Arc<str>>,
}

impl ListKey {
    pub(super) fn bytes(&self) -> usize {
        self.params.len()
    }
}

impl List {
    /// Maximum bytes of a request that may share a response.
    const MAX_LINE: usize = 16 * 1024;
    /// Minimum bytes of a cached response that is not copied while the daemon is short of memory.
    const LONG_RESPONSE: usize = 64 * 1024;

    pub(super) fn of(method: &str) -> Option<List> {
        match method {
            "tools/list" => Some(List::Tools),
            "prompts/list" => Some(List::Prompts),
            "resources/list" => Some(List::Resources),
            "resources/templates/list" => Some(List::Templates),
            "server/discover" => Some(List::Discover),
            _ => None,
        }
    }

    fn changes_are_told(self, handshake: &Handshake) -> bool {
        match self {
            List::Tools => handshake.tools,
            List::Prompts => handshake.prompts,
            List::Resources | List::Templates => handshake.resources,
            List::Discover => false,
        }
    }
}

impl Lists {
    /// Maximum number of cached responses: requests of the modern era may all differ.
    const MAX_CACHED: usize = 64;
    /// Maximum bytes of them.
    const MAX_CACHED_BYTES: usize = 8 << 20;

    fn answer(&mut self, key: &ListKey, session: &Arc<str>, now: Moment) -> Option<&KeptMessage> {
        self.kept
            .retain(|entry| entry.until.is_none_or(|until| now < until));
        let fits = |entry: &&CachedList| {
            entry.key == *key && entry.only.as_ref().is_none_or(|only| only == session)
        };
        self.kept.iter().find(fits).map(|entry| &entry.answer)
    }

    fn cache(&mut self, entry: CachedList) {
        self.kept
            .retain(|old| old.key != entry.key || old.only != entry.only);
        self.kept.push_back(entry);
        while self.kept.len() > Lists::MAX_CACHED || self.bytes() > Lists::MAX_CACHED_BYTES {
            self.kept.pop_front();
        }
    }

    /// Bytes of the cached responses.
    pub(super) fn bytes(&self) -> usize {
        self.kept.iter().map(|it| it.answer.len()).sum()
    }

    /// Frees the cached responses.
    pub(super) fn drop_cached(&mut self) {
        self.kept = VecDeque::new();
    }

    /// Drops cached lists that changed. Calls in flight may be older than the change: no later request joins them,
    /// and they are not cached.
    pub(super) fn changed(&mut self, lists: &[List]) {
        self.kept.retain(|entry| !lists.contains(&entry.key.list));
        self.in_flight.retain(|key, _| !lists.contains(&key.list));
    }

    /// Detaches list calls in flight after a call that may have changed any list, unless the server announces
    /// changes. Later requests are sent again.
    pub(super) fn may_have_changed(&mut self, handshake: &Handshake) {
        self.in_flight
            .retain(|key, _| key.list == List::Discover || key.list.changes_are_told(handshake));
    }

    /// Removes a cancelled call, so that no client joins it.
    pub(super) fn abandoned(&mut self, assigned: AssignedId) {
        self.in_flight.retain(|_, other| *other != assigned);
    }

    /// Removes an answered call. `false`: a change came before the response.
    fn answered(&mut self, key: &ListKey, assigned: AssignedId) -> bool {
        let current = self.in_flight.get(key) == Some(&assigned);
        if current {
            self.in_flight.remove(key);
        }
        current
    }
}

impl Mux {
    pub(super) fn list_from_client(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
        list: List,
    ) -> Result<(), Refused> {
        // The line is stored while it waits with others.
        let is_long = from.raw.bytes().len() > List::MAX_LINE;
        let key = match is_long {
            true => None,
            false => self.list_key(request, list)?,
        };
        // Each client joins a list once: else it could request many copies of a long response with short lines.
        let key = key.filter(|key| !self.awaits_list(from.client, key));
        let Some(key) = key else {
            let kind = match list {
                List::Discover if is_plain_discover(request) => Kind::Discover,
                List::Discover => Kind::OddDiscover,
                _ => Kind::Plain,
            };
            self.forward(from, request, kind, Lane::Of(from.client), None)?;
            return Ok(());
        };
        let session = self.client(from.client).session.clone();
        let is_short_of_memory = self.is_short_of_memory;
        if let Some(kept) = self.lists.answer(&key, &session, from.now) {
            if is_short_of_memory && kept.len() >= List::LONG_RESPONSE {
                // The server is not read while its clients have much to read, so memory stays bounded.
                self.forward(from, request, Kind::Plain, Lane::Of(from.client), None)?;
                return Ok(());
            }
            let id = request.id.raw();
            let instead = self.batches.error_instead(from.batch, kept.len(), id);
            let line = instead.unwrap_or_else(|| kept.with_id(id));
            self.answer(from.client, from.batch, line);
        } else if let Some(assigned) = self.lists.in_flight.get(&key) {
            let mut waiter = waiter(from, request);
            waiter.again = Some(from.raw.bytes().to_vec());
            waiter.bytes += from.raw.bytes().len();
            self.calls.join(*assigned, waiter);
        } else {
            // Not in the client's lane: others may join it.
            let kind = Kind::List(key.clone());
            let assigned = self.forward(from, request, kind, Lane::Own, None)?;
            self.lists.in_flight.insert(key, assigned);
        }
        Ok(())
    }

    /// Whether this client waits for the same list already.
    fn awaits_list(&self, client: ClientId, key: &ListKey) -> bool {
        let assigned = self.lists.in_flight.get(key);
        let call = assigned.and_then(|assigned| self.calls.get(*assigned));
        call.is_some_and(|call| call.waiters.iter().any(|it| it.client == client))
    }

    /// The key for sharing this request. `None`: it cannot be shared.
    fn list_key(&self, request: &Request<'_>, list: List) -> Result<Option<ListKey>, Refused> {
        const MAX_PARAMS: usize = 4096;
        let params = request.params.map_or("", |params| params.text());
        if !self.policy.cache || !self.class.is_shared() || params.len() > MAX_PARAMS {
            return Ok(None);
        }
        let key = |params: &str| {
            let params = params.to_owned();
            Some(ListKey { list, params })
        };
        if self.class.era() == Era::Legacy {
            let bare = match request.params {
                None => true,
                Some(params) if params.text() == "null" => true,
                Some(params) => match &params.keys()[..] {
                    [] => params.text().starts_with('{'),
                    [only] if only == "_meta" => params.at(&["_meta"])?.is_some_and(is_empty),
                    _ => false,
                },
            };
            return Ok(if bare { key("") } else { None });
        }
        for one_of_its_kind in ["progressToken", LOG_LEVEL] {
            if in_meta(request, one_of_its_kind)?.is_some() {
                return Ok(None);
            }
        }
        let Some(whole) = request.params else {
            return Ok(None);
        };
        for one_of_its_kind in ["cursor", "inputResponses", "requestState"] {
            if whole.member(one_of_its_kind)?.is_some() {
                return Ok(None);
            }
        }
        if list == List::Discover && !is_plain_discover(request) {
            return Ok(None);
        }
        Ok(key(whole.text()))
    }

    pub(super) fn list_answered(
        &mut self,
        assigned: AssignedId,
        call: &Call,
        key: &ListKey,
        raw: &RawMessage<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
        now: Moment,
    ) {
        let current = self.lists.answered(key, assigned);
        if key.list == List::Discover {
            self.discovered(response);
        }
        let is_for_all = match response.outcome {
            Outcome::Result(result) => self.is_for_all(&result),
            Outcome::Error(_) => true,
        };
        // Only a limited number of copies of a long response is made. The other requests are sent again; the server
        // is not read while its clients have much to read.
        let copies = match is_for_all {
            true => self.copies_of(raw),
            false => 1,
        };
        let (first, others) = call.waiters.split_at(copies.min(call.waiters.len()));
        self.deliver_to(first, raw, id);
        for other in others {
            self.ask_separately(other.client, other.batch, other.again.as_deref(), now);
        }
        if let Outcome::Result(result) = response.outcome
            && is_for_all
            && let Some(entry) = self.cache_entry(call, key, raw, id, &result, now)
            && current
        {
            self.lists.cache(entry);
        }
    }

    /// Whether a response is the same for all clients: it neither starts an exchange nor has a cursor.
    fn is_for_all(&self, result: &Part<'_>) -> bool {
        let is_complete = match result.member("resultType") {
            Ok(None) => true,
            Ok(Some(kind)) => kind.string().as_deref() == Some("complete"),
            Err(_) => false,
        };
        let is_last = self.class.era() == Era::Modern || result.member("nextCursor") == Ok(None);
        is_complete && is_last
    }

    fn ask_separately(
        &mut self,
        client: ClientId,
        batch: Option<u64>,
        line: Option<&[u8]>,
        now: Moment,
    ) {
        let line = line.expect("a client that joined a list has its line stored");
        let Ok(Message::Request(request)) = Message::parse(line) else {
            unreachable!("it was parsed before");
        };
        let from = ClientMessage {
            client,
            raw: RawMessage::line(line),
            batch,
            now,
        };
        let lane = Lane::Of(client);
        let forwarded = self.forward(&from, &request, Kind::Plain, lane, None);
        forwarded.expect("it was forwarded before");
    }

    fn cache_entry(
        &self,
        call: &Call,
        key: &ListKey,
        raw: &RawMessage<'_>,
        id: &Part<'_>,
        result: &Part<'_>,
        now: Moment,
    ) -> Option<CachedList> {
        let (until, is_public) = match (self.class.era(), key.list) {
            (Era::Legacy, list) if list.changes_are_told(&self.handshake) => (None, true),
            (Era::Legacy, _) => return None,
            // The capabilities of a process do not change.
            (Era::Modern, List::Discover) => (None, true),
            (Era::Modern, _) => {
                let millis = result.member("ttlMs").ok()??.text().parse().ok()?;
                let scope = result.member("cacheScope").ok()??;
                if millis == 0 {
                    return None;
                }
                let until = now + Duration::from_millis(millis);
                (Some(until), scope.string().as_deref() == Some("public"))
            }
        };
        Some(CachedList {
            key: key.clone(),
            answer: KeptMessage::new(raw, id),
            until,
            only: match is_public {
                true => None,
                false => Some(call.session.clone()?),
            },
        })
    }

    /// The clients that wait for a response to `server/discover`.
    pub(super) fn discover_waiters(&self) -> Vec<(ClientId, Option<u64>, Vec<u8>)> {
        let probes = self.calls.client_calls().filter(|call| match &call.kind {
            Kind::Discover | Kind::OddDiscover => true,
            Kind::List(key) => key.list == List::Discover,
            _ => false,
        });
        probes
            .flat_map(|call| &call.waiters)
            .map(|it| (it.client, it.batch, it.id.to_vec()))
            .collect()
    }

    /// Records from a response whether the server knows `server/discover`. Modern servers answer with a result or a
    /// specific error code.
    pub(super) fn discovered(&mut self, response: &Response<'_>) {
        let knows = match response.outcome {
            Outcome::Result(_) => true,
            Outcome::Error(error) => {
                let code = error.member("code").ok().flatten();
                let code = code.and_then(|code| code.text().parse().ok());
                code.is_some_and(|code: i64| (-32099..=-32020).contains(&code))
            }
        };
        self.knows_discover = Some(knows);
    }
}

/// Whether a `server/discover` contains only the standard members of `_meta`. Only then an error shows that the
/// server does not know the method.
fn is_plain_discover(request: &Request<'_>) -> bool {
    let Some(params) = request.params else {
        return true;
    };
    let Ok(Some(meta)) = params.member("_meta") else {
        return params.keys().is_empty();
    };
    params.keys().len() == 1
        && meta
            .keys()
            .iter()
            .all(|key| Envelope::MEMBERS.contains(&&**key))
}

fn is_empty(object: Part<'_>) -> bool {
    object.text().starts_with('{') && object.keys().is_empty()
}
