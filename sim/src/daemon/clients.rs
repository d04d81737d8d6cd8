//! Its clients: how they come, what they say, and which server they get.

use kennel_core::engine::daemon::{ServerSlot, SlotKey};
use kennel_core::hello::{ClientHello, Control, DaemonHello, KEY_VERSION, PROTOCOL, Solo};
use kennel_core::message::{Key, Message, error_reply, result_reply};
use kennel_core::mux::{Class, ClientId, Era, Opening, Policy, opening};

use super::slot::Slot;
use super::{Client, Daemon, Place, life};
use crate::kernel::{End, Heard, Kernel};

impl Daemon {
    pub(super) fn let_in(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let Some(end) = kernel.accept(self.generation) else {
            return false;
        };
        if self.stop_asked {
            kernel.write(end.write, &Control::Going.line());
            kernel.hang_up(end);
        } else {
            self.admit(end, kernel);
        }
        true
    }

    pub(super) fn admit(&mut self, end: End, kernel: &mut Kernel) {
        self.next += 1;
        let id = ClientId(self.next);
        let client = Client {
            end,
            hello: None,
            place: Place::Opening,
            heard: 0,
            half_closed: false,
        };
        self.clients.insert(id, client);
        self.nobody_since = None;
        if self.lifetime.verdict().is_some() && !self.stop_asked {
            self.lifetime = life(kernel);
            if self.owner_gone.is_some() {
                self.lifetime.owner_gone(kernel.now);
            }
        }
        self.lifetime
            .client_attached(id, kernel.house.sight, kernel.now);
    }

    pub(super) fn left(&mut self, id: ClientId, kernel: &mut Kernel) {
        self.leave_server(id, kernel);
        if let Some(client) = self.clients.remove(&id) {
            kernel.hang_up(client.end);
            kernel.say(self.pid, || format!("client {} left", id.0));
        }
        if self.clients.is_empty() {
            self.nobody_since = self.nobody_since.or(Some(kernel.now));
        }
        self.lifetime.client_gone(id, kernel.now);
    }

    pub(super) fn leave_server(&mut self, id: ClientId, kernel: &mut Kernel) {
        let place = self.clients.get(&id).map(|client| client.place);
        if let Some(Place::At(number)) = place {
            self.set_place(id, Place::Opening);
            let now = kernel.now;
            if let Some(slot) = self.slot(number) {
                slot.engine.leave(id, now);
                let forgotten = slot.engine.mux().in_flight_of(id).is_empty();
                kernel.must(forgotten, || {
                    format!("client {} left, and the server works on for it", id.0)
                });
            }
            self.settle(number, kernel);
        }
    }

    pub(super) fn set_place(&mut self, id: ClientId, place: Place) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.place = place;
        }
    }

    pub(super) fn tell(&mut self, id: ClientId, word: &Control, kernel: &mut Kernel) {
        if let Some(client) = self.clients.get(&id)
            && client.hello.is_some()
        {
            kernel.write(client.end.write, &word.line());
        }
    }

    pub(super) fn hear_clients(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let stirring: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| client.stirs(kernel))
            .map(|(id, _)| *id)
            .collect();
        if stirring.is_empty() {
            return false;
        }
        let id = stirring[salt as usize / 7 % stirring.len()];
        let end = self.clients[&id].end;
        if !kernel.alive(end.peer) {
            self.left(id, kernel);
            return true;
        }
        match kernel.read(end.read) {
            Heard::Nothing => return false,
            Heard::End if self.clients[&id].half_closed || kernel.is_deaf(end.write) => {
                self.left(id, kernel);
            }
            Heard::End => self.half_close(id, kernel),
            Heard::Line(line) => {
                self.lifetime.traffic(id, kernel.now);
                match self.clients[&id].hello.is_some() {
                    true => self.take(id, &line, kernel),
                    false => self.welcome(id, &line, kernel),
                }
            }
        }
        true
    }

    pub(super) fn welcome(&mut self, id: ClientId, line: &[u8], kernel: &mut Kernel) {
        let end = self.clients[&id].end;
        if Control::parse(line) == Some(Control::Ping) {
            kernel.write(end.write, &Control::Pong.line());
            return self.left(id, kernel);
        }
        let Some(Ok(hello)) = ClientHello::parse(line) else {
            return self.left(id, kernel);
        };
        let answer = DaemonHello {
            version: "0".to_owned(),
            protocol: PROTOCOL,
            generation: self.generation.to_string(),
            build: String::new(),
            checks_keys: true,
            key_version: KEY_VERSION,
        };
        kernel.write(end.write, &answer.line());
        // A session that attaches again has given its former connection up.
        let same = |client: &Client| {
            client
                .hello
                .as_ref()
                .is_some_and(|it| it.session == hello.session)
        };
        let older: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| same(client))
            .map(|(id, _)| *id)
            .collect();
        for older in older {
            self.left(older, kernel);
        }
        let pid = hello.pid;
        kernel.say(self.pid, || format!("greets {pid} as client {}", id.0));
        if let Some(client) = self.clients.get_mut(&id) {
            client.hello = Some(hello);
        }
    }

    pub(super) fn take(&mut self, id: ClientId, line: &[u8], kernel: &mut Kernel) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        match Control::parse(line) {
            Some(Control::Ping) => return self.tell(id, &Control::Pong, kernel),
            Some(Control::Again) => {
                if client.place == Place::Lost {
                    client.place = Place::Opening;
                    client.heard = 0;
                }
                return;
            }
            Some(_) => return,
            None => {}
        }
        if client.place != Place::Lost {
            client.heard += line.len() as u64 + 1;
        }
        let end = client.end;
        if let Place::At(number) = client.place {
            let now = kernel.now;
            let Some(slot) = self.slot(number) else {
                return;
            };
            let begins = Message::parse(line).map(|message| opening(&message));
            let opens_again = slot.engine.mux().class().era() == Era::Modern
                && slot.engine.mux().knows_discover() != Some(true)
                && matches!(begins, Ok(Opening::Legacy(_)));
            if !opens_again {
                slot.engine.mux_mut().from_client(id, line, now);
                return self.settle(number, kernel);
            }
            for id in slot.engine.mux().in_flight_of(id) {
                kernel.write(
                    end.write,
                    &error_reply(&id, -32601, "Method not found", None),
                );
            }
            self.leave_server(id, kernel);
        }
        let opens = self
            .clients
            .get(&id)
            .is_some_and(|it| it.place == Place::Opening);
        if opens && let Ok(message) = Message::parse(line) {
            self.open(id, &message, line, kernel);
        }
    }

    /// The first line of a session.
    pub(super) fn open(
        &mut self,
        id: ClientId,
        message: &Message<'_>,
        line: &[u8],
        kernel: &mut Kernel,
    ) {
        let raw = match message {
            Message::Request(request) => request.id.raw(),
            Message::Batch(_) | Message::Notification(_) | Message::Response(_) => return,
        };
        let class = match opening(message) {
            Opening::Ping => {
                let end = self.clients[&id].end;
                kernel.write(end.write, &result_reply(raw, "{}"));
                return;
            }
            Opening::Legacy(class) | Opening::Modern(class) => class,
            Opening::Probe => Class::modern(),
            Opening::Unclear => Class::private(),
        };
        match self.place(&class, kernel) {
            Ok(number) => {
                self.set_place(id, Place::At(number));
                let session = self.clients[&id]
                    .hello
                    .as_ref()
                    .map(|it| it.session.clone());
                let now = kernel.now;
                let hibernate = kernel.house.hibernate;
                if let Some(slot) = self.slot(number) {
                    slot.engine
                        .join(id, &session.unwrap_or_default(), hibernate);
                    slot.engine.mux_mut().from_client(id, line, now);
                }
                self.settle(number, kernel);
            }
            Err(why) => self.go_solo(id, why, message.requests(), kernel),
        }
    }

    pub(super) fn place(&mut self, class: &Class, kernel: &Kernel) -> Result<u64, &'static str> {
        let open = |it: &&Slot| it.engine.is_open_for(class) && class.is_shared();
        if let Some(slot) = self.slots.iter().find(open) {
            return slot.engine.newcomers().map(|()| slot.number);
        }
        self.next += 1;
        let session = format!("session of slot {}", self.next);
        let key = SlotKey::new(class, &session);
        let policy = Policy {
            cache: true,
            in_turn: kernel.house.in_turn,
        };
        let (now, linger) = (kernel.now, Some(kernel.house.linger));
        let engine = ServerSlot::new(class.clone(), policy, linger, now);
        let start_at = self.restarts.start_at(&key, now);
        self.slots.push(Slot::new(self.next, key, engine, start_at));
        Ok(self.next)
    }

    pub(super) fn go_solo(
        &mut self,
        id: ClientId,
        why: &str,
        unsent: Vec<Key>,
        kernel: &mut Kernel,
    ) {
        self.set_place(id, Place::Lost);
        let heard = self.clients.get(&id).map(|client| client.heard);
        let solo = Solo {
            why: why.to_owned(),
            unsent,
            heard,
        };
        self.tell(id, &Control::Solo(solo), kernel);
        self.left(id, kernel);
    }

    pub(super) fn half_close(&mut self, id: ClientId, kernel: &mut Kernel) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.half_closed = true;
        let mut owes = false;
        if let Place::At(number) = client.place {
            let now = kernel.now;
            if let Some(slot) = self.slot(number) {
                slot.engine.mux_mut().client_eof(id, now);
                owes = slot.engine.mux().waits_for(id) > 0;
            }
            self.settle(number, kernel);
        }
        if !owes {
            self.left(id, kernel);
        }
    }
}
