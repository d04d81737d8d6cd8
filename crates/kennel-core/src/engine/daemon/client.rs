//! A client: what its lines open or mean, what it is told, and when it is finished.

use super::{
    Action, ClientPlace, ClientSnapshot, Daemon, Dedicated, InputLine, Introduction, Report,
    ServerSlot, SlotId,
};
use crate::hello::{Control, Lost, Solo, VOID};
use crate::lifetime::{ClientId, Sight};
use crate::message::{
    INITIALIZE_LIMIT, Key, Line, Message, error_reply, long_initialize, result_reply,
};
use crate::mux::{self, Class, Era, Opening};
use crate::time::Moment;

/// What the daemon knows of a client.
#[derive(Debug)]
pub(super) struct Client {
    /// What it was admitted with.
    pub(super) introduction: Option<Introduction>,
    pub(super) place: Place,
    /// It sends no more, and waits for its answers.
    half_closed: bool,
    /// How many bytes of its lines were taken since its hello, or since it began again, if they were counted.
    heard: Option<u64>,
    /// What it calls itself.
    name: Option<String>,
}

/// Where a client's session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has no server: its next request tells which.
    Opening,
    At(SlotId),
    /// Its server was lost: what it sends is for that one, until it sends `!again` (rule 5).
    Lost,
}

impl Client {
    fn new() -> Client {
        Client {
            introduction: None,
            place: Place::Opening,
            half_closed: false,
            heard: None,
            name: None,
        }
    }

    fn hears_control(&self) -> bool {
        self.introduction.as_ref().is_some_and(|it| !it.bare)
    }
}

impl Daemon {
    pub(super) fn add_client(&mut self, client: ClientId) {
        self.clients.insert(client, Client::new());
    }

    /// A client was admitted. With a hello, it replaces an older connection of its session.
    pub fn client_introduced(&mut self, id: ClientId, introduction: Introduction) {
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
            client.heard = (!introduction.bare).then_some(0);
            client.introduction = Some(introduction);
        }
        if self.moved {
            self.tell(id, Control::Moved);
        }
    }

    /// A line of a client that was admitted.
    pub fn client_line(&mut self, id: ClientId, input: InputLine<'_>, now: Moment) {
        self.now = now;
        let line = input.line();
        if line.bytes().ends_with(&[VOID]) {
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.hears_control()
            && let Some(control) = Control::parse(line.bytes())
        {
            return self.control(id, &control);
        }
        if client.place != Place::Lost {
            let length = line.bytes().len() as u64 + 1;
            client.heard = client.heard.map(|heard| heard + length);
        }
        match client.place {
            Place::Lost => {}
            Place::Opening => self.open(id, line),
            Place::At(slot) => match self.slots.get_mut(&slot) {
                Some(it) if opens_again(it, line) => {
                    self.leave_before_opening(id, slot);
                    self.open(id, line);
                }
                Some(it) => {
                    it.client_line(id, input, self.short_of_memory, now);
                    self.settle(slot, Some(id));
                }
                None => {}
            },
        }
    }

    /// A line of a client was too long, and skipped: how much of what it sent was taken cannot be counted any more.
    pub fn client_line_skipped(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.heard = None;
        }
    }

    /// The client leaves a server for one of another class: nobody else answers what it asked that one.
    fn leave_before_opening(&mut self, client: ClientId, slot: SlotId) {
        for id in self.in_flight_of(client) {
            self.reply(client, no_such_method(&id));
        }
        self.leave_slot(client, slot);
    }

    fn leave_slot(&mut self, id: ClientId, slot: SlotId) {
        let now = self.now;
        if let Some(client) = self.clients.get_mut(&id) {
            client.place = Place::Opening;
        }
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.leave(id, now);
        }
        self.settle(slot, None);
    }

    fn control(&mut self, id: ClientId, control: &Control) {
        match control {
            Control::Ping => self.tell(id, Control::Pong),
            Control::Pipes => self.actions.push_back(Action::UsePipes { client: id }),
            Control::Again => {
                if let Some(client) = self.clients.get_mut(&id)
                    && client.place == Place::Lost
                {
                    client.place = Place::Opening;
                    client.heard = Some(0);
                }
            }
            _ => {}
        }
    }

    /// The first line of a session, or of one that begins again.
    fn open(&mut self, client: ClientId, line: Line<'_>) {
        let Ok(message) = Message::parse(line) else {
            return;
        };
        // What nobody waits for means nothing to a server that has heard nothing else.
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
        match self.place(client, class) {
            Ok(slot) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.place = Place::At(slot);
                }
                if let Some(slot) = self.slots.get_mut(&slot) {
                    let input = InputLine::Lent(line);
                    slot.client_line(client, input, self.short_of_memory, self.now);
                }
                self.settle(slot, Some(client));
                self.start_if_due(slot);
            }
            Err(why) => {
                let unsent = message.requests();
                self.make_dedicated(client, Dedicated::AtJoin, why, unsent);
            }
        }
    }

    /// A client sends no more. When all is answered, that is the end of it.
    pub fn client_eof(&mut self, id: ClientId, now: Moment) {
        self.now = now;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.half_closed = true;
        match client.place {
            Place::At(slot) => {
                if let Some(slot) = self.slots.get_mut(&slot) {
                    slot.mux_mut().client_eof(id, now);
                }
                self.half_closed.insert(id);
                self.settle(slot, None);
            }
            Place::Opening | Place::Lost => self.actions.push_back(Action::Finish { client: id }),
        }
    }

    /// A client's connection is closed, or its process ended.
    pub fn client_gone(&mut self, id: ClientId, now: Moment) {
        self.now = now;
        if let Some(slot) = self.slot_of(id) {
            self.leave_slot(id, slot);
        }
        self.clients.remove(&id);
        self.half_closed.remove(&id);
        self.client_left(id, now);
    }

    /// Closes the connections of those clients at this slot that send no more and have all their answers.
    pub(super) fn finish_half_closed(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get(&id) else {
            return;
        };
        let (clients, actions) = (&self.clients, &mut self.actions);
        self.half_closed.retain(|client| {
            let place = clients.get(client).map(|it| it.place);
            let is_done = place == Some(Place::At(id)) && slot.mux().waits_for(*client) == 0;
            if is_done {
                actions.push_back(Action::Finish { client: *client });
            }
            !is_done
        });
    }

    /// Its server is gone: what it sends from now on is for that one.
    pub(super) fn lose_server_of(&mut self, id: ClientId, lost: Lost) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.place = Place::Lost;
        // To a client that would not understand, or sends no more, this is the end.
        if !client.hears_control() || client.half_closed {
            return self.actions.push_back(Action::Finish { client: id });
        }
        let heard = client.heard;
        self.tell(id, Control::Lost(Lost { heard, ..lost }));
    }

    pub(super) fn hibernate_client(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.place = Place::Lost;
        }
        self.tell(id, Control::Resting);
        self.actions.push_back(Action::Finish { client: id });
    }

    /// The client may not share a server.
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
        client.place = Place::Lost;
        let solo = Solo {
            why: why.to_owned(),
            unsent,
            heard: client.heard,
        };
        self.report(Report::Dedicated {
            client: id,
            when,
            why: why.to_owned(),
        });
        self.tell(id, Control::Solo(solo));
        self.actions.push_back(Action::Finish { client: id });
    }

    /// Sends a control message, if the client understands any.
    pub(super) fn tell(&mut self, client: ClientId, control: Control) {
        let it = self.clients.get(&client);
        if it.is_some_and(Client::hears_control) {
            let control = Box::new(control);
            self.actions.push_back(Action::Tell { client, control });
        }
    }

    fn reply(&mut self, client: ClientId, line: Vec<u8>) {
        let line = line.into();
        self.actions.push_back(Action::ToClient { client, line });
    }

    /// A line of a server's stderr is sent to the session that opened its slot, if it is still there.
    pub fn server_stderr(&mut self, slot: SlotId, session: &str, line: String) {
        let at = |it: &Client| it.place == Place::At(slot);
        let is_its = |it: &Client| {
            it.introduction
                .as_ref()
                .is_some_and(|it| it.session == session)
        };
        let mut clients = self.clients.iter();
        let opener = clients.find(|(_, it)| at(it) && is_its(it));
        if let Some(opener) = opener.map(|(id, _)| *id) {
            self.tell(opener, Control::Stderr(line));
        }
    }

    /// The slot of a client.
    pub fn slot_of(&self, client: ClientId) -> Option<SlotId> {
        match self.clients.get(&client)?.place {
            Place::At(slot) => Some(slot),
            Place::Opening | Place::Lost => None,
        }
    }

    /// Whether the client's next request tells which server it gets.
    pub fn is_opening(&self, client: ClientId) -> bool {
        let client = self.clients.get(&client);
        client.is_some_and(|it| it.place == Place::Opening)
    }

    /// Whether the client sends no more, and waits for its answers.
    pub fn is_half_closed(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|it| it.half_closed)
    }

    /// What the client calls itself.
    pub fn client_name(&self, client: ClientId) -> Option<&str> {
        self.clients.get(&client)?.name.as_deref()
    }

    /// The clients of a slot.
    pub fn clients_of(&self, slot: SlotId) -> Vec<ClientId> {
        let at = self
            .clients
            .iter()
            .filter(|(_, it)| it.place == Place::At(slot));
        at.map(|(id, _)| *id).collect()
    }

    /// The ids of the client's requests that are in flight, as it spelled them.
    pub fn in_flight_of(&self, client: ClientId) -> Vec<Vec<u8>> {
        let slot = self.slot_of(client).and_then(|slot| self.slots.get(&slot));
        slot.map_or_else(Vec::new, |slot| slot.mux().in_flight_of(client))
    }

    /// Whether the client has sent more than its server has taken.
    pub fn is_crowded(&self, client: ClientId, memory_is_short: impl FnOnce() -> bool) -> bool {
        let slot = self.slot_of(client).and_then(|slot| self.slots.get(&slot));
        slot.is_some_and(|slot| slot.is_crowded(client, memory_is_short))
    }

    /// Whether the client has sent more than it may while the daemon is short of memory.
    pub fn exceeds_share(&self, client: ClientId) -> bool {
        let slot = self.slot_of(client).and_then(|slot| self.slots.get(&slot));
        slot.is_some_and(|slot| slot.exceeds_share(client))
    }

    /// What a newer build needs to know of a client; `None` if its slot is ending.
    pub fn client_snapshot(&self, id: ClientId) -> Option<ClientSnapshot> {
        let client = self.clients.get(&id)?;
        let number = |slot| self.slots.keys().position(|it| *it == slot);
        Some(ClientSnapshot {
            place: match client.place {
                Place::Opening => ClientPlace::Opening,
                Place::Lost => ClientPlace::Lost,
                Place::At(slot) => ClientPlace::At(number(slot)?),
            },
            half_closed: client.half_closed,
            heard: client.heard,
            name: client.name.clone(),
        })
    }

    /// Goes on with a client of an older build, after all slots were restored. `None`: its slot is not there.
    pub fn restore_client(
        &mut self,
        id: ClientId,
        snapshot: ClientSnapshot,
        introduction: Option<Introduction>,
        sight: Sight,
        now: Moment,
    ) -> Option<()> {
        let place = match snapshot.place {
            ClientPlace::Opening => Place::Opening,
            ClientPlace::Lost => Place::Lost,
            ClientPlace::At(number) => Place::At(*self.slots.keys().nth(number)?),
        };
        if let Place::At(slot) = place {
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
            heard: snapshot.heard,
            name: snapshot.name,
        };
        self.clients.insert(id, client);
        self.restored_client_arrived(id, sight, now);
        Some(())
    }
}

/// Whether a modern client turns out to be a legacy one: it asked whether the server knows the modern era. A server that
/// does says itself what it thinks of `initialize`.
fn opens_again(slot: &ServerSlot, line: Line<'_>) -> bool {
    slot.mux().class().era() == Era::Modern
        && slot.mux().knows_discover() != Some(true)
        && matches!(
            Message::parse(line).map(|message| mux::opening(&message)),
            Ok(Opening::Legacy(_))
        )
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
