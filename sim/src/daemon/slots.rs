//! The processes and pipes of the daemon's servers.

use kennel_core::engine::daemon::{InputLine, SlotId, StartFailure};
use kennel_core::message::Owned;
use kennel_core::mux::{ClientId, Lane};
use kennel_core::session::ServerExit;

use super::Daemon;
use crate::coverage::Situation;
use crate::kernel::{Kernel, Pid, PipeId, Shortage};
use crate::lines::Inbox;
use crate::part;

#[derive(Default)]
pub(super) struct Slot {
    /// The session that opened it.
    pub(super) session: String,
    /// The engine wants its server started.
    pub(super) start: bool,
    /// The engine wants its server stopped.
    pub(super) stop: bool,
    pub(super) unwritten: Unwritten,
    pub(super) server: Option<SlotServer>,
}

/// Whole lines taken from the engine, and how much of them is written.
#[derive(Default)]
pub(super) struct Unwritten {
    pub(super) lines: Vec<u8>,
    pub(super) done: usize,
}

impl Unwritten {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Writes as much as fits.
    fn write_some(&mut self, to: PipeId, kernel: &mut Kernel) {
        let was_cut_off = self.cut_off().count();
        self.done += kernel.write(to, &self.lines[self.done..]);
        let lines = self.lines.split_inclusive(|&byte| byte == b'\n');
        let is_cut_off = self.cut_off().count();
        let first = lines.clone().count() - was_cut_off;
        for line in lines.skip(first).take(was_cut_off - is_cut_off) {
            kernel.request_log.reached_server(line);
        }
        if self.done == self.lines.len() {
            *self = Unwritten::default();
        }
    }

    /// The lines that are not written to their last byte; the newline does not count.
    fn cut_off(&self) -> impl Iterator<Item = &[u8]> {
        let mut end = 0;
        let lines = self.lines.split_inclusive(|&byte| byte == b'\n');
        lines.filter_map(move |line| {
            let start = end;
            end += line.len();
            let line = line.trim_ascii_end();
            (self.done < start + line.len()).then_some(line)
        })
    }
}

pub(super) struct SlotServer {
    pid: Pid,
    stdin: PipeId,
    stdout: PipeId,
    pub(super) from: Inbox,
    /// Its warden has begun to stop it.
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
        let runs_on = |it: &SlotServer| !it.is_stopped && !it.stdout_closed;
        !self.stop && self.server.as_ref().is_none_or(runs_on)
    }

    fn has_room(&self, kernel: &Kernel) -> bool {
        let is_writable = |it: &SlotServer| !it.is_stopped && kernel.has_room(it.stdin);
        self.server.as_ref().is_some_and(is_writable)
    }
}

impl Daemon {
    pub(super) fn slot_is_ready(&self, id: SlotId, slot: &Slot, kernel: &Kernel) -> bool {
        match &slot.server {
            None => slot.start || slot.stop,
            Some(server) => {
                (slot.stop && !server.is_stopped)
                    || server.from.has_line()
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

    /// Does one thing in one slot.
    pub(super) fn advance_one_slot(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let ready = self.slots.iter();
        let ready = ready.filter(|(id, slot)| self.slot_is_ready(**id, slot, kernel));
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
        if stdout_closed && !server.from.has_line() && kernel.tree_is_empty(pid) {
            self.end_slot(id, kernel);
            return true;
        }
        let has_line = server.from.has_line();
        let is_readable = has_line || (!stdout_closed && kernel.readable(stdout));
        let may_feed = self.may_feed(id, &self.slots[&id], kernel);
        if may_feed && (!is_readable || salt.is_multiple_of(3)) {
            self.feed(id, kernel);
            return true;
        }
        self.read_server(id, salt, kernel);
        true
    }

    /// Handles a line of a server, or reads some of its output.
    fn read_server(&mut self, id: SlotId, salt: u64, kernel: &mut Kernel) {
        let Some(server) = self.slots.get_mut(&id).and_then(|it| it.server.as_mut()) else {
            return;
        };
        if !server.from.has_line() && !server.stdout_closed {
            server.stdout_closed = !server.from.read(server.stdout, part(salt), kernel);
            if server.stdout_closed {
                return self.lose_server(id, kernel);
            }
        }
        if let Some(line) = server.from.next_line() {
            let line = InputLine::from(&line[..]);
            self.engine.handle_server_line(id, line, kernel.now);
        }
    }

    fn start_server(&mut self, id: SlotId, kernel: &mut Kernel) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.start = false;
        if kernel.shortage == Some(Shortage::Servers) {
            kernel.occurred(Situation::DaemonLacks);
            let failure = StartFailure {
                detail: "no descriptors".to_owned(),
                exit: None,
                shortage: true,
            };
            return self.engine.handle_start_failure(id, failure, kernel.now);
        }
        let class = self.engine.slot(id).map(|slot| slot.mux().class());
        let alone = class.filter(|it| it.is_shared()).map(ToString::to_string);
        let (pid, stdin, stdout) = kernel.start_server(self.pid, alone);
        kernel.trace(self.pid, || format!("starts {pid} for slot {}", id.0));
        slot.server = Some(SlotServer {
            pid,
            stdin,
            stdout,
            from: Inbox::default(),
            is_stopped: false,
            stdout_closed: false,
        });
        self.engine.handle_server_started(id);
    }

    pub(super) fn write_to_server(
        &mut self,
        id: SlotId,
        lane: Lane,
        line: Owned,
        by: Option<ClientId>,
        kernel: &mut Kernel,
    ) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        // A line of the action before this one may be written in part.
        let is_free = slot.unwritten.is_empty();
        let server = slot.server.as_ref().filter(|it| is_free && !it.is_stopped);
        let Some(server) = server else {
            return self.engine.queue_for_server(id, lane, line, by);
        };
        let lines = [&line[..], b"\n"].concat();
        slot.unwritten = Unwritten { lines, done: 0 };
        slot.unwritten.write_some(server.stdin, kernel);
        self.engine.set_writing(id, !slot.unwritten.is_empty());
    }

    /// Writes some of the lines queued for a server.
    fn feed(&mut self, id: SlotId, kernel: &mut Kernel) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        if slot.unwritten.is_empty()
            && let Some(chunk) = self.engine.next_chunk(id)
        {
            let lines = chunk.to_vec();
            slot.unwritten = Unwritten { lines, done: 0 };
        }
        if let Some(server) = &slot.server {
            slot.unwritten.write_some(server.stdin, kernel);
        }
        self.engine.set_writing(id, !slot.unwritten.is_empty());
    }

    pub(super) fn lose_server(&mut self, id: SlotId, kernel: &mut Kernel) {
        let Some(slot) = self.slots.get(&id) else {
            return;
        };
        let is_dead = slot.server.as_ref().is_some_and(|it| !kernel.alive(it.pid));
        let ended = is_dead.then_some(ServerExit::Signal(9));
        let cut_off = slot.unwritten.cut_off();
        self.engine
            .handle_server_lost(id, ended, String::new(), cut_off, kernel.now);
    }

    fn end_slot(&mut self, id: SlotId, kernel: &mut Kernel) {
        self.slots.remove(&id);
        let clients = self.engine.clients_of(id).len();
        kernel.check(clients == 0, || {
            format!("{clients} clients have a server that is gone")
        });
        self.engine.handle_slot_ended(id, kernel.now);
    }
}
