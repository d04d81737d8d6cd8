//! Lists that several clients ask for: asked once, and kept where the protocol says for how long.
//!
//! Asked once means that nobody could tell: no cursor, no progress, no log level, no state of an
//! exchange, and in the legacy era nothing in `_meta` at all. An answer that belongs to one exchange
//! after all (it has a cursor, or wants input) goes to one, and the others' requests are sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Message, Outcome, Part, Request, Response};
use crate::time::Moment;

use super::calls::{Call, Kind, Minted};
use super::class::{Envelope, Era};
use super::from_client::{LOG_LEVEL, in_meta};
use super::handshake::{Handshake, waiter};
use super::refused::Refused;
use super::said::{From, Kept, Said};
use super::snapshot::pairs;
use super::{Lane, Mux};

/// What is listed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum List {
    Tools,
    Prompts,
    Resources,
    Templates,
    /// No list, but asked for by everybody (modern).
    Discover,
}

/// What is the same question: of the modern era, all that it says.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct ListKey {
    list: List,
    params: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Lists {
    /// Those another client may wait for as well.
    #[serde(with = "pairs")]
    in_flight: BTreeMap<ListKey, Minted>,
    /// Oldest first.
    kept: VecDeque<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    key: ListKey,
    answer: Kept,
    /// `None`: until the server says that it changed.
    until: Option<Moment>,
    /// `None`: for everybody.
    only: Option<Arc<str>>,
}

impl ListKey {
    pub(super) fn bytes(&self) -> usize {
        self.params.len()
    }
}

impl List {
    /// Maximum bytes of a request that may wait for another's answer.
    const LONGEST_LINE: usize = 16 * 1024;
    /// A kept answer is long from this many bytes on: while the daemon is short of memory, it is not copied.
    const LONG: usize = 64 * 1024;

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
    /// How many answers are kept: requests of the modern era may all differ.
    const KEPT: usize = 64;
    /// How many bytes of them.
    const KEPT_BYTES: usize = 8 << 20;

    fn answer(&mut self, key: &ListKey, session: &Arc<str>, now: Moment) -> Option<&Kept> {
        self.kept
            .retain(|entry| entry.until.is_none_or(|until| now < until));
        let fits = |entry: &&Entry| {
            entry.key == *key && entry.only.as_ref().is_none_or(|only| only == session)
        };
        self.kept.iter().find(fits).map(|entry| &entry.answer)
    }

    fn keep(&mut self, entry: Entry) {
        self.kept
            .retain(|old| old.key != entry.key || old.only != entry.only);
        self.kept.push_back(entry);
        let bytes = |kept: &VecDeque<Entry>| kept.iter().map(|it| it.answer.len()).sum::<usize>();
        while self.kept.len() > Lists::KEPT || bytes(&self.kept) > Lists::KEPT_BYTES {
            self.kept.pop_front();
        }
    }

    /// The server said that these changed. What is under way may be from before: it is neither kept
    /// nor waited for by anybody who asks from now on.
    pub(super) fn changed(&mut self, lists: &[List]) {
        self.kept.retain(|entry| !lists.contains(&entry.key.list));
        self.in_flight.retain(|key, _| !lists.contains(&key.list));
    }

    /// A call was answered that may have changed any list. Who asks from now on wants to see that, unless
    /// the server would have said so.
    pub(super) fn may_have_changed(&mut self, handshake: &Handshake) {
        self.in_flight
            .retain(|key, _| key.list == List::Discover || key.list.changes_are_told(handshake));
    }

    /// Nobody waits for this call any more, and nobody may.
    pub(super) fn abandoned(&mut self, minted: Minted) {
        self.in_flight.retain(|_, other| *other != minted);
    }

    /// It is answered. `false`: it was from before a change.
    fn answered(&mut self, key: &ListKey, minted: Minted) -> bool {
        let current = self.in_flight.get(key) == Some(&minted);
        if current {
            self.in_flight.remove(key);
        }
        current
    }
}

impl Mux {
    pub(super) fn list_from_client(
        &mut self,
        from: &From<'_>,
        request: &Request<'_>,
        list: List,
    ) -> Result<(), Refused> {
        // The line is kept for as long as it waits with others.
        let is_long = from.said.bytes().len() > List::LONGEST_LINE;
        let key = match is_long {
            true => None,
            false => self.list_key(request, list)?,
        };
        // Each client waits for it once: else one could have as many copies of a long answer as it has short lines.
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
            if is_short_of_memory && kept.len() >= List::LONG {
                // The server is not read while its clients have much to read: a new answer comes when there is room.
                self.forward(from, request, Kind::Plain, Lane::Of(from.client), None)?;
                return Ok(());
            }
            let id = request.id.raw();
            let instead = self.batches.error_instead(from.batch, kept.len(), id);
            let line = instead.unwrap_or_else(|| kept.under(id));
            self.answer(from.client, from.batch, line);
        } else if let Some(minted) = self.lists.in_flight.get(&key) {
            let mut waiter = waiter(from, request);
            waiter.again = Some(from.said.bytes().to_vec());
            waiter.bytes += from.said.bytes().len();
            self.calls.join(*minted, waiter);
        } else {
            // Not in its client's lane: others may come to wait for it.
            let kind = Kind::List(key.clone());
            let minted = self.forward(from, request, kind, Lane::Own, None)?;
            self.lists.in_flight.insert(key, minted);
        }
        Ok(())
    }

    /// Whether this client waits for the answer to the same question.
    fn awaits_list(&self, client: ClientId, key: &ListKey) -> bool {
        let minted = self.lists.in_flight.get(key);
        let call = minted.and_then(|minted| self.calls.get(*minted));
        call.is_some_and(|call| call.waiters.iter().any(|it| it.client == client))
    }

    /// What this request has in common with others. `None`: it is one of its kind.
    fn list_key(&self, request: &Request<'_>, list: List) -> Result<Option<ListKey>, Refused> {
        const LONGEST: usize = 4096;
        let params = request.params.map_or("", |params| params.text());
        if !self.policy.cache || !self.class.is_shared() || params.len() > LONGEST {
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
        minted: Minted,
        call: &Call,
        key: &ListKey,
        said: &Said<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
        now: Moment,
    ) {
        let current = self.lists.answered(key, minted);
        if key.list == List::Discover {
            self.discovered(response);
        }
        let is_for_all = match response.outcome {
            Outcome::Result(result) => self.is_for_all(&result),
            Outcome::Error(_) => true,
        };
        // Of a long answer only so many copies are made at once. The server is not read while its clients have much to
        // read: the others get theirs when there is room.
        let copies = match is_for_all {
            true => self.copies_of(said),
            false => 1,
        };
        let (first, others) = call.waiters.split_at(copies.min(call.waiters.len()));
        self.deliver_to(first, said, id);
        for other in others {
            self.ask_separately(other.client, other.batch, other.again.as_deref(), now);
        }
        if let Outcome::Result(result) = response.outcome
            && is_for_all
            && let Some(entry) = self.keepable(call, key, said, id, &result, now)
            && current
        {
            self.lists.keep(entry);
        }
    }

    /// Whether an answer is the same to all who ask: it neither begins an exchange with one of them
    /// nor leads on by a cursor that may be good for one use.
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
        let line = line.expect("whoever joined a list left its line");
        let Ok(Message::Request(request)) = Message::parse(line) else {
            unreachable!("it was parsed before");
        };
        let from = From {
            client,
            said: Said::line(line),
            batch,
            now,
        };
        let lane = Lane::Of(client);
        let forwarded = self.forward(&from, &request, Kind::Plain, lane, None);
        forwarded.expect("it was fit to be forwarded before");
    }

    fn keepable(
        &self,
        call: &Call,
        key: &ListKey,
        said: &Said<'_>,
        id: &Part<'_>,
        result: &Part<'_>,
        now: Moment,
    ) -> Option<Entry> {
        let (until, is_public) = match (self.class.era(), key.list) {
            (Era::Legacy, list) if list.changes_are_told(&self.handshake) => (None, true),
            (Era::Legacy, _) => return None,
            // Once for the process: what it can do does not change.
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
        Some(Entry {
            key: key.clone(),
            answer: Kept::new(said, id),
            until,
            only: match is_public {
                true => None,
                false => Some(call.session.clone()?),
            },
        })
    }

    /// Who waits for an answer to `server/discover`.
    pub(super) fn probing(&self) -> Vec<(ClientId, Option<u64>, Vec<u8>)> {
        let probes = self.calls.asked().filter(|call| match &call.kind {
            Kind::Discover | Kind::OddDiscover => true,
            Kind::List(key) => key.list == List::Discover,
            _ => false,
        });
        probes
            .flat_map(|call| &call.waiters)
            .map(|it| (it.client, it.batch, it.id.to_vec()))
            .collect()
    }

    /// The server answered `server/discover`. A modern one knows it, or says in a code of its own why not.
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

/// Whether a `server/discover` says nothing but what every request of its era says: who asks, what that one speaks and what
/// it can do. Only such a one shows whether the server knows the question.
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
