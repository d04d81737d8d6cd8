//! A driver for the engine of a server slot: the pipes of its server.

use kennel_core::engine::daemon::{ServerSlot, SlotKey};
use kennel_core::mux::Out;
use kennel_core::time::Moment;

use crate::kernel::{Kernel, Pid, PipeId};

/// How many lines a server's pipe takes: few, so that some wait.
const ROOM: usize = 3;

pub(crate) struct Slot {
    pub(crate) number: u64,
    pub(crate) key: SlotKey,
    pub(crate) start_at: Moment,
    pub(crate) engine: ServerSlot,
    /// Lines that were taken from the engine, until they are written.
    unwritten: Vec<Vec<u8>>,
    pub(crate) server: Option<Running>,
}

#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) stdin: PipeId,
    pub(crate) stdout: PipeId,
    /// Its warden was asked for the ladder.
    pub(crate) stopped: bool,
    /// It closed its output.
    pub(crate) silent: bool,
}

impl Slot {
    pub(crate) fn new(number: u64, key: SlotKey, engine: ServerSlot, start_at: Moment) -> Slot {
        Slot {
            number,
            key,
            start_at,
            engine,
            unwritten: Vec::new(),
            server: None,
        }
    }

    /// What follows for clients; what is for the server waits in its lane.
    pub(crate) fn settle(&mut self, now: Moment) -> Vec<Out> {
        let mut out = Vec::new();
        while let Some(next) = self.engine.mux_mut().poll() {
            match next {
                Out::ToServer { lane, line } => {
                    self.engine.request_sent(now);
                    self.engine.queue(lane, line, None);
                }
                other => out.push(other),
            }
        }
        while self.engine.mux_mut().poll_note().is_some() {}
        out
    }

    pub(crate) fn may_feed(&self, kernel: &Kernel) -> bool {
        let takes = |it: &Running| !it.stopped && kernel.waiting(it.stdin) < ROOM;
        let waits = !self.unwritten.is_empty() || !self.engine.lanes().is_empty();
        waits && self.server.as_ref().is_some_and(takes)
    }

    /// Writes one line to the server.
    pub(crate) fn feed(&mut self, kernel: &mut Kernel) {
        if self.unwritten.is_empty()
            && let Some(chunk) = self.engine.next_chunk()
        {
            let lines = chunk.split(|&byte| byte == b'\n').rev().skip(1);
            self.unwritten = lines.map(<[u8]>::to_vec).collect();
        }
        if let Some(server) = self.server
            && let Some(line) = self.unwritten.pop()
        {
            kernel.write(server.stdin, &line);
        }
        self.engine.set_writing(!self.unwritten.is_empty());
    }

    /// The lines that were taken from the engine and not written.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = &[u8]> {
        self.unwritten.iter().map(Vec::as_slice)
    }

    /// Another program goes on with it.
    pub(crate) fn is_carried_over(&mut self) -> Result<(), String> {
        let carried = |error: serde_json::Error| error.to_string();
        let mux = serde_json::to_string(self.engine.mux()).map_err(carried)?;
        let lanes = serde_json::to_string(self.engine.lanes()).map_err(carried)?;
        self.engine.restore(
            serde_json::from_str(&mux).map_err(carried)?,
            serde_json::from_str(&lanes).map_err(carried)?,
            !self.unwritten.is_empty(),
            self.engine.deserted_since(),
        );
        Ok(())
    }
}
