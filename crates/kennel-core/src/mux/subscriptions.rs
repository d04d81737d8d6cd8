//! Subscriptions to resources (legacy): the server holds one for all who want it.
//!
//! All of this goes in the front lane, also what is said for a client that is gone: a subscription
//! must not be overtaken by the end of an earlier one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Key, Outcome, Part, Request, Response, quoted, reply};

use super::calls::{Call, Kind, Minted};
use super::handshake::waiter;
use super::refused::{Refused, SUBSCRIPTIONS_LIMIT, URI_LIMIT};
use super::said::{From, Said};
use super::{Lane, Mux};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Subscriptions {
    by_uri: BTreeMap<String, Subscription>,
    /// How many bytes the subscriptions of each client take up. What an older build wrote down was not counted.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
}

/// What a subscription takes up beside its URI.
const EACH: usize = 256;

/// What the server was last asked to hold, and for whom.
#[derive(Debug, Serialize, Deserialize)]
struct Subscription {
    /// Until it is answered.
    call: Option<Minted>,
    /// Never empty. Of each client, the requests that can be taken back one by one until the server
    /// has answered.
    wanted_by: BTreeMap<ClientId, BTreeSet<Key>>,
}

impl Subscriptions {
    /// How many bytes they take up, all together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    /// Whether a client may have one more, to this URI.
    fn has_room(&self, client: ClientId, uri: &str) -> bool {
        let before = self.bytes.get(&client).copied().unwrap_or_default();
        before + uri.len() + EACH <= SUBSCRIPTIONS_LIMIT
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
        let subscription = self.by_uri.get_mut(uri);
        subscription.filter(|it| it.call == Some(minted))
    }

    /// The clients that subscribed to this resource, or to one that it is part of: `file:///a` and `file:///a/`, but not
    /// `file:///ab`, hear of `file:///a/b`. Nobody else: a URI is its subscriber's secret. Until the server has accepted a
    /// subscription, it is to the very URI that the client named: what is below it the client may not know.
    pub(super) fn audience(&self, uri: &str) -> BTreeSet<ClientId> {
        let is_boundary = |(_, byte): &(usize, u8)| matches!(byte, b'/' | b'?' | b'#');
        let boundaries = uri.bytes().enumerate().filter(is_boundary);
        let above = boundaries.flat_map(|(at, _)| [&uri[..at], &uri[..=at]]);
        let accepted = |it: &&Subscription| it.call.is_none();
        let above = above.filter_map(|it| self.by_uri.get(it)).filter(accepted);
        let subscribed = above.chain(self.by_uri.get(uri));
        let clients = subscribed.flat_map(|it| it.wanted_by.keys().copied());
        clients.collect()
    }
}

impl Mux {
    pub(super) fn subscribe(
        &mut self,
        from: &From<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let Some(uri) = uri(request.params)? else {
            // The server says best what is wrong with it.
            let lane = Lane::Of(from.client);
            self.forward(from, request, Kind::Plain, lane, None)?;
            return Ok(());
        };
        if uri.len() > URI_LIMIT {
            return Err(Refused::long_uri(&request.id));
        }
        let held = self.subscriptions.by_uri.get(&uri);
        let is_new = held.is_none_or(|it| !it.wanted_by.contains_key(&from.client));
        if is_new && !self.subscriptions.has_room(from.client, &uri) {
            return Err(Refused::too_many_subscriptions(&request.id));
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
        let uri = uri(request.params)?;
        let others = uri.as_ref().is_some_and(|uri| {
            self.subscriptions.drop_client(from.client, uri);
            let held = self.subscriptions.by_uri.get(uri);
            held.is_some_and(|it| !it.wanted_by.is_empty())
        });
        if others {
            self.answer(from.client, from.batch, reply::pong(request.id.raw()));
            return Ok(());
        }
        if let Some(uri) = uri {
            self.subscriptions.remove(&uri);
        }
        self.forward(from, request, Kind::Unsubscribe, Lane::Front, None)?;
        Ok(())
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
                Outcome::Error(_) => self.subscriptions.remove(uri),
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
        if self.subscriptions.drop_client(client, uri) != Some(false) {
            return;
        }
        self.subscriptions.remove(uri);
        let params = format!(r#"{{"uri":{}}}"#, quoted(uri));
        self.ask_as_mux("resources/unsubscribe", &params, Kind::Unsubscribe);
    }
}

fn uri(params: Option<Part<'_>>) -> Result<Option<String>, Refused> {
    let uri = match params {
        Some(params) => params.member("uri")?,
        None => None,
    };
    Ok(uri.and_then(|uri| uri.string()).map(|uri| uri.into_owned()))
}
