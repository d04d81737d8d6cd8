//! Carries out what the daemon's engine decides.

use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::{Action, Daemon, Dedicated, InputLine, Report, SlotId};
use kennel_core::lifetime::ClientId;
use kennel_core::message::Owned;

use super::daemon_state::DaemonState;
use super::memory::BACKLOG;
use super::queue::{Chunk, TOGETHER, queued_bytes};
use super::server_io::ServerIo;
use super::{life, server, tasks};

/// A client that has this much unread, in bytes, and [does not read](super::client::ClientConn::stalls) is disconnected, whatever
/// else the daemon holds. Alone on a server, it holds up the server instead.
const MUCH: usize = 16 << 20;

/// Clients, and what all of them get: one line or several, without the last newline.
type Addressed = (Vec<ClientId>, Owned);

/// Puts short lines for the same clients together, as a long batch has them: each client's queue has an entry for each
/// chunk, and writes each by itself.
#[derive(Default)]
struct Together(Option<Addressed>);

impl Together {
    /// Adds a line. Returns what came before it, if the two do not go together.
    fn add(&mut self, clients: Vec<ClientId>, line: Owned) -> Option<Addressed> {
        if let Some((same, lines)) = &mut self.0
            && *same == clients
            && lines.len() + line.len() < TOGETHER
        {
            lines.push(b'\n');
            lines.extend_from_slice(&line);
            return None;
        }
        self.0.replace((clients, line))
    }

    /// What was added and not returned.
    fn take(&mut self) -> Option<Addressed> {
        self.0.take()
    }
}

impl DaemonState {
    /// Hands something to the engine, and does what follows.
    pub(super) fn tell_engine<T>(&self, event: impl FnOnce(&mut Daemon) -> T) -> T {
        let told = event(&mut self.engine.borrow_mut());
        self.carry_out(Instant::now());
        told
    }

    /// A line of a client.
    pub(super) fn client_line(&self, id: ClientId, line: InputLine<'_>, at: Instant) {
        let slot = self.engine.borrow().slot_of(id);
        match slot.and_then(|slot| self.server_io(slot)) {
            Some(server_io) => server_io.check_files(self, at),
            // It may join any.
            None => self.each_server(|server_io| server_io.check_files(self, at)),
        }
        let is_short = self.is_short_at(at) || (queued_bytes() >= BACKLOG && self.holds_much());
        let mut engine = self.engine.borrow_mut();
        engine.set_short_of_memory(is_short);
        engine.client_line(id, line, self.moment(at));
        let joined = slot.is_none().then(|| engine.slot_of(id)).flatten();
        drop(engine);
        self.carry_out(at);
        if let Some(server_io) = joined.and_then(|slot| self.server_io(slot)) {
            server_io.stirred.notify_waiters();
            self.stir();
        }
    }

    /// Does all that follows from what happened.
    pub(super) fn carry_out(&self, at: Instant) {
        let mut together = Together::default();
        loop {
            let action = self.engine.borrow_mut().poll_action();
            if !matches!(action, Some(Action::ToClients { .. })) {
                self.deliver_together(together.take());
            }
            match action {
                None => break,
                Some(Action::ToClients { clients, line }) => {
                    self.deliver_together(together.add(clients, line));
                }
                Some(action) => self.carry_out_one(action, at),
            }
        }
    }

    fn carry_out_one(&self, action: Action, at: Instant) {
        match action {
            Action::ToClient { client, line } => self.deliver(client, line),
            Action::ToClients { clients, line } => self.deliver_together(Some((clients, line))),
            Action::ToServer {
                slot,
                lane,
                line,
                by,
            } => match self.server_io(slot) {
                Some(server_io) => server_io.write_line(self, lane, line, by),
                None => self
                    .engine
                    .borrow_mut()
                    .queue_for_server(slot, lane, line, by),
            },
            Action::Settled { slot } => self.at_server(slot, |it| it.set_timer(self, at)),
            Action::Tell { client, control } => self.at_client(client, |it| it.tell(&control)),
            Action::Finish { client } => self.at_client(client, |it| it.to_client.end()),
            Action::Disconnect { client } => self.at_client(client, |it| it.left.raise()),
            Action::UsePipes { client } => self.at_client(client, |it| it.use_pipes()),
            Action::OpenSlot { slot, client } => self.open_slot(slot, client),
            Action::StartServer { slot } => self.at_server(slot, |it| it.start.raise()),
            Action::StopServer { slot } => {
                self.at_server(slot, ServerIo::stop);
                self.stir();
            }
            Action::LoseServer { slot } => self.at_server(slot, |it| it.lost.raise()),
            Action::CheckStopped { slot } => self.at_server(slot, |it| it.check_stopped(self)),
            Action::Note { slot, note } => self.at_server(slot, |it| it.log_note(self, &note, at)),
            Action::Report(report) => self.log_report(report),
            Action::ArmWatchdog => life::arm(self),
            Action::DisarmWatchdog => drop(self.watchdog.take()),
            Action::TryToLeave => life::try_to_leave(self),
            Action::Leave => life::leave(self, None),
        }
    }

    fn at_server(&self, slot: SlotId, act: impl FnOnce(&ServerIo)) {
        if let Some(server_io) = self.server_io(slot) {
            act(&server_io);
        }
    }

    fn at_client(&self, client: ClientId, act: impl FnOnce(&super::client::ClientConn)) {
        let link = self.clients.borrow().get(&client).cloned();
        if let Some(link) = link {
            act(&link);
        }
    }

    /// Lines for several clients: they are in memory once.
    fn deliver_together(&self, lines: Option<Addressed>) {
        let Some((clients, lines)) = lines else {
            return;
        };
        let chunk = Chunk::of_line(lines);
        for client in clients {
            let links = self.clients.borrow();
            if let Some(link) = links.get(&client) {
                link.to_client.push_chunk(&chunk);
                self.drop_if_stalled(client, link);
            }
        }
    }

    fn deliver(&self, client: ClientId, line: Owned) {
        let links = self.clients.borrow();
        if let Some(link) = links.get(&client) {
            link.to_client.push_line(line);
            self.drop_if_stalled(client, link);
        }
    }

    fn drop_if_stalled(&self, client: ClientId, link: &super::client::ClientConn) {
        if link.to_client.len() <= MUCH || link.left.is_up() || !link.stalls() {
            return;
        }
        let engine = self.engine.borrow();
        let slot = engine.slot_of(client).and_then(|slot| engine.slot(slot));
        if slot.is_some_and(|slot| slot.clients() > 1) {
            self.drop_unread(client, link);
        }
    }

    fn open_slot(&self, slot: SlotId, client: ClientId) {
        let link = self.clients.borrow().get(&client).cloned();
        let class = self
            .engine
            .borrow()
            .slot(slot)
            .map(|it| it.mux().class().clone());
        let (Some(link), Some(class), Some(daemon)) = (link, class, self.this()) else {
            return;
        };
        let server_io = Rc::new(ServerIo::new(slot, class, link.wants()));
        self.attend(&daemon, &server_io);
    }

    /// Looks after a slot's server from now on.
    pub(super) fn attend(&self, daemon: &Rc<DaemonState>, server_io: &Rc<ServerIo>) {
        let mut servers = self.servers.borrow_mut();
        servers.insert(server_io.slot, Rc::clone(server_io));
        tasks::spawn(server::attend(Rc::clone(daemon), Rc::clone(server_io)));
    }

    fn log_report(&self, report: Report) {
        match report {
            Report::Dedicated { client, when, why } => {
                let what = match when {
                    Dedicated::AtJoin => "cannot share and goes solo",
                    Dedicated::Later => "goes solo",
                    Dedicated::AtStart => "gets no server here",
                };
                self.log
                    .line(format_args!("client {} {what}: {why}", client.0));
                self.each_server(|server_io| server_io.stirred.notify_waiters());
            }
            Report::ServerLost { slot, restarts } => {
                self.log.line(match restarts {
                    true => "a server is lost",
                    false => "a server is lost once too often: the next only when it is asked for",
                });
                if let Some(server_io) = self.server_io(slot).filter(|_| restarts) {
                    self.restarts(server_io.last_pid.get(), server_io.why_lost());
                }
            }
            Report::Hibernates { clients, .. } => self.log.line(format_args!(
                "a server hibernates: nobody asked it anything; clients: {clients}"
            )),
            Report::Replaced { slot, had_clients } => {
                let server_io = self.server_io(slot);
                let pid = server_io.and_then(|it| it.pid.get()).unwrap_or_default();
                self.log
                    .line(format_args!("server {pid} is replaced: its files changed"));
                if had_clients {
                    self.restarts(pid, "its files changed".to_owned());
                }
            }
            Report::Outdated => self
                .log
                .line("the server's files changed: it is replaced when nobody waits for it"),
            Report::Ending(reason) => self.log.line(format_args!("ending: {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lines_for_the_same_clients_are_one_chunk_and_stay_in_order() {
        let all = vec![ClientId(1), ClientId(2)];
        let some = vec![ClientId(1), ClientId(3)];
        let line = |text: &str| Owned::from(text.as_bytes().to_vec());
        let mut together = Together::default();
        assert_eq!(together.add(all.clone(), line("one")), None);
        assert_eq!(together.add(all.clone(), line("two")), None);
        let before = together.add(some.clone(), line("three"));
        assert_eq!(before, Some((all, line("one\ntwo"))));
        let long = "x".repeat(TOGETHER);
        let before = together.add(some.clone(), line(&long));
        assert_eq!(before, Some((some.clone(), line("three"))));
        assert_eq!(together.take(), Some((some, line(&long))));
        assert_eq!(together.take(), None);
    }
}
