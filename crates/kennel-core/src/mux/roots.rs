//! Roots (legacy): the server knows only one client, so all clients must have the same roots.
//!
//! `roots/list` of the server goes to the only client that the server works for, if there is one. The first response
//! is the reference. The mux itself asks every other client, and dismisses those with different roots. The server
//! gets the response only when all clients that it works for are known to have the same roots; else it gets an error.
//! So no call runs with the roots of another client.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Message, Outcome, Part, Response};
use crate::time::Moment;

use super::raw_message::{ClientMessage, KeptMessage};
use super::refused::{ambiguous_client, client_gone, no_roots};
use super::server_requests::{About, ServerId};
use super::{Lane, Mux, Note};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Roots {
    /// Whether the server sent `roots/list`.
    pub(super) asked: bool,
    /// The roots that the server got or is about to get: canonical; empty if they cannot be compared.
    reference: Option<Arc<str>>,
}

impl Roots {
    /// Whether there is no reference yet.
    pub(super) fn is_undecided(&self) -> bool {
        self.reference.is_none()
    }

    /// Whether these roots equal the reference.
    fn are(&self, roots: Option<&str>) -> bool {
        let reference = self.reference.as_deref();
        matches!((reference, roots), (Some(reference), Some(roots)) if are_same(reference, roots))
    }
}

/// Whether two roots are equal. Unknown roots equal nothing.
fn are_same(one: &str, other: &str) -> bool {
    !one.is_empty() && one == other
}

/// Maximum bytes of a client's roots that are compared: hundreds of directories.
const ROOTS_LIMIT: usize = 64 << 10;

const ROOTS_DIFFER: &str = "its roots differ from those of the other clients";

impl Mux {
    pub(super) fn roots_from_server(&mut self, line: KeptMessage, server: ServerId, now: Moment) {
        if !self.class.has("roots") {
            self.send_to_server(Lane::Own, no_roots(&server.raw));
            return;
        }
        self.roots.asked = true;
        self.ask_for_roots(line, server);
        let works_for = self.candidates();
        let is_member = |client: &ClientId| {
            self.clients[client].initialized || works_for.contains(&Some(*client))
        };
        let members = self.clients.keys().copied().filter(is_member);
        let members: Vec<_> = members.collect();
        for client in members {
            self.check_roots(client, now);
        }
    }

    /// Forwards `roots/list` to the only client it can be about, or to a client that can answer for all.
    pub(super) fn ask_for_roots(&mut self, line: KeptMessage, server: ServerId) {
        let Some(client) = self.roots_client() else {
            self.send_to_server(Lane::Own, client_gone(&server.raw));
            self.notes.push(Note::ClientGone);
            return;
        };
        let about = About::Roots(Some(line.clone()));
        let shown = self.server_requests.open(client, about, Some(server));
        self.send_to_client(client, line.with_id(shown.to_string().as_bytes()));
    }

    /// The only client that the server works for. If there are several or none: the client that sent `initialize`, if it
    /// is initialized; otherwise another initialized client.
    fn roots_client(&self) -> Option<ClientId> {
        let answers =
            |client: &ClientId| self.clients.get(client).is_some_and(|it| !it.input_closed);
        let works_for = self.candidates();
        if let (1, Some(Some(only))) = (works_for.len(), works_for.first()) {
            return Some(*only).filter(answers);
        }
        let by = self.handshake.by.filter(answers);
        let ready = |client: &ClientId| self.clients[client].initialized;
        let others = self.clients.keys().copied().filter(answers);
        by.filter(ready)
            .or_else(|| others.clone().find(ready))
            .or(by)
            .or_else(|| others.clone().next())
    }

    /// Asks a client for its roots, unless they are known or asked for. Its lines are queued until they arrive.
    pub(super) fn check_roots(&mut self, client: ClientId, now: Moment) {
        let its = self.client(client);
        let is_known = its.roots.is_some() || its.input_closed;
        if is_known || self.server_requests.is_asked_for_roots(client) || !self.class.has("roots") {
            return;
        }
        let shown = self.server_requests.open(client, About::Roots(None), None);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{shown},"method":"roots/list"}}"#);
        self.send_to_client(client, line.into_bytes());
        self.wait_for_roots(client, now);
    }

    /// Asks a client for its roots before its first request, even before `initialized`, if the server uses roots.
    pub(super) fn check_roots_before(
        &mut self,
        client: ClientId,
        message: &Message<'_>,
        now: Moment,
    ) {
        if !self.roots.asked || !self.class.is_shared() {
            return;
        }
        let is_work = |message: &Message<'_>| match message {
            Message::Request(request) => {
                !request.method.is("initialize") && !request.method.is("ping")
            }
            Message::Notification(_) | Message::Response(_) | Message::Batch(_) => false,
        };
        let is_due = match message {
            Message::Batch(batch) => batch.members.iter().any(|it| is_work(&it.message)),
            message => is_work(message),
        };
        if is_due
            && (self.roots.reference.is_some() || self.server_requests.server_waits_for_roots())
        {
            self.check_roots(client, now);
        }
    }

    pub(super) fn roots_answered(
        &mut self,
        from: &ClientMessage<'_>,
        line: Option<KeptMessage>,
        server: Option<ServerId>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        let client = from.client;
        let (told, is_error) = match response.outcome {
            Outcome::Result(result) => (result.member("roots").ok().flatten(), false),
            Outcome::Error(_) => (None, true),
        };
        // They are stored as long as the client is attached. Longer roots count as unknown.
        let told = told.filter(|roots| roots.bytes().len() <= ROOTS_LIMIT);
        let told = told.map(|roots| roots.canonical().into_owned());
        let told = self.shared_roots(told.unwrap_or_default());
        let alone = self.clients.len() == 1;
        let differs = match &self.roots.reference {
            // An error does not change what the server knows.
            Some(_) if is_error && server.is_some() => false,
            Some(reference) => !are_same(reference, &told),
            None => false,
        };
        let its = self.client(client);
        if !is_error || its.roots.is_none() {
            its.roots = Some(told.clone());
        }
        // A single client may send new roots if the server asked.
        if differs && !(alone && server.is_some()) {
            if let (Some(line), Some(server)) = (line, server) {
                self.server_requests
                    .open(client, About::Roots(Some(line)), Some(server));
            }
            self.dismiss(client, ROOTS_DIFFER);
            return;
        }
        if let Some(server) = server {
            let answer = from.raw.with(&[(*id, &server.raw)]);
            if is_error {
                self.send_to_server(Lane::Of(client), answer);
            } else {
                let line = line.unwrap_or_else(|| KeptMessage::new(&from.raw, id));
                self.server_requests.open(
                    client,
                    About::RootsAnswered { line, answer },
                    Some(server),
                );
                if self.roots.reference.is_none() || alone {
                    self.roots.reference = Some(told);
                    self.dismiss_different(client);
                }
            }
        }
        self.tell_roots();
    }

    /// These roots as one text for all clients that have the same.
    fn shared_roots(&self, roots: String) -> Arc<str> {
        let known = self.clients.values().filter_map(|it| it.roots.as_ref());
        let mut known = self.roots.reference.iter().chain(known);
        let same = known.find(|known| ***known == *roots);
        same.cloned().unwrap_or_else(|| roots.into())
    }

    /// Bytes stored for the roots of clients.
    pub(super) fn roots_bytes(&self) -> usize {
        let reference = self.roots.reference.as_ref();
        let is_other = |roots: &&Arc<str>| !reference.is_some_and(|it| Arc::ptr_eq(it, roots));
        let others = self.clients.values().filter_map(|it| it.roots.as_ref());
        let others: usize = others.filter(is_other).map(|it| it.len()).sum();
        others + reference.map_or(0, |it| it.len())
    }

    /// Sends pending roots to the server once all clients that it works for are known to have them. If one of them
    /// has different or unknown roots, the server gets an error.
    pub(super) fn tell_roots(&mut self) {
        let answered = self.server_requests.answered_roots();
        if answered.is_empty() {
            return;
        }
        // Once for all answers: there may be many answers, calls and requests.
        let asked = self.server_requests.asked_for_roots();
        let (mut unknown, mut different) = (Vec::new(), Vec::new());
        for other in self.candidates().into_iter().flatten() {
            let its = &self.clients[&other];
            match &its.roots {
                None if !its.input_closed && asked.contains(&other) => unknown.push(other),
                roots if self.roots.are(roots.as_deref()) => {}
                _ => different.push(other),
            }
        }
        for (assigned, client) in answered {
            let has_other = |clients: &[ClientId]| clients.iter().any(|it| *it != client);
            let (is_unknown, differs) = (has_other(&unknown), has_other(&different));
            if !differs && is_unknown {
                continue;
            }
            let Some((answer, server)) = self.server_requests.take_answered_roots(assigned) else {
                continue;
            };
            match differs {
                true => self.send_to_server(Lane::Own, ambiguous_client(&server.raw)),
                false => self.send_to_server(Lane::Of(client), answer),
            }
        }
    }

    /// Fails the pending `roots/list` requests if a client that the server works for cannot answer any more and has
    /// different or unknown roots: the request may be about its work.
    pub(super) fn refuse_roots_for(&mut self, client: ClientId) {
        let roots = self.clients.get(&client).map(|it| it.roots.as_deref());
        let has_those_of_others = roots.is_some_and(|roots| self.roots.are(roots));
        if !self.server_requests.has_roots_requests()
            || has_those_of_others
            || !self.candidates().contains(&Some(client))
        {
            return;
        }
        for (asked, server) in self.server_requests.withdraw_roots() {
            let error = match asked == client {
                true => client_gone(&server.raw),
                false => ambiguous_client(&server.raw),
            };
            self.send_to_server(Lane::Own, error);
        }
    }

    fn dismiss_different(&mut self, roots_client: ClientId) {
        let roots = &self.roots;
        let differs = |its: &Option<Arc<str>>| its.is_some() && !roots.are(its.as_deref());
        let different = self.clients.iter().filter(|(_, it)| differs(&it.roots));
        let different = different.map(|(client, _)| *client);
        let different: Vec<_> = different.filter(|client| *client != roots_client).collect();
        for client in different {
            self.dismiss(client, ROOTS_DIFFER);
        }
    }

    /// Processes changed roots of a client: it is dismissed if it shares the server.
    pub(super) fn roots_changed(&mut self, from: &ClientMessage<'_>) {
        if self.clients.len() > 1 {
            self.dismiss(from.client, "its roots changed");
            return;
        }
        self.roots = Roots {
            // A request in flight will be answered with the new roots.
            asked: self.server_requests.is_asked_for_roots(from.client),
            reference: None,
        };
        self.client(from.client).roots = None;
        self.send_to_server(Lane::Of(from.client), from.raw.bytes().to_vec());
    }
}
