//! The connections of the daemon's clients.

use kennel_core::engine::daemon::{FirstLine, InputLine, Introduction, Replies};
use kennel_core::hello::{ClientHello, DaemonHello, KEY_VERSION, PROTOCOL};
use kennel_core::mux::ClientId;

use super::Daemon;
use crate::kernel::{End, Kernel, Pid, PipeId};
use crate::lines::{Inbox, Outbox};
use crate::part;

/// Maximum bytes queued for a client before its input is not read.
const QUEUE_LIMIT: usize = 2_000;
/// Number of lines after which a client is offered pipes: few, so that it happens.
const OFFER_AFTER: u32 = 3;

pub(super) struct Client {
    pub(super) end: End,
    pub(super) hello: Option<ClientHello>,
    pub(super) half_closed: bool,
    pub(super) from: Inbox,
    pub(super) to: Outbox,
    /// Number of lines received.
    pub(super) lines: u32,
    pub(super) pipes: Option<ClientPipes>,
    /// Disconnect once everything queued is written.
    is_finished: bool,
}

/// Two pipes beside a client's socket.
#[derive(Clone, Copy)]
pub(super) struct ClientPipes {
    pub(super) from: PipeId,
    pub(super) to: PipeId,
    /// The client writes to its pipe.
    pub(super) reads_pipe: bool,
    /// The daemon writes to its pipe.
    pub(super) writes_pipe: bool,
}

impl Client {
    pub(super) fn is_ready(&self, kernel: &Kernel) -> bool {
        let hung_up = self.half_closed && kernel.has_no_reader(self.end.write);
        let may_write = self.to.may_flush(self.sink(), kernel);
        !kernel.alive(self.end.peer) || hung_up || self.is_readable(kernel) || may_write
    }

    fn is_readable(&self, kernel: &Kernel) -> bool {
        let may_read = !self.half_closed && self.to.len() < QUEUE_LIMIT && !self.is_finished;
        may_read && (self.from.has_line() || kernel.readable(self.source()))
    }

    fn source(&self) -> PipeId {
        match self.pipes {
            Some(pipes) if pipes.reads_pipe => pipes.from,
            _ => self.end.read,
        }
    }

    fn sink(&self) -> PipeId {
        match self.pipes {
            Some(pipes) if pipes.writes_pipe => pipes.to,
            _ => self.end.write,
        }
    }

    /// Writes as much as fits. Between two lines, it may switch to the pipe.
    fn write_some(&mut self, kernel: &mut Kernel) {
        let sink = self.sink();
        self.to.flush(sink, kernel);
        if let Some(pipes) = &mut self.pipes
            && pipes.reads_pipe
            && !pipes.writes_pipe
            && self.to.is_empty()
        {
            pipes.writes_pipe =
                kernel.write_line(self.end.write, Replies::pipes().trim_ascii_end());
        }
    }

    /// Offers pipes to an active client; offers them again if they were lost.
    fn offer_pipes(&mut self, daemon: Pid, kernel: &mut Kernel) {
        let were_lost = |it: &ClientPipes| {
            !it.reads_pipe && kernel.has_ended(it.from) && kernel.has_no_reader(it.to)
        };
        if let Some(pipes) = self.pipes.take_if(|pipes| were_lost(pipes)) {
            kernel.close_read(pipes.from);
            kernel.close_write(pipes.to);
        }
        let wants = self.hello.as_ref().is_some_and(|hello| hello.pipes);
        let is_due = self.lines > 0 && self.lines.is_multiple_of(OFFER_AFTER);
        if self.pipes.is_some() || !wants || !is_due || !self.to.is_empty() {
            return;
        }
        let from = kernel.pipe(self.end.peer, daemon);
        let to = kernel.pipe(daemon, self.end.peer);
        let message = Replies::pipes();
        if kernel.write_with_pipes(self.end.write, message.trim_ascii_end(), [to, from]) {
            self.pipes = Some(ClientPipes {
                from,
                to,
                reads_pipe: false,
                writes_pipe: false,
            });
        } else {
            for pipe in [from, to] {
                kernel.close_read(pipe);
                kernel.close_write(pipe);
            }
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
                kernel.write_line(end.write, Replies::leaving_reply().trim_ascii_end());
                kernel.close(end);
            }
            false => self.admit(end, kernel),
        }
        true
    }

    pub(super) fn admit(&mut self, end: End, kernel: &Kernel) {
        let id = self
            .engine
            .handle_client_arrived(kernel.settings.liveness, kernel.now);
        let client = Client {
            end,
            hello: None,
            half_closed: false,
            from: Inbox::default(),
            to: Outbox::default(),
            lines: 0,
            pipes: None,
            is_finished: false,
        };
        self.clients.insert(id, client);
        self.no_clients_since = None;
    }

    pub(super) fn write(&mut self, client: ClientId, line: &[u8], kernel: &mut Kernel) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.to.push(line, kernel);
            client.write_some(kernel);
        }
    }

    /// Disconnects a client once everything queued for it is written.
    pub(super) fn finish(&mut self, id: ClientId, kernel: &mut Kernel) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_finished = true;
            if client.to.is_empty() {
                self.disconnect(id, kernel);
            }
        }
    }

    pub(super) fn disconnect(&mut self, id: ClientId, kernel: &mut Kernel) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        kernel.close(client.end);
        if let Some(pipes) = client.pipes {
            kernel.close_read(pipes.from);
            kernel.close_write(pipes.to);
        }
        kernel.trace(self.pid, || format!("client {} disconnected", id.0));
        if self.clients.is_empty() {
            self.no_clients_since = self.no_clients_since.or(Some(kernel.now));
        }
        self.engine.handle_client_gone(id, kernel.now);
        let is_forgotten = |slot: &kennel_core::engine::daemon::ServerSlot| {
            slot.is_closing() || slot.mux().in_flight_of(id).is_empty()
        };
        kernel.check(self.engine.slots().all(is_forgotten), || {
            format!(
                "client {} disconnected; a server has its requests in flight",
                id.0
            )
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
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        if client.to.may_flush(client.sink(), kernel) {
            client.write_some(kernel);
            if client.is_finished && client.to.is_empty() {
                self.disconnect(id, kernel);
            }
            return true;
        }
        if !client.from.has_line() {
            let (source, before) = (client.source(), client.from.rest().len());
            let is_open = client.from.read(source, part(salt), kernel);
            let has_read = client.from.rest().len() > before;
            if !is_open {
                self.input_ended(id, kernel);
                return true;
            }
            if has_read {
                self.engine.handle_client_bytes(id, kernel.now);
            }
        }
        let client = self.clients.get_mut(&id);
        let line = client.and_then(|client| client.from.next_line());
        match line {
            Some(line) if is_new => self.take_first_line(id, &line, kernel),
            Some(line) => self.take_line(id, &line, kernel),
            None => {}
        }
        true
    }

    fn take_line(&mut self, id: ClientId, line: &[u8], kernel: &mut Kernel) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.lines += 1;
            client.offer_pipes(self.pid, kernel);
        }
        let line = InputLine::from(line);
        self.engine.handle_client_line(id, line, kernel.now);
    }

    fn input_ended(&mut self, id: ClientId, kernel: &mut Kernel) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.half_closed || kernel.has_no_reader(client.end.write) {
            return self.disconnect(id, kernel);
        }
        client.half_closed = true;
        self.engine.handle_client_eof(id, kernel.now);
    }

    /// The client writes to its pipe from now on.
    pub(super) fn use_pipes(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id)
            && let Some(pipes) = &mut client.pipes
        {
            pipes.reads_pipe = true;
        }
    }

    fn take_first_line(&mut self, id: ClientId, line: &[u8], kernel: &mut Kernel) {
        let hello = match FirstLine::of(line) {
            FirstLine::Ping => {
                self.write(id, Replies::pong_reply().trim_ascii_end(), kernel);
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
        kernel.trace(self.pid, || {
            format!("answers the hello of {pid}, client {}", id.0)
        });
        self.engine
            .handle_introduction(id, Introduction::of_hello(&hello));
        if let Some(client) = self.clients.get_mut(&id) {
            client.hello = Some(hello);
        }
    }
}
