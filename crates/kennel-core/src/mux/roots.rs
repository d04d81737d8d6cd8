//! Roots (legacy): the server believes there is one client, so all must have the same.
//!
//! The first answer the server hears is the reference. Whoever else is there, or comes later, is asked
//! by the mux itself, and goes solo if the answer differs.

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Outcome, Part, Response};
use crate::time::Moment;

use super::asks::{About, ServerId};
use super::refused::{client_gone, no_roots};
use super::said::{From, Kept};
use super::{Lane, Mux, Note};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Roots {
    /// The server wants to know them.
    pub(super) asked: bool,
    /// What it was told: canonical.
    reference: Option<String>,
}

impl Roots {
    /// There is nothing yet to compare with.
    pub(super) fn is_undecided(&self) -> bool {
        self.reference.is_none()
    }
}

/// Maximum bytes of a client's roots that are compared.
const ROOTS_LIMIT: usize = 1 << 20;

const DIFFERENT: &str = "its roots are not those of the others";

impl Mux {
    pub(super) fn roots_from_server(&mut self, line: Kept, server: ServerId, now: Moment) {
        if !self.class.has("roots") {
            self.tell_server(Lane::Own, no_roots(&server.raw));
            return;
        }
        self.roots.asked = true;
        self.ask_for_roots(line, server);
        let members = self.clients.iter().filter(|(_, client)| client.initialized);
        let members: Vec<_> = members.map(|(client, _)| *client).collect();
        for client in members {
            self.check_roots(client, now);
        }
    }

    /// Passes the server's question to one that can answer it for all.
    pub(super) fn ask_for_roots(&mut self, line: Kept, server: ServerId) {
        let Some(client) = self.speaker() else {
            self.tell_server(Lane::Own, client_gone(&server.raw));
            self.notes.push(Note::ClientGone);
            return;
        };
        let about = About::Roots(Some(line.clone()));
        let shown = self.asks.open(client, about, Some(server));
        self.say(client, line.under(shown.to_string().as_bytes()));
    }

    /// Who initialised the server, if it is ready to be asked; else another who is.
    fn speaker(&self) -> Option<ClientId> {
        let answers = |client: &ClientId| self.clients.get(client).is_some_and(|it| !it.silent);
        let by = self.handshake.by.filter(answers);
        let ready = |client: &ClientId| self.clients[client].initialized;
        let others = self.clients.keys().copied().filter(answers);
        by.filter(ready)
            .or_else(|| others.clone().find(ready))
            .or(by)
            .or_else(|| others.clone().next())
    }

    /// Asks a client on the mux's own account, unless its roots are known or will be. Until they are compared,
    /// the server hears nothing more of it.
    pub(super) fn check_roots(&mut self, client: ClientId, now: Moment) {
        let its = self.client(client);
        let is_known = its.roots.is_some() || its.silent;
        if is_known || self.asks.is_asked_for_roots(client) || !self.class.has("roots") {
            return;
        }
        let shown = self.asks.open(client, About::Roots(None), None);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{shown},"method":"roots/list"}}"#);
        self.say(client, line.into_bytes());
        self.hold(client, now);
    }

    pub(super) fn roots_answered(
        &mut self,
        from: &From<'_>,
        line: Option<Kept>,
        server: Option<ServerId>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        let client = from.client;
        let told = match response.outcome {
            Outcome::Result(result) => result.member("roots").ok().flatten(),
            Outcome::Error(_) => None,
        };
        // They are kept as long as the client. Who has more cannot say: it is like no other.
        let told = told.filter(|roots| roots.bytes().len() <= ROOTS_LIMIT);
        let told = told.map(|roots| roots.canonical().into_owned());
        let alone = self.clients.len() == 1;
        let differs = match (&self.roots.reference, &told) {
            (Some(reference), Some(told)) => reference != told,
            // The mux asked one that cannot say.
            (Some(_), None) => server.is_none(),
            (None, _) => false,
        };
        // One that cannot say is like no other.
        self.client(client).roots = Some(told.clone().unwrap_or_default());
        // One that is alone may tell the server something new, if the server asks.
        if differs && !(alone && server.is_some()) {
            self.dismiss(client, DIFFERENT);
            if let (Some(line), Some(server)) = (line, server) {
                self.ask_for_roots(line, server);
            }
            return;
        }
        let Some(server) = server else {
            return;
        };
        let answer = from.said.with(&[(*id, &server.raw)]);
        self.tell_server(Lane::Of(client), answer);
        if told.is_some() && (self.roots.reference.is_none() || alone) {
            self.roots.reference = told;
            self.dismiss_the_different();
        }
    }

    fn dismiss_the_different(&mut self) {
        let reference = &self.roots.reference;
        let differs = |roots: &Option<String>| roots.is_some() && roots != reference;
        let different = self.clients.iter().filter(|(_, it)| differs(&it.roots));
        let different: Vec<_> = different.map(|(client, _)| *client).collect();
        for client in different {
            self.dismiss(client, DIFFERENT);
        }
    }

    /// A client's roots changed: the server may know only if that is true of all.
    pub(super) fn roots_changed(&mut self, from: &From<'_>) {
        if self.clients.len() > 1 {
            self.dismiss(from.client, "its roots changed");
            return;
        }
        self.roots = Roots {
            // What it is being asked it will answer with the new ones.
            asked: self.asks.is_asked_for_roots(from.client),
            reference: None,
        };
        self.client(from.client).roots = None;
        self.tell_server(Lane::Of(from.client), from.said.bytes().to_vec());
    }
}
