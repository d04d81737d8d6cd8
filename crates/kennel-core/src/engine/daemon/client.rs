//! Clients: which server a first line opens, what control messages mean, when a connection is closed.

use super::{
    Action, ClientPlace, ClientSnapshot, Daemon, Dedicated, InputLine, Introduction, Report, SlotId,
};
use crate::hello::{ABORT_BYTE, Control, Lost, Solo};
use crate::lifetime::{ClientId, Liveness};
use crate::message::{
    INITIALIZE_LIMIT, Key, Line, Malformed, Message, error_reply, long_initialize, reply,
    result_reply,
};
use crate::mux::{self, Class, Opening};
use crate::time::Moment;

/// The state of a client.
#[derive(Debug)]
pub(super) struct Client {
    /// How it was admitted. `None` before that.
    pub(super) introduction: Option<Introduction>,
    pub(super) place: SessionPhase,
    /// Whether it closed its sending half and waits for responses.
    half_closed: bool,
    /// Bytes of its lines received since its hello or its last `!again`. `None`: they cannot be counted.
    received: Option<u64>,
    /// The name in its `initialize`.
    name: Option<String>,
}

/// The state of a client's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionPhase {
    /// It has no server: its next request decides which it gets.
    Opening,
    InSlot(SlotId),
    /// Its server was lost: its lines are for that server until it sends `!again` (rule 5).
    Lost,
}

impl Client {
    fn new() -> Client {
        Client {
            introduction: None,
            place: SessionPhase::Opening,
            half_closed: false,
            received: None,
            name: None,
        }
    }

    fn accepts_control(&self) -> bool {
        self.introduction.as_ref().is_some_and(|it| !it.bare)
    }
}

impl Daemon {
    pub(super) fn add_client(&mut self, client: ClientId) {
        self.clients.insert(client, Client::new());
    }

    /// Handles the admission of a client. A client with a hello replaces an older connection of its session.
    pub fn handle_introduction(&mut self, id: ClientId, introduction: Introduction) {
        if !introduction.bare {
            let is_older = |client: &Client| {
                let known = client.introduction.as_ref();
                known.is_some_and(|it| !it.bare && it.session == introduction.session)
            };
            let older = self.clients.iter().filter(|(_, it)| is_older(it));
            let older: Vec<ClientId> = older.map(|(older, _)| *older).collect();
            for client in older {
                self.actions.push_back(Action::Disconnect { client });
            }
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.received = (!introduction.bare).then_some(0);
            client.introduction = Some(introduction);
        }
        if self.moved {
            self.send_control(id, Control::Moved);
        }
    }

    /// Handles a line of an admitted client.
    pub fn handle_client_line(&mut self, id: ClientId, input: InputLine<'_>, now: Moment) {
        self.now = now;
        let line = input.line();
        if line.bytes().ends_with(&[ABORT_BYTE]) {
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.accepts_control()
            && let Some(control) = Control::parse_from_client(line.bytes())
        {
            return self.control(id, &control);
        }
        if client.place != SessionPhase::Lost {
            let length = line.bytes().len() as u64 + 1;
            client.received = client.received.map(|received| received + length);
        }
        match client.place {
            SessionPhase::Lost => {}
            SessionPhase::Opening => self.open(id, line),
            SessionPhase::InSlot(slot) => {
                let Some(it) = self.slots.get_mut(&slot) else {
                    return;
                };
                match it.handle_client_line(id, input, self.short_of_memory, now) {
                    None => self.activate_slot(slot, Some(id)),
                    Some(legacy) => {
                        self.leave_before_opening(id, slot);
                        self.open(id, legacy.line());
                    }
                }
            }
        }
    }

    /// Records that a line of a client was too long and was skipped: from now on its bytes cannot be counted.
    pub fn handle_skipped_line(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.received = None;
        }
    }

    /// Moves a client from its server to the server of another class. Its pending requests are answered, because no
    /// other server will.
    fn leave_before_opening(&mut self, client: ClientId, slot: SlotId) {
        for id in self.in_flight_of(client) {
            self.reply(client, no_such_method(&id));
        }
        self.leave_slot(client, slot);
    }

    fn leave_slot(&mut self, id: ClientId, slot: SlotId) {
        let now = self.now;
        if let Some(client) = self.clients.get_mut(&id) {
            client.place = SessionPhase::Opening;
        }
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.leave(id, now);
        }
        self.activate_slot(slot, None);
    }

    fn control(&mut self, id: ClientId, control: &Control) {
        match control {
            Control::Ping => self.send_control(id, Control::Pong),
            Control::Pipes => self.actions.push_back(Action::UsePipes { client: id }),
            Control::Again => {
                if let Some(client) = self.clients.get_mut(&id)
                    && client.place == SessionPhase::Lost
                {
                    client.place = SessionPhase::Opening;
                    client.received = Some(0);
                }
            }
            _ => {}
        }
    }

    /// Handles the first line of a session, or of a session that begins again.
    fn open(&mut self, client: ClientId, line: Line<'_>) {
        let message = match Message::parse(line) {
            Ok(message) => message,
            // From a newer shim, not from its app.
            Err(Malformed::Reserved) => return,
            Err(why) => {
                // It has no other request in flight: its id is free.
                for refusal in reply::malformed(line.bytes(), why, |_| false) {
                    self.reply(client, refusal);
                }
                return;
            }
        };
        // A notification or response means nothing to a server that has received nothing else.
        let id = match &message {
            Message::Request(request) => Some(request.id.raw()),
            Message::Batch(_) => None,
            Message::Notification(_) | Message::Response(_) => return,
        };
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        if let Some(name) = mux::client_name(&message) {
            known.name = Some(name);
        }
        let shares = known.introduction.as_ref().map(|it| it.shares);
        let shares = shares.unwrap_or_default();
        let class = match (mux::opening(&message), id) {
            (Opening::Ping, Some(id)) => return self.reply(client, result_reply(id, "{}")),
            (Opening::Probe, Some(id)) if self.era.is_legacy() => {
                return self.reply(client, no_such_method(id));
            }
            (_, Some(id)) if is_long_initialize(&message, line) => {
                return self.reply(client, long_initialize(id));
            }
            (Opening::Legacy(class), _) if shares.legacy => class,
            (Opening::Modern(class), _) if shares.modern => class,
            (Opening::Probe, _) if shares.modern => Class::modern(),
            _ => Class::private(),
        };
        match self.assign_slot(client, class) {
            Ok(slot) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.place = SessionPhase::InSlot(slot);
                }
                if let Some(slot) = self.slots.get_mut(&slot) {
                    let input = InputLine::Lent(line);
                    slot.handle_client_line(client, input, self.short_of_memory, self.now);
                }
                self.activate_slot(slot, Some(client));
                self.start_if_due(slot);
            }
            Err(why) => {
                let unsent = message.requests();
                self.make_dedicated(client, Dedicated::AtJoin, why, unsent);
            }
        }
    }

    /// Handles the end of a client's input. Its connection is closed once all its requests are answered.
    pub fn handle_client_eof(&mut self, id: ClientId, now: Moment) {
        self.now = now;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.half_closed = true;
        match client.place {
            SessionPhase::InSlot(slot) => {
                if let Some(slot) = self.slots.get_mut(&slot) {
                    slot.mux_mut().handle_client_eof(id, now);
                }
                self.half_closed.insert(id);
                self.activate_slot(slot, None);
            }
            SessionPhase::Opening | SessionPhase::Lost => {
                self.actions.push_back(Action::Finish { client: id })
            }
        }
    }

    /// Handles the end of a client's connection or process.
    pub fn handle_client_gone(&mut self, id: ClientId, now: Moment) {
        self.now = now;
        if let Some(slot) = self.slot_of(id) {
            self.leave_slot(id, slot);
        }
        self.clients.remove(&id);
        self.half_closed.remove(&id);
        self.client_left(id, now);
    }

    /// Closes the connections of clients of this slot that closed their sending half and have all responses.
    pub(super) fn finish_half_closed(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get(&id) else {
            return;
        };
        let (clients, actions) = (&self.clients, &mut self.actions);
        self.half_closed.retain(|client| {
            let place = clients.get(client).map(|it| it.place);
            let is_done = place == Some(SessionPhase::InSlot(id))
                && slot.mux().pending_requests_of(*client) == 0;
            if is_done {
                actions.push_back(Action::Finish { client: *client });
            }
            !is_done
        });
    }

    /// Tells a client that its server is lost. Until it sends `!again`, its lines are for the lost server.
    pub(super) fn tell_server_lost(&mut self, id: ClientId, lost: Lost) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.place = SessionPhase::Lost;
        // A client that does not understand control messages, or sends no more, is disconnected.
        if !client.accepts_control() || client.half_closed {
            return self.actions.push_back(Action::Finish { client: id });
        }
        let received = client.received;
        self.send_control(id, Control::Lost(Lost { received, ..lost }));
    }

    pub(super) fn hibernate_client(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.place = SessionPhase::Lost;
        }
        self.send_control(id, Control::Resting);
        self.actions.push_back(Action::Finish { client: id });
    }

    /// Tells a client to use a dedicated server.
    pub(super) fn make_dedicated(
        &mut self,
        id: ClientId,
        when: Dedicated,
        why: &str,
        unsent: Vec<Key>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.place = SessionPhase::Lost;
        let solo = Solo {
            why: why.to_owned(),
            unsent,
            received: client.received,
        };
        self.report(Report::Dedicated {
            client: id,
            when,
            why: why.to_owned(),
        });
        self.send_control(id, Control::Solo(solo));
        self.actions.push_back(Action::Finish { client: id });
    }

    /// Sends a control message, if the client understands them.
    pub(super) fn send_control(&mut self, client: ClientId, control: Control) {
        let it = self.clients.get(&client);
        if it.is_some_and(Client::accepts_control) {
            let control = Box::new(control);
            self.actions.push_back(Action::Tell { client, control });
        }
    }

    fn reply(&mut self, client: ClientId, line: Vec<u8>) {
        let line = line.into();
        self.actions.push_back(Action::ToClient { client, line });
    }

    /// Sends a line of a server's stderr to the session that opened its slot, if it is still attached.
    pub fn handle_server_stderr(&mut self, slot: SlotId, session: &str, line: String) {
        let at = |it: &Client| it.place == SessionPhase::InSlot(slot);
        let is_its = |it: &Client| {
            it.introduction
                .as_ref()
                .is_some_and(|it| it.session == session)
        };
        let mut clients = self.clients.iter();
        let opener = clients.find(|(_, it)| at(it) && is_its(it));
        if let Some(opener) = opener.map(|(id, _)| *id) {
            self.send_control(opener, Control::Stderr(line));
        }
    }

    /// The slot of a client.
    pub fn slot_of(&self, client: ClientId) -> Option<SlotId> {
        match self.clients.get(&client)?.place {
            SessionPhase::InSlot(slot) => Some(slot),
            SessionPhase::Opening | SessionPhase::Lost => None,
        }
    }

    /// Whether the client's next request decides which server it gets.
    pub fn is_opening(&self, client: ClientId) -> bool {
        let client = self.clients.get(&client);
        client.is_some_and(|it| it.place == SessionPhase::Opening)
    }

    /// Whether the client closed its sending half and waits for responses.
    pub fn is_half_closed(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|it| it.half_closed)
    }

    /// The name in the client's `initialize`.
    pub fn client_name(&self, client: ClientId) -> Option<&str> {
        self.clients.get(&client)?.name.as_deref()
    }

    /// The clients of a slot.
    pub fn clients_of(&self, slot: SlotId) -> Vec<ClientId> {
        let at = self
            .clients
            .iter()
            .filter(|(_, it)| it.place == SessionPhase::InSlot(slot));
        at.map(|(id, _)| *id).collect()
    }

    /// The ids of the client's requests in flight, as it spelled them.
    pub fn in_flight_of(&self, client: ClientId) -> Vec<Vec<u8>> {
        let slot = self.slot_of(client).and_then(|slot| self.slots.get(&slot));
        slot.map_or_else(Vec::new, |slot| slot.mux().in_flight_of(client))
    }

    /// Whether the queue of the client is too long to read more of its lines.
    pub fn is_over_queue_limit(
        &self,
        client: ClientId,
        memory_is_short: impl FnOnce() -> bool,
    ) -> bool {
        let slot = self.slot_of(client).and_then(|slot| self.slots.get(&slot));
        slot.is_some_and(|slot| slot.is_over_queue_limit(client, memory_is_short))
    }

    /// Whether the client has more bytes queued than it may while memory is short.
    pub fn is_over_memory_share(&self, client: ClientId) -> bool {
        let slot = self.slot_of(client).and_then(|slot| self.slots.get(&slot));
        slot.is_some_and(|slot| slot.is_over_memory_share(client))
    }

    /// Whether other clients have the client's server, too.
    pub fn shares_server(&self, client: ClientId) -> bool {
        let slot = self.slot_of(client).and_then(|slot| self.slots.get(&slot));
        slot.is_some_and(|slot| slot.clients() > 1)
    }

    /// The state of a client for a newer build. `None`: its slot is ending.
    pub fn client_snapshot(&self, id: ClientId) -> Option<ClientSnapshot> {
        let Client {
            // Follows from the hello.
            introduction: _,
            place,
            half_closed,
            received,
            name,
        } = self.clients.get(&id)?;
        let number = |slot| self.slots.keys().position(|it| *it == slot);
        Some(ClientSnapshot {
            place: match *place {
                SessionPhase::Opening => ClientPlace::Opening,
                SessionPhase::Lost => ClientPlace::Lost,
                SessionPhase::InSlot(slot) => ClientPlace::InSlot(number(slot)?),
            },
            half_closed: *half_closed,
            received: *received,
            name: name.clone(),
        })
    }

    /// Restores a client of an older build, after all slots. `None`: its slot does not exist.
    pub fn restore_client(
        &mut self,
        id: ClientId,
        snapshot: ClientSnapshot,
        introduction: Option<Introduction>,
        sight: Liveness,
        now: Moment,
    ) -> Option<()> {
        let place = match snapshot.place {
            ClientPlace::Opening => SessionPhase::Opening,
            ClientPlace::Lost => SessionPhase::Lost,
            ClientPlace::InSlot(number) => SessionPhase::InSlot(*self.slots.keys().nth(number)?),
        };
        if let SessionPhase::InSlot(slot) = place {
            let hibernate_after = introduction.as_ref().and_then(|it| it.hibernate_after);
            let slot = self.slots.get_mut(&slot)?;
            slot.restore_client(id, hibernate_after);
            if snapshot.half_closed {
                self.half_closed.insert(id);
            }
        }
        let client = Client {
            introduction,
            place,
            half_closed: snapshot.half_closed,
            received: snapshot.received,
            name: snapshot.name,
        };
        self.clients.insert(id, client);
        self.restored_client_arrived(id, sight, now);
        Some(())
    }
}

fn is_long_initialize(message: &Message<'_>, line: Line<'_>) -> bool {
    let is_initialize = || match message {
        Message::Request(request) => request.method.is("initialize"),
        _ => false,
    };
    line.bytes().len() > INITIALIZE_LIMIT && is_initialize()
}

fn no_such_method(id: &[u8]) -> Vec<u8> {
    error_reply(id, -32601, "Method not found", None)
}
