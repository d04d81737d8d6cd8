//! Carries out the actions of the daemon's engine.

use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::{
    Action, Daemon, Dedicated, InputLine, Report, SlotId, has_much_unread, is_stalled,
};
use kennel_core::lifetime::ClientId;
use kennel_core::message::Owned;

use super::client::ClientConn;
use super::daemon_state::DaemonState;
use super::life;
use super::queue::{Chunk, MAX_BATCH};
use super::run_queue::Runnable;
use super::server_io::ServerIo;

/// Clients and their common lines, without the last newline.
type Addressed = (Vec<ClientId>, Owned);

/// Collects short lines for the same clients, for example those of a long batch, so that all of them take one chunk and
/// one write.
#[derive(Default)]
struct Batch(Option<Addressed>);

impl Batch {
    /// Adds a line. Returns the former lines if this one is for other clients, or too long.
    fn add(&mut self, clients: Vec<ClientId>, line: Owned) -> Option<Addressed> {
        if let Some((same, lines)) = &mut self.0
            && *same == clients
            && lines.len() + line.len() < MAX_BATCH
        {
            lines.push(b'\n');
            lines.extend_from_slice(&line);
            return None;
        }
        self.0.replace((clients, line))
    }

    /// Returns the collected lines.
    fn take(&mut self) -> Option<Addressed> {
        self.0.take()
    }
}

impl DaemonState {
    /// Passes an event to the engine, and carries out the resulting actions.
    pub(super) fn tell_engine<T>(&self, event: impl FnOnce(&mut Daemon) -> T) -> T {
        let told = event(&mut self.engine.borrow_mut());
        self.carry_out(Instant::now());
        told
    }

    /// Passes a client's line to the engine, and carries out the resulting actions.
    pub(super) fn client_line(&self, id: ClientId, line: InputLine<'_>, at: Instant) {
        let slot = self.engine.borrow().slot_of(id);
        match slot.and_then(|slot| self.server_io(slot)) {
            Some(server_io) => server_io.check_files(self, at),
            // It may join any server.
            None => self.for_each_server(|server_io| server_io.check_files(self, at)),
        }
        let now = self.moment(at);
        let is_short = self.servers_save_memory(now);
        let mut engine = self.engine.borrow_mut();
        engine.set_short_of_memory(is_short);
        engine.handle_client_line(id, line, now);
        drop(engine);
        self.carry_out(at);
    }

    /// Carries out all pending actions.
    pub(super) fn carry_out(&self, at: Instant) {
        let mut batch = Batch::default();
        loop {
            let action = self.engine.borrow_mut().poll_action();
            if !matches!(action, Some(Action::ToClients { .. })) {
                self.deliver_batch(batch.take());
            }
            match action {
                None => break,
                Some(Action::ToClients { clients, line }) => {
                    self.deliver_batch(batch.add(clients, line));
                }
                Some(action) => self.carry_out_one(action, at),
            }
        }
    }

    fn carry_out_one(&self, action: Action, at: Instant) {
        match action {
            Action::ToClient { client, line } => self.deliver(client, line),
            Action::ToClients { clients, line } => self.deliver_batch(Some((clients, line))),
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
            Action::ClientsChanged { slot } => {
                self.at_server(slot, |it| it.wake_throttled(self));
                self.state_changed();
            }
            Action::UpdateTimer { slot } => self.at_server(slot, |it| it.set_timer(self, at)),
            Action::Tell { client, control } => self.with_client(client, |it| it.tell(&control)),
            Action::Finish { client } => self.with_client(client, |it| it.to_client.end()),
            Action::Disconnect { client } => self.with_client(client, ClientConn::disconnect),
            Action::UsePipes { client } => self.with_client(client, |it| it.use_pipes()),
            Action::OpenSlot { slot, client } => self.open_slot(slot, client),
            Action::StartServer { slot } => self.at_server(slot, |it| it.start(self)),
            Action::StopServer { slot } => {
                self.at_server(slot, |it| it.stop(self));
                self.state_changed();
            }
            Action::DeclareServerLost { slot } => self.at_server(slot, |it| it.declare_lost(self)),
            Action::CheckStopped { slot } => self.at_server(slot, |it| it.check_stopped(self)),
            Action::Note { slot, note } => self.at_server(slot, |it| it.log_note(self, &note, at)),
            Action::Report(report) => self.log_report(report),
            Action::ArmWatchdog => life::arm(self),
            Action::DisarmWatchdog => drop(self.watchdog.take()),
            Action::TryToExit => life::try_to_leave(self),
            Action::Exit => life::leave(self, None),
        }
    }

    pub(super) fn at_server(&self, slot: SlotId, act: impl FnOnce(&ServerIo)) {
        if let Some(server_io) = self.server_io(slot) {
            act(&server_io);
        }
    }

    fn with_client(&self, client: ClientId, act: impl FnOnce(&ClientConn)) {
        if let Some(conn) = self.client(client) {
            act(&conn);
        }
    }

    /// Queues lines for several clients, with one copy in memory.
    fn deliver_batch(&self, lines: Option<Addressed>) {
        let Some((clients, lines)) = lines else {
            return;
        };
        let chunk = Chunk::of_line(lines);
        self.deliveries
            .set(self.deliveries.get().wrapping_add(clients.len()));
        for client in clients {
            let conns = self.clients.borrow();
            if let Some(conn) = conns.get(&client) {
                conn.to_client.push_chunk(&chunk);
                self.disconnect_if_stalled(conn);
            }
        }
    }

    fn deliver(&self, client: ClientId, line: Owned) {
        let conns = self.clients.borrow();
        if let Some(conn) = conns.get(&client) {
            conn.to_client.push_line(line);
            self.disconnect_if_stalled(conn);
        }
    }

    /// Disconnects a client with too many queued bytes if it shares its server. The only client of a server holds up the
    /// server instead.
    fn disconnect_if_stalled(&self, conn: &ClientConn) {
        let is_stalled_at = |now: Instant| {
            let since = conn.unread_since(now).map(|at| self.moment(at));
            is_stalled(since, self.moment(now))
        };
        let is_stalled = has_much_unread(conn.to_client.len())
            && is_stalled_at(Instant::now())
            && !conn.is_leaving()
            && !conn.can_write();
        if is_stalled && self.engine.borrow().shares_server(conn.id) {
            self.disconnect_stalled(conn);
        }
    }

    fn open_slot(&self, slot: SlotId, client: ClientId) {
        let conn = self.client(client);
        let class = self
            .engine
            .borrow()
            .slot(slot)
            .map(|it| it.mux().class().clone());
        let (Some(conn), Some(class)) = (conn, class) else {
            return;
        };
        let server_io = Rc::new(ServerIo::new(slot, class, conn.launch_hello()));
        self.serve_slot(&server_io);
    }

    /// Adds a server slot.
    pub(super) fn serve_slot(&self, server_io: &Rc<ServerIo>) {
        let mut servers = self.servers.borrow_mut();
        servers.insert(server_io.slot, Rc::clone(server_io));
        self.run_queue.push(Runnable::Server(server_io.slot));
    }

    fn log_report(&self, report: Report) {
        match report {
            Report::Dedicated { client, when, why } => {
                let what = match when {
                    Dedicated::AtJoin => "cannot share a server and goes dedicated",
                    Dedicated::Later => "goes dedicated",
                    Dedicated::AtStart => "gets no server of this daemon and goes dedicated",
                };
                self.log
                    .line(format_args!("client {} {what}: {why}", client.0));
            }
            Report::ServerLost { slot, restarts } => {
                self.log.line(match restarts {
                    true => "a server is lost",
                    false => "a server is lost, and the restart limit is reached: the next starts on request",
                });
                if let Some(server_io) = self.server_io(slot).filter(|_| restarts) {
                    self.server_restarts(server_io.last_pid.get(), server_io.why_lost());
                }
            }
            Report::Hibernates { clients, .. } => self.log.line(format_args!(
                "a server hibernates because it had no request; clients: {clients}"
            )),
            Report::Replaced { slot, had_clients } => {
                let server_io = self.server_io(slot);
                let pid = server_io.and_then(|it| it.pid.get()).unwrap_or_default();
                self.log.line(format_args!(
                    "server {pid} is replaced, because its files changed"
                ));
                if had_clients {
                    self.server_restarts(pid, "its files changed".to_owned());
                }
            }
            Report::Outdated => self
                .log
                .line("its files changed: the server is replaced when no request is pending"),
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
        let mut batch = Batch::default();
        assert_eq!(batch.add(all.clone(), line("one")), None);
        assert_eq!(batch.add(all.clone(), line("two")), None);
        let before = batch.add(some.clone(), line("three"));
        assert_eq!(before, Some((all, line("one\ntwo"))));
        let long = "x".repeat(MAX_BATCH);
        let before = batch.add(some.clone(), line(&long));
        assert_eq!(before, Some((some.clone(), line("three"))));
        assert_eq!(batch.take(), Some((some, line(&long))));
        assert_eq!(batch.take(), None);
    }
}
