//! Roots (legacy): the server believes there is one client, so all must have the same.
//!
//! The server's question goes to the only client that it works for, if there is one. The first answer is the reference.
//! Whoever else is there, or comes later, is asked by the mux itself, and goes solo if the answer differs. The server
//! hears an answer only when all for whom it works are known to have the same roots; else it gets an error. So no call
//! is done in the roots of another client.

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Message, Outcome, Part, Response};
use crate::time::Moment;

use super::asks::{About, ServerId};
use super::refused::{ambiguous_client, client_gone, no_roots};
use super::said::{From, Kept};
use super::{Lane, Mux, Note};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Roots {
    /// The server wants to know them.
    pub(super) asked: bool,
    /// What it was told, or is about to be: canonical; empty if it cannot be compared.
    reference: Option<String>,
}

impl Roots {
    /// There is nothing yet to compare with.
    pub(super) fn is_undecided(&self) -> bool {
        self.reference.is_none()
    }

    /// Whether these are the roots that the server was told.
    fn are(&self, roots: Option<&str>) -> bool {
        let reference = self.reference.as_deref();
        matches!((reference, roots), (Some(reference), Some(roots)) if are_same(reference, roots))
    }
}

/// Roots that could not be told are like no others.
fn are_same(one: &str, other: &str) -> bool {
    !one.is_empty() && one == other
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

    /// Passes the server's question to the client that it can be about, or to one that can answer it for all.
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

    /// The only client that the server works for. If there are several or none: the client that initialised the server,
    /// if it is ready to be asked; else another that is.
    fn speaker(&self) -> Option<ClientId> {
        let answers = |client: &ClientId| self.clients.get(client).is_some_and(|it| !it.silent);
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

    /// Asks a client for its roots before its first request, whether or not it said `initialized`: the server knows roots,
    /// or is about to.
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
        if is_due && (self.roots.reference.is_some() || self.asks.server_waits_for_roots()) {
            self.check_roots(client, now);
        }
    }

    pub(super) fn roots_answered(
        &mut self,
        from: &From<'_>,
        line: Option<Kept>,
        server: Option<ServerId>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        let client = from.client;
        let (told, is_error) = match response.outcome {
            Outcome::Result(result) => (result.member("roots").ok().flatten(), false),
            Outcome::Error(_) => (None, true),
        };
        // They are kept as long as the client. Who has more cannot say: it is like no other.
        let told = told.filter(|roots| roots.bytes().len() <= ROOTS_LIMIT);
        let told = told.map(|roots| roots.canonical().into_owned());
        let told = told.unwrap_or_default();
        let alone = self.clients.len() == 1;
        let differs = match &self.roots.reference {
            // An error tells the server nothing.
            Some(_) if is_error && server.is_some() => false,
            Some(reference) => !are_same(reference, &told),
            None => false,
        };
        let its = self.client(client);
        if !is_error || its.roots.is_none() {
            its.roots = Some(told.clone());
        }
        // One that is alone may tell the server something new, if the server asks.
        if differs && !(alone && server.is_some()) {
            if let (Some(line), Some(server)) = (line, server) {
                self.asks
                    .open(client, About::Roots(Some(line)), Some(server));
            }
            self.dismiss(client, DIFFERENT);
            return;
        }
        if let Some(server) = server {
            let answer = from.said.with(&[(*id, &server.raw)]);
            if is_error {
                self.tell_server(Lane::Of(client), answer);
            } else {
                let line = line.unwrap_or_else(|| Kept::new(&from.said, id));
                self.asks
                    .open(client, About::RootsTold { line, answer }, Some(server));
                if self.roots.reference.is_none() || alone {
                    self.roots.reference = Some(told);
                    self.dismiss_the_different(client);
                }
            }
        }
        self.tell_roots();
    }

    /// Tells the server the roots that wait to be told, once all for whom it works are known to have them. If one of them
    /// has others or cannot say, the server gets an error.
    pub(super) fn tell_roots(&mut self) {
        for (minted, client) in self.asks.told_roots() {
            let mut is_unknown = false;
            let mut differs = false;
            for other in self.candidates().into_iter().flatten() {
                let its = &self.clients[&other];
                match &its.roots {
                    _ if other == client => {}
                    None if !its.silent && self.asks.is_asked_for_roots(other) => is_unknown = true,
                    roots => differs |= !self.roots.are(roots.as_deref()),
                }
            }
            if !differs && is_unknown {
                continue;
            }
            let Some((answer, server)) = self.asks.take_told(minted) else {
                continue;
            };
            match differs {
                true => self.tell_server(Lane::Own, ambiguous_client(&server.raw)),
                false => self.tell_server(Lane::Of(client), answer),
            }
        }
    }

    /// A client will tell no roots any more. If the server works for it, and its roots are not those of the others, then
    /// what the server asks may be about that work: it gets an error.
    pub(super) fn refuse_roots_for(&mut self, client: ClientId) {
        let roots = self.clients.get(&client).map(|it| it.roots.as_deref());
        let has_those_of_others = roots.is_some_and(|roots| self.roots.are(roots));
        if !self.asks.has_roots_questions()
            || has_those_of_others
            || !self.candidates().contains(&Some(client))
        {
            return;
        }
        for (asked, server) in self.asks.withdraw_roots() {
            let error = match asked == client {
                true => client_gone(&server.raw),
                false => ambiguous_client(&server.raw),
            };
            self.tell_server(Lane::Own, error);
        }
    }

    fn dismiss_the_different(&mut self, speaker: ClientId) {
        let roots = &self.roots;
        let differs = |its: &Option<String>| its.is_some() && !roots.are(its.as_deref());
        let different = self.clients.iter().filter(|(_, it)| differs(&it.roots));
        let different = different.map(|(client, _)| *client);
        let different: Vec<_> = different.filter(|client| *client != speaker).collect();
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
