//! The server of a slot: its lines, loss, hibernation and replacement.

use super::{Action, Daemon, InputLine, Report, ServerSlot, SlotAction, SlotId, StartFailure};
use crate::hello::Lost;
use crate::lifetime::ClientId;
use crate::message::Owned;
use crate::mux::Lane;
use crate::session::{SERVER_RESTARTED, SERVER_UNAVAILABLE, ServerExit};
use crate::time::Moment;

/// Reason of a loss: the server's files changed.
const REPLACED: &str = "replaced";

impl Daemon {
    /// Handles a server that started.
    pub fn handle_server_started(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.started();
        }
    }

    /// Handles a line of a server.
    pub fn handle_server_line(&mut self, id: SlotId, input: InputLine<'_>, now: Moment) {
        self.now = now;
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.handle_server_output(now);
        match input {
            InputLine::Lent(line) => slot.mux_mut().handle_server_line(line, now),
            InputLine::Moved(line, scan) => {
                slot.mux_mut().handle_owned_server_line(line, &scan, now)
            }
        }
        if let Some(modern) = slot.shown_era() {
            self.era.record(modern);
        }
        self.activate_slot(id, None);
    }

    /// Sends this response to the server in place of a client.
    pub fn answer_server(&mut self, id: SlotId, line: Vec<u8>, now: Moment) {
        self.now = now;
        if let Some(slot) = self.slots.get_mut(&id) {
            let to_server = slot.write_or_queue(Lane::Front, line.into(), None, now);
            self.actions.extend(to_server);
        }
    }

    /// Queues a line that could not be written to its server.
    pub fn queue_for_server(&mut self, id: SlotId, lane: Lane, line: Owned, by: Option<ClientId>) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.queue(lane, line, by);
        }
    }

    /// Takes the queued lines to write to the server next. Until all are written, [`set_writing`](Self::set_writing) is
    /// on.
    pub fn next_chunk(&mut self, id: SlotId) -> Option<Owned> {
        let slot = self.slots.get_mut(&id)?;
        let chunk = slot.next_chunk();
        slot.set_writing(chunk.is_some());
        chunk
    }

    /// Sets whether some taken lines are not written yet.
    pub fn set_writing(&mut self, id: SlotId, writing: bool) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.set_writing(writing);
        }
    }

    /// Handles the exit of the server's first process while its stdout is open. `stdin_closed`: no process is left that
    /// could read its stdin.
    pub fn handle_first_process_exit(
        &mut self,
        id: SlotId,
        ending: ServerExit,
        stdin_closed: bool,
        now: Moment,
    ) {
        self.now = now;
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.handle_first_process_exit(ending);
        self.actions.push_back(match stdin_closed {
            true => Action::DeclareServerLost { slot: id },
            false => Action::UpdateTimer { slot: id },
        });
    }

    /// Handles a lost server: its clients begin again with the next one. `cut_off`: lines that were not written
    /// completely.
    pub fn handle_server_lost<'a>(
        &mut self,
        id: SlotId,
        ended: Option<ServerExit>,
        detail: String,
        cut_off: impl Iterator<Item = &'a [u8]>,
        now: Moment,
    ) {
        self.now = now;
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        if slot.clients() == 0 {
            return self.close_slot(id);
        }
        let answered = slot.mux().latency().is_some();
        let next = self.restarts.record_loss(slot.key().clone(), answered, now);
        if slot.exited_on_discover(ended) && self.era.exited_on_discover() {
            slot.server_exited();
        }
        if let Some(modern) = slot.shown_era() {
            self.era.record(modern);
        }
        self.report(Report::ServerLost {
            slot: id,
            restarts: next.is_ok(),
        });
        let lost = Lost {
            detail,
            is_final: next.is_err(),
            ended,
            retry_after: next.err().map(|at| millis(at, now)),
            ..lost_message(SERVER_RESTARTED)
        };
        self.tell_clients_lost(id, &lost, cut_off);
    }

    /// Handles a server that could not be started.
    pub fn handle_start_failure(&mut self, id: SlotId, failure: StartFailure, now: Moment) {
        self.now = now;
        let lost = Lost {
            detail: failure.detail,
            is_final: true,
            exit: failure.exit,
            shortage: failure.shortage,
            ..lost_message(SERVER_UNAVAILABLE)
        };
        self.tell_clients_lost(id, &lost, std::iter::empty());
    }

    /// Handles a change of the server's files. The server is replaced when no request is pending.
    pub fn handle_files_changed(&mut self, id: SlotId) {
        let slot = self.slots.get_mut(&id);
        if slot.is_some_and(ServerSlot::mark_outdated) {
            self.report(Report::Outdated);
        }
    }

    /// Replaces a server whose files changed: its clients begin again with the next one.
    pub(super) fn replace(&mut self, id: SlotId) {
        let had_clients = self.slots.get(&id).is_some_and(|slot| slot.clients() > 0);
        self.era.forget();
        self.report(Report::Replaced {
            slot: id,
            had_clients,
        });
        self.tell_clients_lost(id, &lost_message(REPLACED), std::iter::empty());
    }

    /// Stops an idle server. Its clients start it again with their next request.
    fn hibernate(&mut self, id: SlotId) {
        self.flush(id);
        let clients = self.dismiss_all(id);
        self.report(Report::Hibernates {
            slot: id,
            clients: clients.len(),
        });
        for client in clients {
            self.hibernate_client(client);
        }
    }

    fn tell_clients_lost<'a>(
        &mut self,
        id: SlotId,
        lost: &Lost,
        cut_off: impl Iterator<Item = &'a [u8]>,
    ) {
        // First: lines that are queued from now on are known to be unsent.
        self.close_slot(id);
        self.flush(id);
        let Some(slot) = self.slots.get(&id) else {
            return;
        };
        let mut unsent = slot.unsent(cut_off);
        for client in self.dismiss_all(id) {
            let unsent = unsent.remove(&client).unwrap_or_default();
            let lost = Lost {
                unsent,
                ..lost.clone()
            };
            self.tell_server_lost(client, lost);
        }
    }

    /// Stops the slot's server, and removes its clients.
    fn dismiss_all(&mut self, id: SlotId) -> Vec<ClientId> {
        self.close_slot(id);
        let clients = self.clients_of(id);
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.dismiss_all();
            self.actions.push_back(Action::ClientsChanged { slot: id });
        }
        clients
    }

    /// Performs what is due in a slot.
    pub fn advance_slot(&mut self, id: SlotId, now: Moment) {
        self.now = now;
        let closed = self.closed;
        while let Some(slot) = self.slots.get_mut(&id)
            && let Some(action) = slot.advance(closed, now)
        {
            match action {
                SlotAction::Close => self.close_slot(id),
                SlotAction::Hibernate => self.hibernate(id),
                SlotAction::DeclareLost => {
                    self.actions
                        .push_back(Action::DeclareServerLost { slot: id });
                    break;
                }
                SlotAction::CheckStopped => {
                    self.actions.push_back(Action::CheckStopped { slot: id });
                    break;
                }
            }
        }
        self.start_if_due(id);
        self.activate_slot(id, None);
    }

    /// When to call [`advance_slot`](Self::advance_slot).
    pub fn slot_timeout(&self, id: SlotId, now: Moment) -> Option<Moment> {
        self.timeout_of(self.slots.get(&id)?, now)
    }

    /// The next timeout of `slot`, which the caller got from [`slot`](Self::slot).
    pub fn timeout_of(&self, slot: &ServerSlot, now: Moment) -> Option<Moment> {
        let timeout = slot.next_timeout(self.closed, now);
        match slot.is_waiting() {
            false => timeout,
            true => timeout.into_iter().chain(self.start_at(slot)).min(),
        }
    }

    /// Handles the result of [`Action::CheckStopped`]. Returns whether to report the stopped process.
    pub fn handle_stopped_check(&mut self, id: SlotId, pid: Option<u32>, now: Moment) -> bool {
        let slot = self.slots.get_mut(&id);
        slot.is_some_and(|slot| slot.handle_stopped_check(pid, now))
    }
}

fn lost_message(reason: &str) -> Lost {
    Lost {
        reason: reason.to_owned(),
        detail: String::new(),
        is_final: false,
        exit: None,
        unsent: Vec::new(),
        received: None,
        shortage: false,
        ended: None,
        retry_after: None,
    }
}

fn millis(at: Moment, now: Moment) -> u64 {
    u64::try_from((at - now).as_millis()).unwrap_or(u64::MAX)
}
