//! Its server slots: what follows from what happened there, and what becomes of their servers.

use kennel_core::engine::daemon::SlotAction;
use kennel_core::hello::{Control, Lost};
use kennel_core::lifetime::ClientId;
use kennel_core::mux::Out;
use kennel_core::session::SERVER_RESTARTED;
use kennel_core::time::Moment;

use super::slot::{Running, Slot};
use super::{Daemon, Place};
use crate::kernel::{Heard, Kernel, Shortage};

impl Daemon {
    pub(super) fn slot_wake(&self, slot: &Slot, kernel: &Kernel) -> Option<Moment> {
        let waits = slot.server.is_none() && !slot.engine.is_closing();
        let start = (waits && self.is_first(slot)).then_some(slot.start_at);
        let timeout = slot.engine.next_timeout(self.ending, kernel.now);
        [start, timeout].into_iter().flatten().min()
    }

    /// Whether nothing is left of those that had its place before it.
    fn is_first(&self, slot: &Slot) -> bool {
        let first = self.slots.iter().find(|other| other.key == slot.key);
        first.is_none_or(|first| first.number == slot.number)
    }

    pub(super) fn stirs(&self, slot: &Slot, kernel: &Kernel) -> bool {
        let server = slot.server.as_ref().is_some_and(|it| match it.silent {
            false => kernel.readable(it.stdout),
            true => kernel.tree_is_empty(it.pid),
        });
        let ends = slot.engine.is_closing()
            && match &slot.server {
                None => true,
                Some(server) => !server.stopped,
            };
        server || ends || slot.may_feed(kernel)
    }

    pub(super) fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|it| it.number == number)
    }

    /// Does what follows from what happened at a slot.
    pub(super) fn settle(&mut self, number: u64, kernel: &mut Kernel) {
        let now = kernel.now;
        let Some(slot) = self.slot(number) else {
            return;
        };
        for out in slot.settle(now) {
            match out {
                Out::ToServer { .. } => {}
                Out::ToClient { client, line } => self.deliver(number, client, &line, kernel),
                Out::ToClients { clients, line } => {
                    for client in clients {
                        self.deliver(number, client, &line, kernel);
                    }
                }
                Out::Dismiss {
                    client,
                    unsent,
                    why,
                } => {
                    if let Some(slot) = self.slot(number) {
                        slot.engine.dismiss(client, now);
                    }
                    self.go_solo(client, why, unsent, kernel);
                }
            }
        }
    }

    fn deliver(&mut self, number: u64, client: ClientId, line: &[u8], kernel: &mut Kernel) {
        let Some(to) = self.clients.get(&client) else {
            return;
        };
        kernel.write(to.end.write, line);
        let half_closed = to.half_closed;
        let slot = self.slot(number);
        let owes = slot.is_some_and(|it| it.engine.mux().waits_for(client) > 0);
        if half_closed && !owes {
            self.left(client, kernel);
        }
    }

    /// One thing at one slot.
    pub(super) fn attend(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let numbers: Vec<u64> = self.slots.iter().map(|it| it.number).collect();
        for nth in 0..numbers.len() {
            let number = numbers[(nth + salt as usize) % numbers.len()];
            if self.advance(number, kernel) || self.attend_to(number, salt, kernel) {
                return true;
            }
        }
        false
    }

    /// What is due at a slot by now.
    fn advance(&mut self, number: u64, kernel: &mut Kernel) -> bool {
        let (now, pid, ending) = (kernel.now, self.pid, self.ending);
        let Some(slot) = self.slot(number) else {
            return false;
        };
        let timeout = slot.engine.next_timeout(ending, now);
        if timeout.is_none_or(|at| at > now) {
            return false;
        }
        let action = slot.engine.advance(ending, now);
        match action {
            None => {}
            Some(SlotAction::Close) => {
                kernel.say(pid, || format!("closes the deserted slot {number}"));
                slot.engine.close();
            }
            Some(SlotAction::Hibernate) => {
                let idle = slot.engine.is_quiet();
                kernel.must(idle, || "a server hibernates under a request".to_owned());
                kernel.say(pid, || format!("slot {number} hibernates"));
                slot.engine.close();
                for id in self.clients_of(number) {
                    self.set_place(id, Place::Lost);
                    self.tell(id, &Control::Resting, kernel);
                    self.left(id, kernel);
                }
            }
            Some(SlotAction::Lose) => self.lost(number, kernel),
            Some(SlotAction::CheckStopped) => {
                slot.engine.stopped_checked(None, now);
            }
        }
        self.settle(number, kernel);
        true
    }

    fn clients_of(&self, number: u64) -> Vec<ClientId> {
        let at = |place: Place| place == Place::At(number);
        let clients = self.clients.iter().filter(|(_, it)| at(it.place));
        clients.map(|(id, _)| *id).collect()
    }

    fn attend_to(&mut self, number: u64, salt: u64, kernel: &mut Kernel) -> bool {
        let now = kernel.now;
        let Some(place) = self.slots.iter().position(|it| it.number == number) else {
            return false;
        };
        let is_first = self.is_first(&self.slots[place]);
        let slot = &mut self.slots[place];
        let closing = slot.engine.is_closing();
        let Some(mut server) = slot.server else {
            if closing {
                self.slots.remove(place);
                return true;
            }
            if !is_first || slot.start_at > now {
                return false;
            }
            if kernel.shortage == Some(Shortage::Servers) {
                self.tell_lost(number, true, None, true, kernel);
                return true;
            }
            let class = slot.engine.mux().class();
            let alone = class.is_shared().then(|| class.to_string());
            let (pid, stdin, stdout) = kernel.start_server(self.pid, alone);
            kernel.say(self.pid, || format!("starts {pid} for slot {number}"));
            let slot = &mut self.slots[place];
            slot.engine.started();
            slot.server = Some(Running {
                pid,
                stdin,
                stdout,
                stopped: false,
                silent: false,
            });
            return true;
        };
        if closing && !server.stopped {
            kernel.close_write(server.stdin);
            kernel.stop_tree(server.pid);
            server.stopped = true;
            slot.server = Some(server);
            return true;
        }
        let speaks = !server.silent && kernel.readable(server.stdout);
        if slot.may_feed(kernel) && (!speaks || salt.is_multiple_of(3)) {
            slot.feed(kernel);
            return true;
        }
        if speaks {
            match kernel.read(server.stdout) {
                Heard::Line(line) => {
                    slot.engine.server_spoke(now);
                    slot.engine.mux_mut().from_server(&line[..], now);
                    self.settle(number, kernel);
                }
                Heard::End => {
                    server.silent = true;
                    slot.server = Some(server);
                    self.lost(number, kernel);
                }
                Heard::Nothing => return false,
            }
            return true;
        }
        if server.silent && kernel.tree_is_empty(server.pid) {
            self.slots.remove(place);
            return true;
        }
        false
    }

    /// Those who are still its clients begin again with the next server.
    fn lost(&mut self, number: u64, kernel: &mut Kernel) {
        let now = kernel.now;
        let Some(slot) = self.slot(number) else {
            return;
        };
        if slot.engine.clients() == 0 {
            return slot.engine.close();
        }
        let key = slot.key.clone();
        slot.engine.mux_mut().server_exited();
        let answered = slot.engine.mux().latency().is_some();
        let next = self.restarts.lost(key, answered, now);
        let retry_after = next.err().map(|at| (at - now).as_millis() as u64);
        self.settle(number, kernel);
        self.tell_lost(number, next.is_err(), retry_after, false, kernel);
    }

    /// The clients of a server are told that it is gone, or cannot be started.
    fn tell_lost(
        &mut self,
        number: u64,
        final_word: bool,
        retry_after: Option<u64>,
        shortage: bool,
        kernel: &mut Kernel,
    ) {
        let Some(slot) = self.slot(number) else {
            return;
        };
        let mut unsent = slot.engine.unsent(slot.unwritten());
        slot.engine.close();
        for id in self.clients_of(number) {
            self.set_place(id, Place::Lost);
            let Some(client) = self.clients.get(&id) else {
                continue;
            };
            if client.half_closed {
                self.left(id, kernel);
                continue;
            }
            let lost = Lost {
                reason: SERVER_RESTARTED.to_owned(),
                detail: String::new(),
                final_word,
                exit: None,
                unsent: unsent.remove(&id).unwrap_or_default(),
                heard: Some(client.heard),
                shortage,
                ended: None,
                retry_after,
            };
            self.tell(id, &Control::Lost(lost), kernel);
        }
    }
}
