//! The connections of its clients.

use std::collections::VecDeque;

use kennel_core::engine::daemon::{FirstLine, InputLine, Introduction};
use kennel_core::hello::{ClientHello, Control, DaemonHello, KEY_VERSION, PROTOCOL};
use kennel_core::mux::ClientId;

use super::Daemon;
use crate::kernel::{End, Heard, Kernel};

/// How many lines a client's socket takes: few, so that some wait.
const ROOM: usize = 4;

pub(super) struct Client {
    pub(super) end: End,
    pub(super) hello: Option<ClientHello>,
    half_closed: bool,
    /// Lines that are not written yet.
    queue: VecDeque<Vec<u8>>,
    /// It is disconnected when all of them are.
    is_finished: bool,
}

impl Client {
    pub(super) fn is_ready(&self, kernel: &Kernel) -> bool {
        let hung_up = self.half_closed && kernel.is_deaf(self.end.write);
        let speaks = !self.half_closed && kernel.readable(self.end.read);
        !kernel.alive(self.end.peer) || hung_up || speaks || self.may_write(kernel)
    }

    fn may_write(&self, kernel: &Kernel) -> bool {
        let has_room = kernel.is_deaf(self.end.write) || kernel.waiting(self.end.write) < ROOM;
        !self.queue.is_empty() && has_room
    }

    fn write_some(&mut self, kernel: &mut Kernel) {
        while self.may_write(kernel)
            && let Some(line) = self.queue.pop_front()
        {
            kernel.write(self.end.write, &line);
        }
    }

    pub(super) fn introduction(&self) -> Option<Introduction> {
        self.hello.as_ref().map(Introduction::of_hello)
    }
}

impl Daemon {
    pub(super) fn accept(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let Some(end) = kernel.accept(self.generation) else {
            return false;
        };
        match self.engine.is_closed() {
            true => {
                kernel.write(end.write, &Control::Going.line());
                kernel.hang_up(end);
            }
            false => self.admit(end, kernel),
        }
        true
    }

    pub(super) fn admit(&mut self, end: End, kernel: &Kernel) {
        let id = self.engine.client_arrived(kernel.house.sight, kernel.now);
        let client = Client {
            end,
            hello: None,
            half_closed: false,
            queue: VecDeque::new(),
            is_finished: false,
        };
        self.clients.insert(id, client);
        self.nobody_since = None;
    }

    pub(super) fn write(&mut self, client: ClientId, line: &[u8], kernel: &mut Kernel) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.queue.push_back(line.to_vec());
            if client.queue.len() == 1 {
                client.write_some(kernel);
            }
        }
    }

    /// Disconnects a client when all that is queued for it is written.
    pub(super) fn finish(&mut self, id: ClientId, kernel: &mut Kernel) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_finished = true;
            if client.queue.is_empty() {
                self.disconnect(id, kernel);
            }
        }
    }

    pub(super) fn disconnect(&mut self, id: ClientId, kernel: &mut Kernel) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        kernel.hang_up(client.end);
        kernel.say(self.pid, || format!("client {} left", id.0));
        if self.clients.is_empty() {
            self.nobody_since = self.nobody_since.or(Some(kernel.now));
        }
        self.engine.client_gone(id, kernel.now);
        let is_forgotten = |slot: &kennel_core::engine::daemon::ServerSlot| {
            slot.is_closing() || slot.mux().in_flight_of(id).is_empty()
        };
        kernel.must(self.engine.slots().all(is_forgotten), || {
            format!("client {} left, and a server works on for it", id.0)
        });
    }

    pub(super) fn read_client(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let ready = self.clients.iter().filter(|(_, it)| it.is_ready(kernel));
        let ready: Vec<ClientId> = ready.map(|(id, _)| *id).collect();
        if ready.is_empty() {
            return false;
        }
        let id = ready[salt as usize / 7 % ready.len()];
        let client = &self.clients[&id];
        let (end, is_new) = (client.end, client.hello.is_none());
        if !kernel.alive(end.peer) {
            self.disconnect(id, kernel);
            return true;
        }
        if let Some(client) = self.clients.get_mut(&id).filter(|it| it.may_write(kernel)) {
            client.write_some(kernel);
            if client.is_finished && client.queue.is_empty() {
                self.disconnect(id, kernel);
            }
            return true;
        }
        let client = &self.clients[&id];
        match kernel.read(end.read) {
            Heard::Nothing => return false,
            Heard::End if client.half_closed || kernel.is_deaf(end.write) => {
                self.disconnect(id, kernel);
            }
            Heard::End => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.half_closed = true;
                }
                self.engine.client_eof(id, kernel.now);
            }
            Heard::Line(line) => {
                self.engine.client_spoke(id, kernel.now);
                match is_new {
                    true => self.take_first_line(id, &line, kernel),
                    false => {
                        let line = InputLine::from(&line[..]);
                        self.engine.client_line(id, line, kernel.now);
                    }
                }
            }
        }
        true
    }

    fn take_first_line(&mut self, id: ClientId, line: &[u8], kernel: &mut Kernel) {
        let hello = match FirstLine::of(line) {
            FirstLine::Ping => {
                self.write(id, &Control::Pong.line(), kernel);
                return self.disconnect(id, kernel);
            }
            FirstLine::Bare => return self.disconnect(id, kernel),
            FirstLine::Hello(hello) => hello,
        };
        let Ok(hello) = *hello else {
            return self.disconnect(id, kernel);
        };
        let answer = DaemonHello {
            version: "0".to_owned(),
            protocol: PROTOCOL,
            generation: self.generation.to_string(),
            build: String::new(),
            checks_keys: true,
            key_version: KEY_VERSION,
        };
        self.write(id, &answer.line(), kernel);
        let pid = hello.pid;
        kernel.say(self.pid, || format!("greets {pid} as client {}", id.0));
        self.engine
            .client_introduced(id, Introduction::of_hello(&hello));
        if let Some(client) = self.clients.get_mut(&id) {
            client.hello = Some(hello);
        }
    }
}
