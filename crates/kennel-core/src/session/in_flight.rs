//! The app's requests that wait for an answer, and their bytes: what is lost on its way may have to be
//! sent again.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use crate::message::reply::{IN_FLIGHT_LIMIT, LONG_IDS_LIMIT, NAME_LIMIT};
use crate::message::{Key, LONGEST_ID, Message, Request, Short, only_same_number};

use super::progress::{self, Progress};
use super::queue::Ticket;
use super::reply::shortened;

/// How many bytes of requests in flight are kept to be sent again. What does not find room is answered with
/// an error should its upstream be lost.
pub const REPLAY_LIMIT: usize = 1 << 20;

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// `initialize`: it is sent to one upstream after the other until one answers.
    Handshake,

    /// It waits for an upstream: its bytes are in the queue.
    Queued(Ticket),

    /// The upstream has it.
    Sent,

    /// The upstream has it, and the app does not want the answer any more. One may come all the
    /// same and is passed on; none is owed. Known until then so that the answer is not taken for
    /// another request's that has the same id.
    Cancelled,
}

/// What a request is to the session, by its method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Ping,
    ListTools,
    SetLevel,
    Subscribe,
    Unsubscribe,
    Listen(Acknowledged),
    Other,
}

/// Whether a subscription of the modern era is known to be open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acknowledged {
    No,
    /// The app knows; and whether it is to hear of changed tools.
    Yes {
        tools: bool,
    },
    /// The app knows, and it is opened again: it is not to be told twice.
    Again {
        tools: bool,
    },
}

impl What {
    fn of(method: &str) -> What {
        match method {
            "ping" => What::Ping,
            "tools/list" => What::ListTools,
            "logging/setLevel" => What::SetLevel,
            "resources/subscribe" => What::Subscribe,
            "resources/unsubscribe" => What::Unsubscribe,
            "subscriptions/listen" => What::Listen(Acknowledged::No),
            _ => What::Other,
        }
    }
}

/// A request without its answer.
#[derive(Debug)]
pub(super) struct Awaited {
    /// As the app spelled it.
    pub(super) id: Short,
    /// For people: cut if it is long.
    pub(super) method: Cow<'static, str>,
    pub(super) what: What,
    /// What its progress is known by.
    pub(super) token: Option<Key>,
    /// Older ones have less.
    pub(super) order: u64,
    stage: Stage,
    /// Its bytes, while an upstream has it and there was room for them.
    kept: Option<Vec<u8>>,
    /// How many upstreams may have heard it.
    heard: u32,
    /// Where its line ends in what the present upstream was sent.
    end: u64,
}

impl Awaited {
    /// Its bytes, if they are kept.
    pub(super) fn kept(&self) -> Option<&[u8]> {
        self.kept.as_deref()
    }

    /// The request itself, if it is kept.
    pub(super) fn kept_request(&self) -> Option<Request<'_>> {
        match Message::parse(self.kept()?) {
            Ok(Message::Request(request)) => Some(request),
            _ => None,
        }
    }

    pub(super) fn is_ping(&self) -> bool {
        self.what == What::Ping
    }

    /// Whether it lasts until either side ends it.
    pub(super) fn is_subscription(&self) -> bool {
        matches!(self.what, What::Listen(_))
    }

    /// Whether it is a subscription that the app knows to be open: no answer is owed to it.
    pub(super) fn is_open_subscription(&self) -> bool {
        use Acknowledged::{Again, Yes};
        matches!(self.what, What::Listen(Yes { .. } | Again { .. }))
    }

    /// Whether an upstream may have done it.
    pub(super) fn may_be_done(&self) -> bool {
        self.heard > 0
    }

    /// How often it was sent again.
    pub(super) fn repeats(&self) -> u32 {
        self.heard.saturating_sub(1)
    }
}

/// Which requests a lost upstream is known never to have heard.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Unsent<'a> {
    /// Nothing is known: all that was handed out may have been heard.
    #[default]
    Nothing,

    /// Those with these ids, and those whose end is not in the bytes that were heard, newlines included,
    /// if that was counted.
    Told {
        /// Heard by whoever passes lines on, and not passed on.
        ids: &'a [Key],
        /// How much of what was handed out since [`upstream_attached`](super::Session::upstream_attached).
        heard: Option<u64>,
    },

    /// Those whose end is in this many of the bytes that were handed out last, newlines included: they
    /// were not written.
    LastBytes(usize),
}

/// What an id counts for: the number of requests bounds those that are not long.
fn counted(id: &[u8]) -> usize {
    match id.len() {
        0..=NAME_LIMIT => 0,
        length => length,
    }
}

#[derive(Debug, Default)]
pub(super) struct InFlight {
    requests: BTreeMap<Key, Awaited>,
    /// The latest cancelled ones that are not answered, oldest first.
    cancelled: VecDeque<(u64, Key)>,
    kept_bytes: usize,
    /// Of all ids that are longer than [`NAME_LIMIT`].
    long_ids: usize,
    next: u64,
    /// How far they have come.
    pub(super) progress: Progress,
}

impl InFlight {
    /// How many cancelled requests are remembered: a server need not ever answer them.
    const CANCELLED_LIMIT: usize = 1024;

    pub(super) fn stage(&self, key: &Key) -> Option<Stage> {
        self.requests.get(key).map(|request| request.stage)
    }

    /// The only request whose id is the same number as this id, which is no request's.
    pub(super) fn same_number(&self, key: &Key) -> Option<Key> {
        only_same_number(&self.requests, key, |_| true).cloned()
    }

    /// The same, of those that the upstream has.
    pub(super) fn sent_with_same_number(&self, key: &Key) -> Option<Key> {
        let is_sent = |request: &Awaited| !matches!(request.stage, Stage::Queued(_));
        only_same_number(&self.requests, key, is_sent).cloned()
    }

    /// The id as the app spelled it.
    pub(super) fn spelled(&self, key: &Key) -> Option<Vec<u8>> {
        self.requests.get(key).map(|request| request.id.to_vec())
    }

    /// Whether the upstream has it, and it is one that lasts until either side ends it.
    pub(super) fn is_subscription(&self, key: &Key) -> bool {
        self.requests
            .get(key)
            .is_some_and(|request| request.stage == Stage::Sent && request.is_subscription())
    }

    /// Whether the subscription with this id is acknowledged, if the upstream has it.
    pub(super) fn acknowledged(&mut self, key: &Key) -> Option<&mut Acknowledged> {
        match self.requests.get_mut(key) {
            Some(Awaited {
                stage: Stage::Sent,
                what: What::Listen(acknowledged),
                ..
            }) => Some(acknowledged),
            _ => None,
        }
    }

    /// The ids, as spelled, of subscriptions whose app is to hear of changed tools.
    pub(super) fn hear_of_tools(&self) -> impl Iterator<Item = &[u8]> {
        let hears = |request: &&Awaited| {
            use Acknowledged::{Again, Yes};
            let what = What::Listen;
            request.what == what(Yes { tools: true }) || request.what == what(Again { tools: true })
        };
        self.requests
            .values()
            .filter(hears)
            .map(|request| &request.id[..])
    }

    /// Whether no request is without its answer.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether there is no room for another one.
    pub(super) fn is_full(&self) -> bool {
        self.requests.len() >= IN_FLIGHT_LIMIT
    }

    /// Whether an id of this length can be kept until its request is answered. Those that are not long always can.
    pub(super) fn has_room_for_id(&self, id: &[u8]) -> bool {
        let length = counted(id);
        length == 0 || (length <= LONGEST_ID && self.long_ids + length <= LONG_IDS_LIMIT)
    }

    /// A request whose id is free.
    pub(super) fn insert(&mut self, key: Key, request: &Request<'_>, stage: Stage) {
        let method = request.method.name();
        let awaited = Awaited {
            id: request.id.raw().into(),
            method: shortened(&method),
            what: What::of(&method),
            token: None,
            order: self.next,
            stage,
            kept: None,
            heard: 0,
            end: 0,
        };
        self.next += 1;
        self.long_ids += counted(&awaited.id);
        self.requests.insert(key, awaited);
    }

    /// The upstream gets it, with its line's end there.
    pub(super) fn sent(&mut self, request: &Request<'_>, bytes: &[u8], end: u64) {
        let Some(awaited) = self.requests.get_mut(&request.id.key()) else {
            return;
        };
        if let Stage::Handshake | Stage::Cancelled = awaited.stage {
            return;
        }
        let again = awaited.heard > 0;
        awaited.stage = Stage::Sent;
        awaited.heard += 1;
        awaited.end = end;
        if self.kept_bytes + bytes.len() <= REPLAY_LIMIT {
            self.kept_bytes += bytes.len();
            awaited.kept = Some(bytes.to_vec());
            awaited.token = progress::token(request.params).filter(|it| it.length() <= NAME_LIMIT);
        }
        if let What::Listen(Acknowledged::Yes { tools }) = awaited.what {
            awaited.what = What::Listen(Acknowledged::Again { tools });
        }
        if let Some(token) = &awaited.token {
            self.progress.sent(token, again);
        }
    }

    /// The app does not want the answer any more of a request that was sent.
    pub(super) fn cancel(&mut self, key: &Key) {
        let Some(request) = self.requests.get_mut(key) else {
            return;
        };
        request.stage = Stage::Cancelled;
        self.kept_bytes -= request.kept.take().map_or(0, |kept| kept.len());
        self.cancelled.push_back((request.order, key.clone()));
        if self.cancelled.len() > InFlight::CANCELLED_LIMIT {
            self.forget_oldest_cancelled();
        }
    }

    /// It is answered, or will never be.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Awaited> {
        let request = self.requests.remove(key)?;
        self.long_ids -= counted(&request.id);
        self.kept_bytes -= request.kept.as_ref().map_or(0, Vec::len);
        self.ended(&request);
        if request.stage == Stage::Cancelled {
            self.cancelled.retain(|(order, _)| *order != request.order);
        }
        Some(request)
    }

    /// Takes out what the lost upstream will not answer, and gives back what is owed, oldest first, with
    /// whether it is known never to have been heard. `handed` is how much that upstream was sent.
    pub(super) fn upstream_lost(
        &mut self,
        unsent: Unsent<'_>,
        handed: u64,
    ) -> Vec<(Key, Awaited, bool)> {
        self.cancelled.clear();
        let lost = self.take(|it| matches!(it.stage, Stage::Sent | Stage::Cancelled));
        let known_unsent = |key: &Key, request: &Awaited| match unsent {
            Unsent::Nothing => false,
            Unsent::Told { ids, heard } => {
                ids.contains(key) || heard.is_some_and(|heard| request.end > heard)
            }
            Unsent::LastBytes(count) => request.end > handed.saturating_sub(count as u64),
        };
        let judged = lost.into_iter().map(|(key, mut request)| {
            let unsent = known_unsent(&key, &request);
            request.heard -= u32::from(unsent);
            (key, request, unsent)
        });
        judged.collect()
    }

    /// It waits for the next upstream; gives its bytes, which must be kept.
    pub(super) fn wait_again(&mut self, key: Key, mut request: Awaited, at: Ticket) -> Vec<u8> {
        let bytes = request.kept.take().unwrap_or_default();
        request.stage = Stage::Queued(at);
        self.long_ids += counted(&request.id);
        self.requests.insert(key, request);
        bytes
    }

    /// Takes out what waits for an upstream, oldest first: all of it, or all but open subscriptions.
    pub(super) fn waiting(&mut self, all: bool) -> Vec<Awaited> {
        let waiting = self.take(|it| {
            let waits = matches!(it.stage, Stage::Handshake | Stage::Queued(_));
            waits && (all || !it.is_open_subscription())
        });
        for (_, request) in &waiting {
            self.ended(request);
        }
        waiting.into_iter().map(|(_, request)| request).collect()
    }

    /// It is over.
    pub(super) fn ended(&mut self, request: &Awaited) {
        if let Some(token) = &request.token {
            self.progress.ended(token);
        }
    }

    /// Those that are waited for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Awaited> {
        self.requests
            .values()
            .filter(|request| request.stage != Stage::Cancelled)
    }

    /// Whether nothing is waited for but news, and that somebody is there.
    pub(super) fn is_quiet(&self) -> bool {
        let mut awaited = self.awaited();
        awaited.all(|request| request.is_subscription() || request.is_ping())
    }

    /// Takes out such requests, and gives back those that are waited for.
    fn take(&mut self, such: impl Fn(&Awaited) -> bool) -> Vec<(Key, Awaited)> {
        let taken = self.requests.extract_if(.., |_, it| such(it));
        let (mut taken, cancelled): (Vec<_>, Vec<_>) =
            taken.partition(|(_, request)| request.stage != Stage::Cancelled);
        let ids = taken.iter().chain(&cancelled);
        self.long_ids -= ids.map(|(_, it)| counted(&it.id)).sum::<usize>();
        for (_, request) in &cancelled {
            self.ended(request);
        }
        let kept = |(_, request): &(Key, Awaited)| request.kept.as_ref().map_or(0, Vec::len);
        self.kept_bytes -= taken.iter().map(kept).sum::<usize>();
        taken.sort_by_key(|(_, request)| request.order);
        taken
    }

    fn forget_oldest_cancelled(&mut self) {
        if let Some((order, key)) = self.cancelled.pop_front()
            && self.requests.get(&key).is_some_and(|it| it.order == order)
        {
            self.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(in_flight: &mut InFlight, id: &str, token: &str) -> Key {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"x","params":{{"_meta":{{"progressToken":"{token}"}}}}}}"#
        );
        let Ok(Message::Request(request)) = Message::parse(line.as_bytes()) else {
            panic!("{line}");
        };
        let key = request.id.key();
        in_flight.insert(key.clone(), &request, Stage::Sent);
        in_flight.sent(&request, line.as_bytes(), 0);
        key
    }

    #[test]
    fn of_a_cancelled_request_no_bytes_are_kept_and_of_an_answered_one_nothing() {
        let mut in_flight = InFlight::default();
        let key = ask(&mut in_flight, "1", "token");
        in_flight.cancel(&key);
        assert_eq!((in_flight.progress.len(), in_flight.kept_bytes), (1, 0));
        in_flight.remove(&key);
        assert_eq!(in_flight.progress.len(), 0);
        assert!(in_flight.cancelled.is_empty());
    }

    #[test]
    fn progress_is_not_followed_by_a_token_that_is_very_long() {
        let mut in_flight = InFlight::default();
        for (id, length) in [("1", NAME_LIMIT), ("2", NAME_LIMIT + 1)] {
            ask(&mut in_flight, id, &"t".repeat(length));
        }
        assert_eq!(in_flight.progress.len(), 1);
    }
}
