//! The app's requests that wait for a response, and their bytes, for replay.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use crate::message::reply::{IN_FLIGHT_LIMIT, LONG_IDS_LIMIT, NAME_LIMIT};
use crate::message::{IdBytes, Key, MAX_ID, Message, Request, only_same_number};

use super::progress::{self, Progress};
use super::queue::Position;
use super::reply::shortened;

/// Maximum bytes of requests in flight that are stored for replay. Requests beyond it get an error if their upstream is
/// lost.
pub const REPLAY_LIMIT: usize = 1 << 20;

/// The state of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// `initialize`: sent to one upstream after the other until one answers.
    Handshake,

    /// Queued until there is an upstream.
    Queued(Position),

    /// Sent to the upstream.
    Sent,

    /// Sent, and cancelled by the app. A response may still come and is passed on, but the app does not wait for it.
    /// Stored until then, so that the response is not taken for that of another request with the same id.
    Cancelled,
}

/// The kind of a request, by its method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    Ping,
    ListTools,
    SetLevel,
    Subscribe,
    Unsubscribe,
    Listen(Acknowledged),
    Other,
}

/// Whether a subscription of the modern era is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acknowledged {
    No,
    /// The app was notified. `tools`: whether it is notified of changed tools.
    Yes {
        tools: bool,
    },
    /// The app was notified, and the subscription is opened again: it must not be notified twice.
    Again {
        tools: bool,
    },
}

impl RequestKind {
    fn of(method: &str) -> RequestKind {
        match method {
            "ping" => RequestKind::Ping,
            "tools/list" => RequestKind::ListTools,
            "logging/setLevel" => RequestKind::SetLevel,
            "resources/subscribe" => RequestKind::Subscribe,
            "resources/unsubscribe" => RequestKind::Unsubscribe,
            "subscriptions/listen" => RequestKind::Listen(Acknowledged::No),
            _ => RequestKind::Other,
        }
    }
}

/// A request without a response.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// The id as the app spelled it.
    pub(super) id: IdBytes,
    /// A description for people; a long one is cut.
    pub(super) method: Cow<'static, str>,
    pub(super) what: RequestKind,
    /// Its progress token.
    pub(super) token: Option<Key>,
    /// Older requests have lower numbers.
    pub(super) order: u64,
    stage: Stage,
    /// Its bytes, while it is sent and there was room for them.
    kept: Option<Vec<u8>>,
    /// Number of upstreams that may have received it.
    receivers: u32,
    /// End of its line within the bytes sent to the present upstream.
    end: u64,
}

impl PendingRequest {
    /// Its bytes, if they are stored.
    pub(super) fn kept(&self) -> Option<&[u8]> {
        self.kept.as_deref()
    }

    /// The parsed request, if it is stored.
    pub(super) fn kept_request(&self) -> Option<Request<'_>> {
        match Message::parse(self.kept()?) {
            Ok(Message::Request(request)) => Some(request),
            _ => None,
        }
    }

    pub(super) fn is_ping(&self) -> bool {
        self.what == RequestKind::Ping
    }

    /// Whether it lasts until either side ends it.
    pub(super) fn is_subscription(&self) -> bool {
        matches!(self.what, RequestKind::Listen(_))
    }

    /// Whether it is a subscription that the app knows to be open: then it waits for no response.
    pub(super) fn is_open_subscription(&self) -> bool {
        use Acknowledged::{Again, Yes};
        matches!(self.what, RequestKind::Listen(Yes { .. } | Again { .. }))
    }

    /// Whether an upstream may have processed it.
    pub(super) fn may_have_run(&self) -> bool {
        self.receivers > 0
    }

    /// Number of replays.
    pub(super) fn replays(&self) -> u32 {
        self.receivers.saturating_sub(1)
    }
}

/// The requests that a lost upstream has certainly not received.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Unsent<'a> {
    /// No request: the upstream may have received all sent requests.
    #[default]
    Nothing,

    /// Requests with these ids, and requests that end beyond the received bytes, newlines included.
    Reported {
        /// Received by the daemon, and not passed on.
        ids: &'a [Key],
        /// Bytes received since [`handle_upstream_attached`](super::Session::handle_upstream_attached), if counted.
        received: Option<u64>,
    },

    /// Requests that end within this many of the last bytes, newlines included: these were not written.
    LastBytes(usize),
}

/// Bytes of an id that count: short ids are limited by the number of requests.
fn counted(id: &[u8]) -> usize {
    match id.len() {
        0..=NAME_LIMIT => 0,
        length => length,
    }
}

#[derive(Debug, Default)]
pub(super) struct InFlight {
    requests: BTreeMap<Key, PendingRequest>,
    /// The latest cancelled requests without a response, oldest first.
    cancelled: VecDeque<(u64, Key)>,
    kept_bytes: usize,
    /// Bytes of all ids longer than [`NAME_LIMIT`].
    long_ids: usize,
    next: u64,
    /// The progress that the app has received.
    pub(super) progress: Progress,
}

impl InFlight {
    /// Maximum number of cancelled requests that are stored: a server need not answer them.
    const CANCELLED_LIMIT: usize = 1024;

    pub(super) fn stage(&self, key: &Key) -> Option<Stage> {
        self.requests.get(key).map(|request| request.stage)
    }

    /// The id of the only request that has the same number as `key`, for a key that equals no id exactly.
    pub(super) fn same_number(&self, key: &Key) -> Option<Key> {
        only_same_number(&self.requests, key, |_| true).cloned()
    }

    /// The same among the requests that were sent.
    pub(super) fn sent_with_same_number(&self, key: &Key) -> Option<Key> {
        let is_sent = |request: &PendingRequest| !matches!(request.stage, Stage::Queued(_));
        only_same_number(&self.requests, key, is_sent).cloned()
    }

    /// The id as the app spelled it.
    pub(super) fn spelled(&self, key: &Key) -> Option<Vec<u8>> {
        self.requests.get(key).map(|request| request.id.to_vec())
    }

    /// Whether it was sent, and lasts until either side ends it.
    pub(super) fn is_subscription(&self, key: &Key) -> bool {
        self.requests
            .get(key)
            .is_some_and(|request| request.stage == Stage::Sent && request.is_subscription())
    }

    /// The acknowledgement of the subscription with this id, if it was sent.
    pub(super) fn acknowledged(&mut self, key: &Key) -> Option<&mut Acknowledged> {
        match self.requests.get_mut(key) {
            Some(PendingRequest {
                stage: Stage::Sent,
                what: RequestKind::Listen(acknowledged),
                ..
            }) => Some(acknowledged),
            _ => None,
        }
    }

    /// The ids, as spelled, of subscriptions whose app is notified of changed tools.
    pub(super) fn tool_subscriptions(&self) -> impl Iterator<Item = &[u8]> {
        let hears = |request: &&PendingRequest| {
            use Acknowledged::{Again, Yes};
            let what = RequestKind::Listen;
            request.what == what(Yes { tools: true }) || request.what == what(Again { tools: true })
        };
        self.requests
            .values()
            .filter(hears)
            .map(|request| &request.id[..])
    }

    /// Whether no request waits for a response.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether there is no room for another request.
    pub(super) fn is_full(&self) -> bool {
        self.requests.len() >= IN_FLIGHT_LIMIT
    }

    /// Whether an id of this length can be stored until the response. Short ids always can.
    pub(super) fn has_room_for_id(&self, id: &[u8]) -> bool {
        let length = counted(id);
        length == 0 || (length <= MAX_ID && self.long_ids + length <= LONG_IDS_LIMIT)
    }

    /// Adds a request whose id is not in use.
    pub(super) fn insert(&mut self, key: Key, request: &Request<'_>, stage: Stage) {
        let method = request.method.name();
        let awaited = PendingRequest {
            id: request.id.raw().into(),
            method: shortened(&method),
            what: RequestKind::of(&method),
            token: None,
            order: self.next,
            stage,
            kept: None,
            receivers: 0,
            end: 0,
        };
        self.next += 1;
        self.long_ids += counted(&awaited.id);
        self.requests.insert(key, awaited);
    }

    /// Records that a request was sent. `end`: where its line ends in the bytes sent.
    pub(super) fn sent(&mut self, request: &Request<'_>, bytes: &[u8], end: u64) {
        let Some(awaited) = self.requests.get_mut(&request.id.key()) else {
            return;
        };
        if let Stage::Handshake | Stage::Cancelled = awaited.stage {
            return;
        }
        let again = awaited.receivers > 0;
        awaited.stage = Stage::Sent;
        awaited.receivers += 1;
        awaited.end = end;
        if self.kept_bytes + bytes.len() <= REPLAY_LIMIT {
            self.kept_bytes += bytes.len();
            awaited.kept = Some(bytes.to_vec());
            awaited.token = progress::token(request.params).filter(|it| it.length() <= NAME_LIMIT);
        }
        if let RequestKind::Listen(Acknowledged::Yes { tools }) = awaited.what {
            awaited.what = RequestKind::Listen(Acknowledged::Again { tools });
        }
        if let Some(token) = &awaited.token {
            self.progress.sent(token, again);
        }
    }

    /// Records that the app cancelled a request that was sent.
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

    /// Removes a request that was answered or will never be.
    pub(super) fn remove(&mut self, key: &Key) -> Option<PendingRequest> {
        let request = self.requests.remove(key)?;
        self.long_ids -= counted(&request.id);
        self.kept_bytes -= request.kept.as_ref().map_or(0, Vec::len);
        self.ended(&request);
        if request.stage == Stage::Cancelled {
            self.cancelled.retain(|(order, _)| *order != request.order);
        }
        Some(request)
    }

    /// Removes the requests that the lost upstream will not answer. Returns those that wait for a response, oldest
    /// first, and whether each was certainly not received. `sent_bytes`: bytes sent to that upstream.
    pub(super) fn upstream_lost(
        &mut self,
        unsent: Unsent<'_>,
        sent_bytes: u64,
    ) -> Vec<(Key, PendingRequest, bool)> {
        self.cancelled.clear();
        let lost = self.take(|it| matches!(it.stage, Stage::Sent | Stage::Cancelled));
        let known_unsent = |key: &Key, request: &PendingRequest| match unsent {
            Unsent::Nothing => false,
            Unsent::Reported { ids, received } => {
                ids.contains(key) || received.is_some_and(|received| request.end > received)
            }
            Unsent::LastBytes(count) => request.end > sent_bytes.saturating_sub(count as u64),
        };
        let judged = lost.into_iter().map(|(key, mut request)| {
            let unsent = known_unsent(&key, &request);
            request.receivers -= u32::from(unsent);
            (key, request, unsent)
        });
        judged.collect()
    }

    /// Adds a request that waits for the next upstream, and returns its bytes, which must be stored.
    pub(super) fn queue_again(
        &mut self,
        key: Key,
        mut request: PendingRequest,
        at: Position,
    ) -> Vec<u8> {
        let bytes = request.kept.take().unwrap_or_default();
        request.stage = Stage::Queued(at);
        self.long_ids += counted(&request.id);
        self.requests.insert(key, request);
        bytes
    }

    /// Removes the requests that wait for an upstream, oldest first: all of them, or all but open subscriptions.
    pub(super) fn waiting(&mut self, all: bool) -> Vec<PendingRequest> {
        let waiting = self.take(|it| {
            let waits = matches!(it.stage, Stage::Handshake | Stage::Queued(_));
            waits && (all || !it.is_open_subscription())
        });
        for (_, request) in &waiting {
            self.ended(request);
        }
        waiting.into_iter().map(|(_, request)| request).collect()
    }

    /// Forgets the progress of a request.
    pub(super) fn ended(&mut self, request: &PendingRequest) {
        if let Some(token) = &request.token {
            self.progress.ended(token);
        }
    }

    /// The requests that wait for a response.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &PendingRequest> {
        self.requests
            .values()
            .filter(|request| request.stage != Stage::Cancelled)
    }

    /// Whether only subscriptions and pings are pending.
    pub(super) fn is_quiet(&self) -> bool {
        let mut awaited = self.awaited();
        awaited.all(|request| request.is_subscription() || request.is_ping())
    }

    /// Removes requests, and returns those that wait for a response.
    fn take(&mut self, such: impl Fn(&PendingRequest) -> bool) -> Vec<(Key, PendingRequest)> {
        let taken = self.requests.extract_if(.., |_, it| such(it));
        let (mut taken, cancelled): (Vec<_>, Vec<_>) =
            taken.partition(|(_, request)| request.stage != Stage::Cancelled);
        let ids = taken.iter().chain(&cancelled);
        self.long_ids -= ids.map(|(_, it)| counted(&it.id)).sum::<usize>();
        for (_, request) in &cancelled {
            self.ended(request);
        }
        let kept = |(_, request): &(Key, PendingRequest)| request.kept.as_ref().map_or(0, Vec::len);
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
