//! Lines for the present upstream only, which go ahead of the queue: the handshake, restored state, responses,
//! cancellations.

use std::collections::VecDeque;

/// Maximum bytes of queued responses of the session itself to server requests. A server that sends requests and never
/// reads must not use up memory.
const REPLIES_LIMIT: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct PriorityLines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl PriorityLines {
    pub(super) fn push_back(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    pub(super) fn extend(&mut self, lines: impl IntoIterator<Item = Vec<u8>>) {
        lines.into_iter().for_each(|line| self.push_back(line));
    }

    /// Queues a response of the session itself to a server request. Returns `false` if it was dropped, because too much
    /// is queued.
    pub(super) fn reply(&mut self, line: Vec<u8>) -> bool {
        let has_room = self.bytes < REPLIES_LIMIT;
        if has_room {
            self.push_back(line);
        }
        has_room
    }

    pub(super) fn pop_front(&mut self) -> Option<Vec<u8>> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }

    pub(super) fn clear(&mut self) {
        *self = PriorityLines::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
