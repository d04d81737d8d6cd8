//! Resource subscriptions (legacy): the server has one subscription for all clients that want it.
//!
//! All of these requests use the front lane, so that a subscription is not overtaken by the end of an earlier one.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::{Deserialize, Deserializer, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Key, Outcome, Part, Request, Response, quoted, reply};

use super::calls::{AssignedId, Call, Kind};
use super::handshake::waiter;
use super::raw_message::{ClientMessage, RawMessage};
use super::refused::{Refused, SUBSCRIPTIONS_LIMIT, URI_LIMIT, refuse_other_members};
use super::{Lane, Mux};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Subscriptions {
    /// By [normalized](normalize) URI. Older builds stored them as spelled.
    #[serde(deserialize_with = "deserialize_normalized")]
    by_uri: BTreeMap<String, Subscription>,
    /// Bytes of the subscriptions of each client. Snapshots of older builds have no counts.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
    /// Subscriptions of clients that left, which the server is still to be asked to end: by normalised URI, with the URI as
    /// the server received it, if that differs.
    #[serde(default)]
    to_end: BTreeMap<String, Option<String>>,
    #[serde(default)]
    to_end_bytes: usize,
    /// Requests in flight that end one of them.
    #[serde(default)]
    ending: usize,
}

/// Maximum requests in flight that end subscriptions of clients that left: other clients wait for the server meanwhile.
const MAX_ENDING_REQUESTS: usize = 64;
/// Maximum bytes of subscriptions that wait to be ended. The server keeps those beyond it, and its updates are dropped.
const MAX_TO_END_BYTES: usize = 4 << 20;

/// Memory of a subscription besides its URI.
const OVERHEAD: usize = 256;
/// Maximum bytes of a client's subscriptions while the daemon is short of memory.
const LIMIT_IF_SHORT: usize = 4 << 10;

/// A subscription at the server, and its clients.
#[derive(Debug, Serialize, Deserialize)]
struct Subscription {
    /// The call in flight that creates it.
    call: Option<AssignedId>,
    /// The clients, never empty. For each, its requests that can still be cancelled because the server has not
    /// answered.
    wanted_by: BTreeMap<ClientId, BTreeSet<Key>>,
    /// The URI as the server received it, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spelled: Option<String>,
}

impl Subscriptions {
    /// Bytes of all subscriptions.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum::<usize>() + self.to_end_bytes
    }

    /// Ends a subscription of a client that left when its turn comes. `spelled`: the URI as the server received it, if that
    /// differs.
    fn queue_end(&mut self, uri: &str, spelled: Option<String>) {
        let bytes = OVERHEAD + uri.len() + spelled.as_ref().map_or(0, String::len);
        if self.to_end_bytes + bytes <= MAX_TO_END_BYTES
            && self.to_end.insert(uri.to_owned(), spelled).is_none()
        {
            self.to_end_bytes += bytes;
        }
    }

    /// Does not end it after all: a client wants it again.
    fn cancel_end(&mut self, uri: &str) {
        if let Some(spelled) = self.to_end.remove(uri) {
            self.to_end_bytes -= OVERHEAD + uri.len() + spelled.map_or(0, |it| it.len());
        }
    }

    /// The next subscription that the server is to be asked to end now.
    fn next_to_end(&mut self) -> Option<String> {
        if self.ending >= MAX_ENDING_REQUESTS {
            return None;
        }
        let (uri, spelled) = self.to_end.pop_first()?;
        self.to_end_bytes -= OVERHEAD + uri.len() + spelled.as_ref().map_or(0, String::len);
        self.ending += 1;
        Some(spelled.unwrap_or(uri))
    }

    /// Whether a client may add a subscription to this URI.
    fn has_room(&self, client: ClientId, uri: &str, limit: usize) -> bool {
        let before = self.bytes.get(&client).copied().unwrap_or_default();
        before + uri.len() + OVERHEAD <= limit
    }

    fn count(&mut self, client: ClientId, uri: &str) {
        *self.bytes.entry(client).or_default() += uri.len() + OVERHEAD;
    }

    fn subtract(&mut self, client: ClientId, uri: &str) {
        if let Some(bytes) = self.bytes.get_mut(&client) {
            *bytes = bytes.saturating_sub(uri.len() + OVERHEAD);
            if *bytes == 0 {
                self.bytes.remove(&client);
            }
        }
    }

    /// Removes a client from a subscription. Returns whether other clients are subscribed; `None` if this client was not.
    fn drop_client(&mut self, client: ClientId, uri: &str) -> Option<bool> {
        let subscription = self.by_uri.get_mut(uri)?;
        subscription.wanted_by.remove(&client)?;
        let others = !subscription.wanted_by.is_empty();
        self.subtract(client, uri);
        Some(others)
    }

    /// Removes a subscription that the server does not have.
    fn remove(&mut self, uri: &str) {
        if let Some(gone) = self.by_uri.remove(uri) {
            for client in gone.wanted_by.into_keys() {
                self.subtract(client, uri);
            }
        }
    }

    /// The subscription that this call creates, unless it was cancelled or replaced.
    fn asked_by(&mut self, assigned: AssignedId, uri: &str) -> Option<&mut Subscription> {
        let subscription = self.by_uri.get_mut(&*normalize(uri));
        subscription.filter(|it| it.call == Some(assigned))
    }

    /// The URI as the server received it.
    fn spelled(&self, uri: &str) -> Option<String> {
        self.by_uri.get(uri)?.spelled.clone()
    }

    /// The clients to notify about this resource: its subscribers, or else the subscribers of a parent. `file:///a`
    /// and `file:///a/` are parents of `file:///a/b`; `file:///ab` is not. `file:///` and `https://host` are not
    /// either: they name no resource. A URI may be a secret of its subscriber, so no other client is notified, and a
    /// subscription covers children only once the server has accepted it.
    pub(super) fn recipients(&self, uri: &str) -> BTreeSet<ClientId> {
        let uri = &*normalize(uri);
        if let Some(exact) = self.by_uri.get(uri) {
            return exact.wanted_by.keys().copied().collect();
        }
        let is_above = |it: &str| is_parent(it, uri) && has_path(it);
        let above = self.prefixes_of(uri).filter(|(it, _)| is_above(it));
        let accepted = above.filter(|(_, it)| it.call.is_none());
        accepted
            .flat_map(|(_, it)| it.wanted_by.keys().copied())
            .collect()
    }

    /// The subscriptions whose URI is a prefix of this one, longest first. Costs one lookup for each similar URI,
    /// independent of the URI's length: a server chooses it, and other sessions wait meanwhile.
    fn prefixes_of<'a>(
        &'a self,
        uri: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Subscription)> {
        let mut rest = Some(uri);
        std::iter::from_fn(move || {
            loop {
                let bound = rest?;
                let range = (Bound::Unbounded, Bound::Included(bound));
                let (found, subscription) = self.by_uri.range::<str, _>(range).next_back()?;
                let same = found.bytes().zip(bound.bytes());
                let same = same.take_while(|(one, other)| one == other).count();
                // Every shorter prefix has at most this length.
                let is_beginning = same == found.len();
                let longest = if is_beginning {
                    same.checked_sub(1)
                } else {
                    Some(same)
                };
                rest = longest.map(|longest| &uri[..uri.floor_char_boundary(longest)]);
                if is_beginning {
                    return Some((&**found, subscription));
                }
            }
        })
    }
}

/// Whether a prefix of a URI is its parent: it ends at the boundary of a path segment, or of the path.
fn is_parent(beginning: &str, uri: &str) -> bool {
    let is_boundary = |byte: Option<&u8>| matches!(byte, Some(b'/' | b'?' | b'#'));
    is_boundary(beginning.as_bytes().last()) || is_boundary(uri.as_bytes().get(beginning.len()))
}

/// Lowercases scheme and host of a URI (RFC 3986, section 6.2.2.1).
fn normalize(uri: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = uri.split_once(':') else {
        return Cow::Borrowed(uri);
    };
    let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !scheme.bytes().all(is_of_scheme) {
        return Cow::Borrowed(uri);
    }
    let mut host = scheme.len()..scheme.len();
    if let Some(authority) = rest.strip_prefix("//") {
        let start = uri.len() - authority.len();
        let end = authority.find(['/', '?', '#']).unwrap_or(authority.len());
        let user = authority[..end].rfind('@').map_or(0, |at| at + 1);
        host = start + user..start + end;
    }
    let is_upper = |part: &str| part.bytes().any(|byte| byte.is_ascii_uppercase());
    if !is_upper(scheme) && !is_upper(&uri[host.clone()]) {
        return Cow::Borrowed(uri);
    }
    let mut uri = uri.to_owned();
    uri[..scheme.len()].make_ascii_lowercase();
    uri[host].make_ascii_lowercase();
    Cow::Owned(uri)
}

/// Whether a URI has anything after scheme and host.
fn has_path(uri: &str) -> bool {
    let rest = uri.split_once(':').map_or(uri, |(_, rest)| rest);
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]),
        None => rest,
    };
    path.bytes().any(|byte| !matches!(byte, b'/' | b'?' | b'#'))
}

/// Deserializes subscriptions of any build by normalized URI.
fn deserialize_normalized<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Subscription>, D::Error> {
    let spelled: BTreeMap<String, Subscription> = Deserialize::deserialize(deserializer)?;
    let mut by_uri: BTreeMap<String, Subscription> = BTreeMap::new();
    for (uri, mut subscription) in spelled {
        if let Cow::Owned(normal) = normalize(&uri) {
            match by_uri.get_mut(&normal) {
                Some(same) => same.wanted_by.append(&mut subscription.wanted_by),
                None => {
                    subscription.spelled = Some(uri);
                    by_uri.insert(normal, subscription);
                }
            }
        } else if let Some(same) = by_uri.get_mut(&uri) {
            same.wanted_by.append(&mut subscription.wanted_by);
        } else {
            by_uri.insert(uri, subscription);
        }
    }
    Ok(by_uri)
}

impl Mux {
    pub(super) fn subscribe(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let Some((_, spelled)) = self.uri(request)? else {
            // The server reports what is wrong with it.
            let lane = Lane::Of(from.client);
            self.forward(from, request, Kind::Plain, lane, None)?;
            return Ok(());
        };
        refuse_other_members(request, "uri", self.class.is_shared())?;
        let uri = normalize(&spelled).into_owned();
        if uri.len() > URI_LIMIT {
            let message =
                format!("the URI is longer than {URI_LIMIT} bytes: subscribe to a shorter one");
            return Err(Refused::invalid_params(&request.id, &message));
        }
        let held = self.subscriptions.by_uri.get(&uri);
        let is_new = held.is_none_or(|it| !it.wanted_by.contains_key(&from.client));
        let limit = match self.is_short_of_memory {
            true => LIMIT_IF_SHORT,
            false => SUBSCRIPTIONS_LIMIT,
        };
        if is_new && !self.subscriptions.has_room(from.client, &uri, limit) {
            return Err(Refused::too_many_subscriptions(&request.id, limit));
        }
        let key = request.id.key();
        if is_new {
            self.subscriptions.count(from.client, &uri);
        }
        let held = self.subscriptions.by_uri.get_mut(&uri);
        let Some(subscription) = held else {
            let kind = Kind::Subscribe(uri.clone());
            let forwarded = self.forward(from, request, kind, Lane::Front, None);
            let assigned = forwarded.inspect_err(|_| {
                self.subscriptions.subtract(from.client, &uri);
            })?;
            let subscription = Subscription {
                call: Some(assigned),
                wanted_by: BTreeMap::from([(from.client, BTreeSet::from([key]))]),
                spelled: (spelled != uri).then_some(spelled),
            };
            self.subscriptions.cancel_end(&uri);
            self.subscriptions.by_uri.insert(uri, subscription);
            return Ok(());
        };
        let requests = subscription.wanted_by.entry(from.client).or_default();
        match subscription.call {
            Some(assigned) => {
                requests.insert(key);
                self.calls.join(assigned, waiter(from, request));
            }
            None => self.answer(from.client, from.batch, reply::pong(request.id.raw())),
        }
        Ok(())
    }

    pub(super) fn unsubscribe(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let Some((place, spelled)) = self.uri(request)? else {
            self.forward(from, request, Kind::Unsubscribe, Lane::Front, None)?;
            return Ok(());
        };
        let uri = normalize(&spelled).into_owned();
        let others = match self.subscriptions.drop_client(from.client, &uri) {
            Some(others) => others,
            // To the server, it may be the subscription of another client with another spelling.
            None => self.class.is_shared() || self.subscriptions.by_uri.contains_key(&uri),
        };
        if others {
            self.answer(from.client, from.batch, reply::pong(request.id.raw()));
            return Ok(());
        }
        let heard = self.subscriptions.spelled(&uri).unwrap_or(uri.clone());
        self.subscriptions.remove(&uri);
        let heard = (heard != spelled).then(|| quoted(&heard));
        let edit = heard.as_ref().map(|heard| (place, heard.as_bytes()));
        self.forward(from, request, Kind::Unsubscribe, Lane::Front, edit)?;
        Ok(())
    }

    /// The URI of a request and its position. `None`: the request has no URI, and the server is not shared.
    fn uri<'a>(&self, request: &Request<'a>) -> Result<Option<(Part<'a>, String)>, Refused> {
        let uri = match request.params {
            Some(params) => params.member("uri")?,
            None => None,
        };
        let named = uri.and_then(|uri| Some((uri, uri.string()?.into_owned())));
        // Some servers take `["a"]` for `"a"`.
        match named {
            None if self.class.is_shared() => {
                Err(Refused::invalid_params(&request.id, "uri is not a string"))
            }
            named => Ok(named),
        }
    }

    /// Processes the response to a subscription, for all clients that wait.
    pub(super) fn subscribe_answered(
        &mut self,
        assigned: AssignedId,
        call: &Call,
        uri: &str,
        raw: &RawMessage<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        if let Some(subscription) = self.subscriptions.asked_by(assigned, uri) {
            match response.outcome {
                Outcome::Result(_) => {
                    subscription.call = None;
                    // They cannot be taken back any more.
                    subscription
                        .wanted_by
                        .values_mut()
                        .for_each(BTreeSet::clear);
                }
                Outcome::Error(_) => self.subscriptions.remove(&normalize(uri)),
            }
        }
        self.deliver(call, raw, id);
    }

    /// Removes the subscription of a cancelled request.
    pub(super) fn subscribe_cancelled(
        &mut self,
        assigned: AssignedId,
        uri: &str,
        client: ClientId,
        key: &Key,
    ) {
        let asked = self.subscriptions.asked_by(assigned, uri);
        if let Some(requests) = asked.and_then(|it| it.wanted_by.get_mut(&client)) {
            requests.remove(key);
            if requests.is_empty() {
                self.unsubscribe_client(client, uri);
            }
        }
    }

    /// Removes all subscriptions of a client.
    pub(super) fn unsubscribe_from_all(&mut self, client: ClientId) {
        let by_uri = self.subscriptions.by_uri.iter();
        let wanted = by_uri.filter(|(_, it)| it.wanted_by.contains_key(&client));
        let uris: Vec<String> = wanted.map(|(uri, _)| uri.clone()).collect();
        for uri in uris {
            self.unsubscribe_client(client, &uri);
        }
    }

    /// Removes a subscription of a client, and unsubscribes at the server if no other client has it.
    pub(super) fn unsubscribe_client(&mut self, client: ClientId, uri: &str) {
        let uri = &*normalize(uri);
        if self.subscriptions.drop_client(client, uri) != Some(false) {
            return;
        }
        let spelled = self.subscriptions.spelled(uri);
        self.subscriptions.remove(uri);
        self.subscriptions.queue_end(uri, spelled);
        self.end_subscriptions();
    }

    /// Handles the response to a request of the mux that ended a subscription.
    pub(super) fn own_unsubscribe_answered(&mut self) {
        // A request of an older build was not counted.
        self.subscriptions.ending = self.subscriptions.ending.saturating_sub(1);
        self.end_subscriptions();
    }

    fn end_subscriptions(&mut self) {
        while let Some(received) = self.subscriptions.next_to_end() {
            let params = format!(r#"{{"uri":{}}}"#, quoted(&received));
            self.request_as_mux("resources/unsubscribe", &params, Kind::Unsubscribe);
        }
    }
}
