//! The handshake (legacy): the server gets one `initialize`, and every client gets a response to its own.

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Message, Outcome, Part, Request, Response, reply};

use super::calls::{AssignedId, Call, Kind, Waiter};
use super::class::{Opening, opening};
use super::raw_message::{ClientMessage, KeptMessage, RawMessage};
use super::refused::Refused;
use super::server_requests::ambiguous_method;
use super::{Lane, Mux, Note};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Handshake {
    state: HandshakeState,
    /// The client whose `initialize` the server received.
    pub(super) by: Option<ClientId>,
    /// Whether the server received `initialized`.
    pub(super) confirmed: bool,
    /// The lists whose changes the server announces.
    pub(super) tools: bool,
    pub(super) prompts: bool,
    pub(super) resources: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
enum HandshakeState {
    #[default]
    None,
    Asked(AssignedId),
    Answered(KeptMessage),
}

/// Whether a client has sent `initialize`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(super) enum HandshakeProgress {
    #[default]
    None,
    Begun,
}

impl Handshake {
    /// Bytes stored for it.
    pub(super) fn bytes(&self) -> usize {
        match &self.state {
            HandshakeState::Answered(answer) => answer.len(),
            HandshakeState::None | HandshakeState::Asked(_) => 0,
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.state, HandshakeState::Asked(_))
    }
}

impl Mux {
    pub(super) fn initialize(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let client = from.client;
        if self.client(client).handshake == HandshakeProgress::Begun {
            self.notes.push(Note::SecondInitialize(client));
            return Err(Refused::With(reply::second_initialize(request.id.raw())));
        }
        if self.class.is_shared()
            && opening(&Message::Request(*request)) != Opening::Legacy(self.class.clone())
        {
            self.dismiss(client, "its initialize belongs to another class");
            return Ok(());
        }
        match &self.handshake.state {
            HandshakeState::None => {
                let assigned = self.forward(from, request, Kind::Initialize, Lane::Front, None)?;
                self.handshake.state = HandshakeState::Asked(assigned);
                self.handshake.by = Some(client);
            }
            HandshakeState::Asked(assigned) => {
                let waiter = waiter(from, request);
                self.calls.join(*assigned, waiter);
            }
            HandshakeState::Answered(kept) => {
                let line = kept.with_id(request.id.raw());
                self.answer(client, from.batch, line);
            }
        }
        self.client(client).handshake = HandshakeProgress::Begun;
        Ok(())
    }

    /// Processes the server's response to `initialize`.
    pub(super) fn initialize_answered(
        &mut self,
        call: &Call,
        raw: &RawMessage<'_>,
        id: &Part<'_>,
        response: &Response<'_>,
    ) {
        if let Outcome::Result(_) = response.outcome
            && raw.bytes().len() > reply::INITIALIZE_LIMIT
        {
            let instead = reply::long_initialize_response(id.bytes());
            if let Ok(Message::Response(response)) = Message::parse(&instead)
                && let Some(id) = response.id
            {
                let raw = RawMessage::line(&instead);
                return self.initialize_answered(call, &raw, &id.part(), &response);
            }
        }
        // The clients that get an error may try again.
        let not_served = match response.outcome {
            Outcome::Result(_) => call.waiters.get(self.copies_of(raw)..),
            Outcome::Error(_) => Some(&call.waiters[..]),
        };
        for waiter in not_served.unwrap_or_default() {
            if let Some(client) = self.clients.get_mut(&waiter.client) {
                client.handshake = HandshakeProgress::None;
                client.initialized = false;
            }
        }
        match response.outcome {
            Outcome::Result(result) => {
                self.handshake.state = HandshakeState::Answered(KeptMessage::new(raw, id));
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
        self.deliver(call, raw, id);
    }

    /// Processes the response of a modern server to `initialize`. A server that accepts it may use the legacy era
    /// from now on: no client joins it any more, and all its clients go solo.
    pub(super) fn late_initialize_answered(
        &mut self,
        call: &Call,
        raw: &RawMessage<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        self.deliver(call, raw, id);
        if let Outcome::Result(_) = response.outcome {
            self.ambiguous = Some(ambiguous_method("initialize"));
            for client in self.clients.keys().copied().collect::<Vec<_>>() {
                self.dismiss(client, "the server of the modern era accepted initialize");
            }
        }
    }

    /// Processes `initialized` of a client: from now on it gets notifications for all.
    pub(super) fn initialized(&mut self, from: &ClientMessage<'_>) {
        if let HandshakeState::None = self.handshake.state {
            // No handshake is in flight: it must not count as the confirmation of a later one.
            return self.send_to_server(Lane::Of(from.client), from.raw.bytes().to_vec());
        }
        if !self.handshake.confirmed {
            self.handshake.confirmed = true;
            self.send_to_server(Lane::Front, from.raw.bytes().to_vec());
        }
        let client = self.client(from.client);
        if !client.initialized {
            client.initialized = true;
            self.update_server_level();
            if self.roots.asked {
                self.check_roots(from.client, from.now);
            }
        }
    }
}

/// Maximum bytes of an id that is not counted: it is small compared to the rest of its request.
const SHORT_ID: usize = 64;

/// The entry of a client that waits for the response to this request.
pub(super) fn waiter(from: &ClientMessage<'_>, request: &Request<'_>) -> Waiter {
    Waiter {
        client: from.client,
        key: request.id.key(),
        id: request.id.raw().into(),
        batch: from.batch,
        again: None,
        // The id itself, and its key twice.
        bytes: 3 * request.id.raw().len().saturating_sub(SHORT_ID),
    }
}
