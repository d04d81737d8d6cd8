//! Subscriptions to resources (legacy): the server holds one for all who want it.
//!
//! All of this goes in the front lane, also what is said for a client that is gone: a subscription
//! must not be overtaken by the end of an earlier one.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::{Deserialize, Deserializer, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Key, Outcome, Part, Request, Response, quoted, reply};

use super::calls::{Call, Kind, Minted};
use super::handshake::waiter;
use super::refused::{Refused, SUBSCRIPTIONS_LIMIT, URI_LIMIT, refuse_other_members};
use super::said::{From, Said};
use super::{Lane, Mux};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Subscriptions {
    /// By [normalised](normal) URI. An older build wrote them down as they were spelled.
    #[serde(deserialize_with = "normalised")]
    by_uri: BTreeMap<String, Subscription>,
    /// How many bytes the subscriptions of each client take up. What an older build wrote down was not counted.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
}

/// What a subscription takes up beside its URI.
const EACH: usize = 256;
/// Maximum bytes of a client's subscriptions for which it may add one while the daemon is short of memory.
const LIMIT_IF_SHORT: usize = 4 << 10;

/// What the server was last asked to hold, and for whom.
#[derive(Debug, Serialize, Deserialize)]
struct Subscription {
    /// Until it is answered.
    call: Option<Minted>,
    /// Never empty. Of each client, the requests that can be taken back one by one until the server
    /// has answered.
    wanted_by: BTreeMap<ClientId, BTreeSet<Key>>,
    /// The URI as the server heard it, if that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spelled: Option<String>,
}

impl Subscriptions {
    /// How many bytes they take up, all together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    /// Whether a client may have one more, to this URI.
    fn has_room(&self, client: ClientId, uri: &str, limit: usize) -> bool {
        let before = self.bytes.get(&client).copied().unwrap_or_default();
        before + uri.len() + EACH <= limit
    }

    fn count(&mut self, client: ClientId, uri: &str) {
        *self.bytes.entry(client).or_default() += uri.len() + EACH;
    }

    fn discount(&mut self, client: ClientId, uri: &str) {
        if let Some(bytes) = self.bytes.get_mut(&client) {
            *bytes = bytes.saturating_sub(uri.len() + EACH);
            if *bytes == 0 {
                self.bytes.remove(&client);
            }
        }
    }

    /// A client wants this no more. `None`: it had not wanted it. Else whether others do.
    fn drop_client(&mut self, client: ClientId, uri: &str) -> Option<bool> {
        let subscription = self.by_uri.get_mut(uri)?;
        subscription.wanted_by.remove(&client)?;
        let others = !subscription.wanted_by.is_empty();
        self.discount(client, uri);
        Some(others)
    }

    /// The server does not hold this.
    fn remove(&mut self, uri: &str) {
        if let Some(gone) = self.by_uri.remove(uri) {
            for client in gone.wanted_by.into_keys() {
                self.discount(client, uri);
            }
        }
    }

    /// What this call asks for, unless that was taken back, and perhaps followed by another.
    fn asked_by(&mut self, minted: Minted, uri: &str) -> Option<&mut Subscription> {
        let subscription = self.by_uri.get_mut(&*normal(uri));
        subscription.filter(|it| it.call == Some(minted))
    }

    /// How the server heard this URI.
    fn spelled(&self, uri: &str) -> Option<String> {
        self.by_uri.get(uri)?.spelled.clone()
    }

    /// The clients that subscribed to this resource. If there is none: those that subscribed to one that it is part of:
    /// `file:///a` and `file:///a/`, but not `file:///ab`, hear of `file:///a/b`. Nobody else: a URI is its subscriber's
    /// secret. So `file:///` and `https://host` hear of nothing below: they name no resource but all of them.
    /// Until the server has accepted a subscription, it is to the very URI that the client named: what is below it the
    /// client may not know.
    pub(super) fn audience(&self, uri: &str) -> BTreeSet<ClientId> {
        let uri = &*normal(uri);
        if let Some(exact) = self.by_uri.get(uri) {
            return exact.wanted_by.keys().copied().collect();
        }
        let is_above = |it: &str| is_parent(it, uri) && has_path(it);
        let above = self.beginnings_of(uri).filter(|(it, _)| is_above(it));
        let accepted = above.filter(|(_, it)| it.call.is_none());
        accepted
            .flat_map(|(_, it)| it.wanted_by.keys().copied())
            .collect()
    }

    /// The subscriptions whose URI this one begins with, the longest first. Costs a search for each that is similar, however
    /// long the URI is: a server chooses it, and other sessions wait meanwhile.
    fn beginnings_of<'a>(
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
                // Every beginning that is shorter than this one, or that is not behind it, is at most so long.
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

/// Whether a URI that this one begins with is above it: it ends where a segment of the path, or the path itself, does.
fn is_parent(beginning: &str, uri: &str) -> bool {
    let is_boundary = |byte: Option<&u8>| matches!(byte, Some(b'/' | b'?' | b'#'));
    is_boundary(beginning.as_bytes().last()) || is_boundary(uri.as_bytes().get(beginning.len()))
}

/// A URI with its scheme and host in lower case, in which case makes no difference (RFC 3986, section 6.2.2.1).
fn normal(uri: &str) -> Cow<'_, str> {
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

/// Whether a URI names something below its scheme and host.
fn has_path(uri: &str) -> bool {
    let rest = uri.split_once(':').map_or(uri, |(_, rest)| rest);
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]),
        None => rest,
    };
    path.bytes().any(|byte| !matches!(byte, b'/' | b'?' | b'#'))
}

/// Subscriptions by normalised URI, whichever build wrote them down.
fn normalised<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Subscription>, D::Error> {
    let spelled: BTreeMap<String, Subscription> = Deserialize::deserialize(deserializer)?;
    let mut by_uri: BTreeMap<String, Subscription> = BTreeMap::new();
    for (uri, mut subscription) in spelled {
        if let Cow::Owned(normal) = normal(&uri) {
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
        from: &From<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let Some((_, spelled)) = self.uri(request)? else {
            // The server says best what is wrong with it.
            let lane = Lane::Of(from.client);
            self.forward(from, request, Kind::Plain, lane, None)?;
            return Ok(());
        };
        refuse_other_members(request, "uri", self.class.is_shared())?;
        let uri = normal(&spelled).into_owned();
        if uri.len() > URI_LIMIT {
            return Err(Refused::long_uri(&request.id));
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
            let minted = forwarded.inspect_err(|_| {
                self.subscriptions.discount(from.client, &uri);
            })?;
            let subscription = Subscription {
                call: Some(minted),
                wanted_by: BTreeMap::from([(from.client, BTreeSet::from([key]))]),
                spelled: (spelled != uri).then_some(spelled),
            };
            self.subscriptions.by_uri.insert(uri, subscription);
            return Ok(());
        };
        let requests = subscription.wanted_by.entry(from.client).or_default();
        match subscription.call {
            Some(minted) => {
                requests.insert(key);
                self.calls.join(minted, waiter(from, request));
            }
            None => self.answer(from.client, from.batch, reply::pong(request.id.raw())),
        }
        Ok(())
    }

    pub(super) fn unsubscribe(
        &mut self,
        from: &From<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let Some((place, spelled)) = self.uri(request)? else {
            self.forward(from, request, Kind::Unsubscribe, Lane::Front, None)?;
            return Ok(());
        };
        let uri = normal(&spelled).into_owned();
        let others = match self.subscriptions.drop_client(from.client, &uri) {
            Some(others) => others,
            // To the server, it may be what another subscribed to, in another spelling.
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

    /// Where a request names a URI, and which. `None`: it names none, and goes to the server, which is shared by nobody.
    fn uri<'a>(&self, request: &Request<'a>) -> Result<Option<(Part<'a>, String)>, Refused> {
        let uri = match request.params {
            Some(params) => params.member("uri")?,
            None => None,
        };
        let named = uri.and_then(|uri| Some((uri, uri.string()?.into_owned())));
        // Some servers take `["a"]` for `"a"`.
        match named {
            None if self.class.is_shared() => Err(Refused::no_uri(&request.id)),
            named => Ok(named),
        }
    }

    /// The server answered a subscription: everybody who waits has the same.
    pub(super) fn subscribe_answered(
        &mut self,
        minted: Minted,
        call: &Call,
        uri: &str,
        said: &Said<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        if let Some(subscription) = self.subscriptions.asked_by(minted, uri) {
            match response.outcome {
                Outcome::Result(_) => {
                    subscription.call = None;
                    // They cannot be taken back any more.
                    subscription
                        .wanted_by
                        .values_mut()
                        .for_each(BTreeSet::clear);
                }
                Outcome::Error(_) => self.subscriptions.remove(&normal(uri)),
            }
        }
        self.deliver(call, said, id);
    }

    /// A client does not wait for the answer to this request any more, and wants nothing by it.
    pub(super) fn subscribe_cancelled(
        &mut self,
        minted: Minted,
        uri: &str,
        client: ClientId,
        key: &Key,
    ) {
        let asked = self.subscriptions.asked_by(minted, uri);
        if let Some(requests) = asked.and_then(|it| it.wanted_by.get_mut(&client)) {
            requests.remove(key);
            if requests.is_empty() {
                self.release(client, uri);
            }
        }
    }

    /// A client is gone.
    pub(super) fn release_all(&mut self, client: ClientId) {
        let uris: Vec<String> = self.subscriptions.by_uri.keys().cloned().collect();
        for uri in uris {
            self.release(client, &uri);
        }
    }

    /// A client wants this no more, and does not wait to be told that it ended.
    pub(super) fn release(&mut self, client: ClientId, uri: &str) {
        let uri = &*normal(uri);
        if self.subscriptions.drop_client(client, uri) != Some(false) {
            return;
        }
        let heard = self.subscriptions.spelled(uri);
        self.subscriptions.remove(uri);
        let heard = heard.as_deref().unwrap_or(uri);
        let params = format!(r#"{{"uri":{}}}"#, quoted(heard));
        self.ask_as_mux("resources/unsubscribe", &params, Kind::Unsubscribe);
    }
}
