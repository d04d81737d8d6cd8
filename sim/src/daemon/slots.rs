//! The processes and pipes of its servers.

use kennel_core::engine::daemon::{InputLine, ServerSlot, SlotId, SlotSnapshot, StartFailure};
use kennel_core::message::Owned;
use kennel_core::mux::{ClientId, Lane};
use kennel_core::session::Ending;

use super::Daemon;
use crate::kernel::{Heard, Kernel, Pid, PipeId, Shortage};

/// How many lines a server's pipe takes: few, so that some wait.
const ROOM: usize = 3;

#[derive(Default)]
pub(super) struct Slot {
    /// The session that opened it.
    pub(super) session: String,
    /// The engine wants its server started.
    pub(super) start: bool,
    /// The engine wants its server stopped.
    pub(super) stop: bool,
    /// Lines that were taken from the engine, until they are written; the next one last.
    unwritten: Vec<Vec<u8>>,
    server: Option<Server>,
}

#[derive(Clone, Copy)]
struct Server {
    pid: Pid,
    stdin: PipeId,
    stdout: PipeId,
    /// Its warden was told to stop it.
    is_stopped: bool,
    stdout_closed: bool,
}

impl Slot {
    pub(super) fn of(session: &str) -> Slot {
        Slot {
            session: session.to_owned(),
            ..Slot::default()
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.server.is_some()
    }

    pub(super) fn may_be_handed_over(&self) -> bool {
        let runs_on = |it: &Server| !it.is_stopped && !it.stdout_closed;
        !self.stop && self.server.as_ref().is_none_or(runs_on)
    }

    pub(super) fn snapshot(&self, slot: &ServerSlot) -> Result<SlotSnapshot, String> {
        let failed = |error: serde_json::Error| error.to_string();
        let mux = serde_json::to_string(slot.mux()).map_err(failed)?;
        let lanes = serde_json::to_string(slot.lanes()).map_err(failed)?;
        Ok(SlotSnapshot {
            mux: serde_json::from_str(&mux).map_err(failed)?,
            lanes: serde_json::from_str(&lanes).map_err(failed)?,
            running: self.server.is_some(),
            writing: !self.unwritten.is_empty(),
            start_at: slot.start_at(),
            deserted_since: slot.deserted_since(),
            first_process: None,
        })
    }

    fn has_room(&self, kernel: &Kernel) -> bool {
        let takes = |it: &Server| !it.is_stopped && kernel.waiting(it.stdin) < ROOM;
        self.server.as_ref().is_some_and(takes)
    }
}

impl Daemon {
    pub(super) fn is_slot_ready(&self, id: SlotId, slot: &Slot, kernel: &Kernel) -> bool {
        match &slot.server {
            None => slot.start || slot.stop,
            Some(server) => {
                (slot.stop && !server.is_stopped)
                    || (!server.stdout_closed && kernel.readable(server.stdout))
                    || (server.stdout_closed && kernel.tree_is_empty(server.pid))
                    || self.may_feed(id, slot, kernel)
            }
        }
    }

    fn may_feed(&self, id: SlotId, slot: &Slot, kernel: &Kernel) -> bool {
        let queued = self
            .engine
            .slot(id)
            .is_some_and(|it| !it.lanes().is_empty());
        (queued || !slot.unwritten.is_empty()) && slot.has_room(kernel)
    }

    /// One thing at one slot.
    pub(super) fn attend_slot(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let ready = self.slots.iter();
        let ready = ready.filter(|(id, slot)| self.is_slot_ready(**id, slot, kernel));
        let ready: Vec<SlotId> = ready.map(|(id, _)| *id).collect();
        if ready.is_empty() {
            return false;
        }
        let id = ready[salt as usize / 5 % ready.len()];
        let Some(slot) = self.slots.get_mut(&id) else {
            return false;
        };
        let Some(server) = &mut slot.server else {
            match slot.stop {
                true => self.end_slot(id, kernel),
                false => self.start_server(id, kernel),
            }
            return true;
        };
        if slot.stop && !server.is_stopped {
            kernel.close_write(server.stdin);
            kernel.stop_tree(server.pid);
            server.is_stopped = true;
            return true;
        }
        let (pid, stdout, stdout_closed) = (server.pid, server.stdout, server.stdout_closed);
        if stdout_closed && kernel.tree_is_empty(pid) {
            self.end_slot(id, kernel);
            return true;
        }
        let speaks = !stdout_closed && kernel.readable(stdout);
        let feeds = self.may_feed(id, &self.slots[&id], kernel);
        if feeds && (!speaks || salt.is_multiple_of(3)) {
            self.feed(id, kernel);
            return true;
        }
        match kernel.read(stdout) {
            Heard::Line(line) => {
                let line = InputLine::from(&line[..]);
                self.engine.server_line(id, line, kernel.now);
            }
            Heard::End => {
                if let Some(server) = self.slots.get_mut(&id).and_then(|it| it.server.as_mut()) {
                    server.stdout_closed = true;
                }
                self.lose_server(id, kernel);
            }
            Heard::Nothing => {}
        }
        true
    }

    fn start_server(&mut self, id: SlotId, kernel: &mut Kernel) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.start = false;
        if kernel.shortage == Some(Shortage::Servers) {
            let failure = StartFailure {
                detail: "no descriptors".to_owned(),
                exit: None,
                shortage: true,
            };
            return self.engine.server_refused(id, failure, kernel.now);
        }
        let class = self.engine.slot(id).map(|slot| slot.mux().class());
        let alone = class.filter(|it| it.is_shared()).map(ToString::to_string);
        let (pid, stdin, stdout) = kernel.start_server(self.pid, alone);
        kernel.say(self.pid, || format!("starts {pid} for slot {}", id.0));
        slot.server = Some(Server {
            pid,
            stdin,
            stdout,
            is_stopped: false,
            stdout_closed: false,
        });
        self.engine.server_started(id);
    }

    pub(super) fn write_to_server(
        &mut self,
        id: SlotId,
        lane: Lane,
        line: Owned,
        by: Option<ClientId>,
        kernel: &mut Kernel,
    ) {
        match self.slots.get(&id) {
            Some(slot) if slot.has_room(kernel) => {
                let stdin = slot.server.as_ref().map(|it| it.stdin);
                stdin.map(|stdin| kernel.write(stdin, &line));
            }
            _ => self.engine.queue_for_server(id, lane, line, by),
        }
    }

    /// Writes one line to a server.
    fn feed(&mut self, id: SlotId, kernel: &mut Kernel) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        if slot.unwritten.is_empty()
            && let Some(chunk) = self.engine.next_chunk(id)
        {
            let lines = chunk.split(|&byte| byte == b'\n').rev().skip(1);
            slot.unwritten = lines.map(<[u8]>::to_vec).collect();
        }
        if let (Some(server), Some(line)) = (slot.server, slot.unwritten.pop()) {
            kernel.write(server.stdin, &line);
        }
        self.engine.set_writing(id, !slot.unwritten.is_empty());
    }

    pub(super) fn lose_server(&mut self, id: SlotId, kernel: &mut Kernel) {
        let Some(slot) = self.slots.get(&id) else {
            return;
        };
        let is_dead = slot.server.is_some_and(|it| !kernel.alive(it.pid));
        let ended = is_dead.then_some(Ending::Signal(9));
        let cut_off = slot.unwritten.iter().map(Vec::as_slice);
        self.engine
            .server_lost(id, ended, String::new(), cut_off, kernel.now);
    }

    fn end_slot(&mut self, id: SlotId, kernel: &mut Kernel) {
        self.slots.remove(&id);
        let clients = self.engine.clients_of(id).len();
        kernel.must(clients == 0, || {
            format!("{clients} clients have a server that is gone")
        });
        self.engine.slot_ended(id, kernel.now);
    }
}
