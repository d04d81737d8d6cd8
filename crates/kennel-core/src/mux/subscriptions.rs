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
use super::refused::Refused;
use super::said::{From, Said};
use super::{Lane, Mux};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Subscriptions {
    by_uri: BTreeMap<String, Subscription>,
}

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
    /// What this call asks for, unless that was taken back, and perhaps followed by another.
    fn asked_by(&mut self, minted: Minted, uri: &str) -> Option<&mut Subscription> {
        let subscription = self.by_uri.get_mut(uri);
        subscription.filter(|it| it.call == Some(minted))
    }

    /// The clients that subscribed to this resource, or to one that it is part of: `file:///a` and `file:///a/`, but not
    /// `file:///ab`, hear of `file:///a/b`. Nobody else: a URI is its subscriber's secret.
    pub(super) fn audience(&self, uri: &str) -> BTreeSet<ClientId> {
        let is_boundary = |(_, byte): &(usize, u8)| matches!(byte, b'/' | b'?' | b'#');
        let boundaries = uri.bytes().enumerate().filter(is_boundary);
        let above = boundaries.flat_map(|(at, _)| [&uri[..at], &uri[..=at]]);
        let subscribed = above.chain([uri]).filter_map(|it| self.by_uri.get(it));
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
        let key = request.id.key();
        let held = self.subscriptions.by_uri.get_mut(&uri);
        let Some(subscription) = held else {
            let kind = Kind::Subscribe(uri.clone());
            let minted = self.forward(from, request, kind, Lane::Front, None)?;
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
        let others = match uri
            .as_ref()
            .and_then(|uri| self.subscriptions.by_uri.get_mut(uri))
        {
            Some(subscription) => {
                subscription.wanted_by.remove(&from.client);
                !subscription.wanted_by.is_empty()
            }
            None => false,
        };
        if others {
            self.answer(from.client, from.batch, reply::pong(request.id.raw()));
            return Ok(());
        }
        if let Some(uri) = uri {
            self.subscriptions.by_uri.remove(&uri);
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
                Outcome::Result(_) => subscription.call = None,
                Outcome::Error(_) => {
                    self.subscriptions.by_uri.remove(uri);
                }
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
        let Some(subscription) = self.subscriptions.by_uri.get_mut(uri) else {
            return;
        };
        let was_wanted = subscription.wanted_by.remove(&client).is_some();
        if !was_wanted || !subscription.wanted_by.is_empty() {
            return;
        }
        self.subscriptions.by_uri.remove(uri);
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
