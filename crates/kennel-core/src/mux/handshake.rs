//! The handshake (legacy): the server hears one, and every client has its own.

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Message, Outcome, Part, Request, Response, reply};

use super::asks::ambiguous_method;
use super::calls::{Call, Kind, Minted, Waiter};
use super::class::{Opening, opening};
use super::refused::Refused;
use super::said::{From, Kept, Said};
use super::{Lane, Mux, Note};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Handshake {
    state: State,
    /// Whose `initialize` the server heard.
    pub(super) by: Option<ClientId>,
    /// The server heard `initialized`.
    pub(super) confirmed: bool,
    /// Which lists the server promised to tell changes of.
    pub(super) tools: bool,
    pub(super) prompts: bool,
    pub(super) resources: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
enum State {
    #[default]
    None,
    Asked(Minted),
    Answered(Kept),
}

/// How far a client's own handshake is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(super) enum Greeting {
    #[default]
    None,
    Begun,
}

impl Handshake {
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.state, State::Asked(_))
    }
}

impl Mux {
    pub(super) fn initialize(
        &mut self,
        from: &From<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let client = from.client;
        if self.client(client).greeting == Greeting::Begun {
            self.notes.push(Note::SecondInitialize(client));
            return Err(Refused::with(reply::second_initialize(request.id.raw())));
        }
        if self.class.is_shared()
            && opening(&Message::Request(*request)) != Opening::Legacy(self.class.clone())
        {
            self.dismiss(client, "its handshake is of another class");
            return Ok(());
        }
        match &self.handshake.state {
            State::None => {
                let minted = self.forward(from, request, Kind::Initialize, Lane::Front, None)?;
                self.handshake.state = State::Asked(minted);
                self.handshake.by = Some(client);
            }
            State::Asked(minted) => {
                let waiter = waiter(from, request);
                self.calls.join(*minted, waiter);
            }
            State::Answered(kept) => {
                let line = kept.under(request.id.raw());
                self.answer(client, from.batch, line);
            }
        }
        self.client(client).greeting = Greeting::Begun;
        Ok(())
    }

    /// The server answered the one it heard.
    pub(super) fn initialize_answered(
        &mut self,
        call: &Call,
        said: &Said<'_>,
        id: &Part<'_>,
        response: &Response<'_>,
    ) {
        if let Outcome::Result(_) = response.outcome
            && said.bytes().len() > reply::INITIALIZE_LIMIT
        {
            let instead = reply::long_welcome(id.bytes());
            if let Ok(Message::Response(response)) = Message::parse(&instead)
                && let Some(id) = response.id
            {
                let said = Said::line(&instead);
                return self.initialize_answered(call, &said, &id.part(), &response);
            }
        }
        // Those who get an error instead may try again.
        let not_served = match response.outcome {
            Outcome::Result(_) => call.waiters.get(self.copies_of(said)..),
            Outcome::Error(_) => Some(&call.waiters[..]),
        };
        for waiter in not_served.unwrap_or_default() {
            if let Some(client) = self.clients.get_mut(&waiter.client) {
                client.greeting = Greeting::None;
                client.initialized = false;
            }
        }
        match response.outcome {
            Outcome::Result(result) => {
                self.handshake.state = State::Answered(Kept::new(said, id));
                let tells = |what| {
                    let changes = result.at(&["capabilities", what, "listChanged"]);
                    matches!(changes, Ok(Some(it)) if it.text() == "true")
                };
                self.handshake.tools = tells("tools");
                self.handshake.prompts = tells("prompts");
                self.handshake.resources = tells("resources");
            }
            Outcome::Error(_) => {
                self.handshake = Handshake::default();
            }
        }
        self.deliver(call, said, id);
    }

    /// A server of the modern era answered `initialize`. One that accepts it may speak the legacy era from now on: nobody
    /// joins it any more, and all its clients begin again with servers of their own.
    pub(super) fn late_initialize_answered(
        &mut self,
        call: &Call,
        said: &Said<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        self.deliver(call, said, id);
        if let Outcome::Result(_) = response.outcome {
            self.ambiguous = Some(ambiguous_method("initialize"));
            for client in self.clients.keys().copied().collect::<Vec<_>>() {
                self.dismiss(client, "the server accepted a handshake in the modern era");
            }
        }
    }

    /// A client said `initialized`: it hears what all hear, and counts.
    pub(super) fn initialized(&mut self, from: &From<'_>) {
        if let State::None = self.handshake.state {
            // It confirms nothing, and must not stand for the one that will.
            return self.tell_server(Lane::Of(from.client), from.said.bytes().to_vec());
        }
        if !self.handshake.confirmed {
            self.handshake.confirmed = true;
            self.tell_server(Lane::Front, from.said.bytes().to_vec());
        }
        let client = self.client(from.client);
        if !client.initialized {
            client.initialized = true;
            self.settle_level();
            if self.roots.asked {
                self.check_roots(from.client, from.now);
            }
        }
    }
}

/// An id of so many bytes is small beside whatever else is kept of its request.
const SHORT_ID: usize = 64;

/// Who waits for the answer to this.
pub(super) fn waiter(from: &From<'_>, request: &Request<'_>) -> Waiter {
    Waiter {
        client: from.client,
        key: request.id.key(),
        id: request.id.raw().into(),
        batch: from.batch,
        again: None,
        // Its key is kept twice.
        bytes: 3 * request.id.raw().len().saturating_sub(SHORT_ID),
    }
}
