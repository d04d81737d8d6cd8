//! Lines for the present upstream alone, which go ahead of the queue: the handshake, the log level and the subscriptions,
//! answers, cancellations.

use std::collections::VecDeque;

/// Maximum bytes of replies to the server's own requests that wait for it. A server that asks and never reads gets no
/// more: nobody else must pay for it.
const REPLIES_LIMIT: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Urgent {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Urgent {
    pub(super) fn push_back(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    pub(super) fn extend(&mut self, lines: impl IntoIterator<Item = Vec<u8>>) {
        lines.into_iter().for_each(|line| self.push_back(line));
    }

    /// Adds what Kennel itself answers to a request of the server; `false` if that is dropped, because so much waits.
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
        *self = Urgent::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
