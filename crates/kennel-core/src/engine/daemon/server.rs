//! The server of a slot: its lines, its loss, its hibernation and its replacement.

use super::{Action, Daemon, InputLine, Report, ServerSlot, SlotAction, SlotId, StartFailure};
use crate::hello::Lost;
use crate::lifetime::ClientId;
use crate::message::Owned;
use crate::mux::Lane;
use crate::session::{Ending, SERVER_RESTARTED, SERVER_UNAVAILABLE};
use crate::time::Moment;

/// Why a server is lost whose files changed.
const REPLACED: &str = "replaced";

impl Daemon {
    /// Its server runs.
    pub fn server_started(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.started();
        }
    }

    /// A line of its server.
    pub fn server_line(&mut self, id: SlotId, input: InputLine<'_>, now: Moment) {
        self.now = now;
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.server_spoke(now);
        match input {
            InputLine::Lent(line) => slot.mux_mut().from_server(line, now),
            InputLine::Moved(line, scan) => slot.mux_mut().from_server_owned(line, &scan, now),
        }
        if let Some(modern) = slot.shown_era() {
            self.era.saw(modern);
        }
        self.settle(id, None);
    }

    /// Answers a request of its server, in place of a client.
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

    /// The lines that are to be written to its server next. Until all of them are, the driver
    /// [is writing](Self::set_writing).
    pub fn next_chunk(&mut self, id: SlotId) -> Option<Owned> {
        let slot = self.slots.get_mut(&id)?;
        let chunk = slot.next_chunk();
        slot.set_writing(chunk.is_some());
        chunk
    }

    /// Whether some of what was taken for its server is not written yet.
    pub fn set_writing(&mut self, id: SlotId, writing: bool) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.set_writing(writing);
        }
    }

    /// Its server's first process ended, and its stdout is open. `stdin_closed`: nobody is left who could read its stdin.
    pub fn first_process_ended(
        &mut self,
        id: SlotId,
        ending: Ending,
        stdin_closed: bool,
        now: Moment,
    ) {
        self.now = now;
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.first_process_ended(ending);
        self.actions.push_back(match stdin_closed {
            true => Action::LoseServer { slot: id },
            false => Action::Settled { slot: id },
        });
    }

    /// Its server is gone: its clients begin again with the next one. `cut_off`: lines that were not written to their end.
    pub fn server_lost<'a>(
        &mut self,
        id: SlotId,
        ended: Option<Ending>,
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
        let next = self.restarts.lost(slot.key().clone(), answered, now);
        if slot.exited_on_discover(ended) && self.era.exited_on_discover() {
            slot.server_exited();
        }
        if let Some(modern) = slot.shown_era() {
            self.era.saw(modern);
        }
        self.report(Report::ServerLost {
            slot: id,
            restarts: next.is_ok(),
        });
        let lost = Lost {
            detail,
            final_word: next.is_err(),
            ended,
            retry_after: next.err().map(|at| millis(at, now)),
            ..lost(SERVER_RESTARTED)
        };
        self.tell_lost(id, &lost, cut_off);
    }

    /// Its server could not be started.
    pub fn server_refused(&mut self, id: SlotId, failure: StartFailure, now: Moment) {
        self.now = now;
        let lost = Lost {
            detail: failure.detail,
            final_word: true,
            exit: failure.exit,
            shortage: failure.shortage,
            ..lost(SERVER_UNAVAILABLE)
        };
        self.tell_lost(id, &lost, std::iter::empty());
    }

    /// Its server's files changed. It is replaced when nobody waits for it.
    pub fn files_changed(&mut self, id: SlotId) {
        let slot = self.slots.get_mut(&id);
        if slot.is_some_and(ServerSlot::outdated) {
            self.report(Report::Outdated);
        }
    }

    /// Nobody waits for its outdated server: its clients begin again with the next one.
    pub(super) fn replace(&mut self, id: SlotId) {
        let had_clients = self.slots.get(&id).is_some_and(|slot| slot.clients() > 0);
        self.era.forget();
        self.report(Report::Replaced {
            slot: id,
            had_clients,
        });
        self.tell_lost(id, &lost(REPLACED), std::iter::empty());
    }

    /// Nobody has asked its server anything for as long as its clients said: they come back when they need it.
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

    fn tell_lost<'a>(&mut self, id: SlotId, lost: &Lost, cut_off: impl Iterator<Item = &'a [u8]>) {
        // First: what is for the server is queued from here on, and known not to have been sent.
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
            self.lose_server_of(client, lost);
        }
    }

    /// Stops its server, which has no clients any more.
    fn dismiss_all(&mut self, id: SlotId) -> Vec<ClientId> {
        self.close_slot(id);
        let clients = self.clients_of(id);
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.dismiss_all();
        }
        clients
    }

    /// Does what is due at a slot.
    pub fn advance_slot(&mut self, id: SlotId, now: Moment) {
        self.now = now;
        let closed = self.closed;
        while let Some(slot) = self.slots.get_mut(&id)
            && let Some(action) = slot.advance(closed, now)
        {
            match action {
                SlotAction::Close => self.close_slot(id),
                SlotAction::Hibernate => self.hibernate(id),
                SlotAction::Lose => {
                    self.actions.push_back(Action::LoseServer { slot: id });
                    break;
                }
                SlotAction::CheckStopped => {
                    self.actions.push_back(Action::CheckStopped { slot: id });
                    break;
                }
            }
        }
        self.start_if_due(id);
        self.settle(id, None);
    }

    /// When to call [`advance_slot`](Self::advance_slot).
    pub fn slot_timeout(&self, id: SlotId, now: Moment) -> Option<Moment> {
        self.timeout_of(self.slots.get(&id)?, now)
    }

    /// The same of a slot that was [looked up](Self::slot) before.
    pub fn timeout_of(&self, slot: &ServerSlot, now: Moment) -> Option<Moment> {
        let timeout = slot.next_timeout(self.closed, now);
        match slot.is_waiting() {
            false => timeout,
            true => timeout.into_iter().chain(self.start_at(slot)).min(),
        }
    }

    /// Answers [`Action::CheckStopped`]: `true` if the process that was found stopped is to be reported.
    pub fn stopped_checked(&mut self, id: SlotId, pid: Option<u32>, now: Moment) -> bool {
        let slot = self.slots.get_mut(&id);
        slot.is_some_and(|slot| slot.stopped_checked(pid, now))
    }
}

fn lost(reason: &str) -> Lost {
    Lost {
        reason: reason.to_owned(),
        detail: String::new(),
        final_word: false,
        exit: None,
        unsent: Vec::new(),
        heard: None,
        shortage: false,
        ended: None,
        retry_after: None,
    }
}

fn millis(at: Moment, now: Moment) -> u64 {
    u64::try_from((at - now).as_millis()).unwrap_or(u64::MAX)
}
