//! The app's lines that wait for an upstream.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{Key, Message};

use super::batch;

/// Maximum bytes that are queued before the app's input is left in its pipe.
pub const QUEUE_LIMIT: usize = 1 << 20;

/// The position of a line in the queue. Replayed requests are in front of all others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Position(i64);

/// A queued line and its requests.
#[derive(Debug)]
pub(super) struct QueuedLine {
    pub(super) line: Vec<u8>,
    pub(super) requests: Vec<Key>,
    /// The requests that were cancelled: removed from the line when it is sent.
    cancelled: BTreeSet<Key>,
    /// Whether it is replayed. Its bytes were limited before, and do not stop the app from being read.
    is_replayed: bool,
}

impl QueuedLine {
    /// Removes the cancelled requests. `None`: nothing is left.
    fn without_cancelled(mut self) -> Option<QueuedLine> {
        if !self.cancelled.is_empty() {
            self.line = without_requests(&self.line, &self.cancelled)?;
            self.requests.retain(|it| !self.cancelled.contains(it));
            self.cancelled.clear();
        }
        Some(self)
    }

    fn counts(&self) -> usize {
        match self.is_replayed {
            true => 0,
            false => self.line.len(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: BTreeMap<Position, QueuedLine>,
    bytes: usize,
    next: i64,
    /// The position of the latest replayed request.
    first: i64,
}

impl Queue {
    /// The position of the next line.
    pub(super) fn next_position(&self) -> Position {
        Position(self.next)
    }

    pub(super) fn push(&mut self, line: Vec<u8>, requests: Vec<Key>) {
        let queued = QueuedLine {
            line,
            requests,
            cancelled: BTreeSet::new(),
            is_replayed: false,
        };
        self.bytes += queued.counts();
        self.lines.insert(Position(self.next), queued);
        self.next += 1;
    }

    /// Assigns the position before all others.
    pub(super) fn front(&mut self) -> Position {
        self.first -= 1;
        Position(self.first)
    }

    /// Adds a replayed request at its position.
    pub(super) fn put_back(&mut self, at: Position, line: Vec<u8>, request: Key) {
        let queued = QueuedLine {
            line,
            requests: vec![request],
            cancelled: BTreeSet::new(),
            is_replayed: true,
        };
        self.lines.insert(at, queued);
    }

    pub(super) fn pop(&mut self) -> Option<QueuedLine> {
        loop {
            let (_, queued) = self.lines.pop_first()?;
            self.bytes -= queued.counts();
            if let Some(queued) = queued.without_cancelled() {
                return Some(queued);
            }
        }
    }

    /// Removes a request: its line, or its part of a batch. A batch is built is_replayed only once, however many of its
    /// requests are cancelled.
    pub(super) fn cancel(&mut self, position: Position, key: &Key) {
        let Some(queued) = self.lines.get_mut(&position) else {
            return;
        };
        queued.cancelled.insert(key.clone());
        if queued.cancelled.len() < queued.requests.len() {
            return;
        }
        if let Some(queued) = self.lines.remove(&position) {
            self.bytes -= queued.counts();
            if let Some(rest) = queued.without_cancelled() {
                self.bytes += rest.counts();
                self.lines.insert(position, rest);
            }
        }
    }

    /// Removes all lines without any of these requests.
    pub(super) fn keep_only(&mut self, kept: impl Fn(&Key) -> bool) {
        self.lines
            .retain(|_, queued| queued.requests.iter().any(&kept));
        self.bytes = self.lines.values().map(QueuedLine::counts).sum();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Removes these requests from a batch. `None`: nothing is left.
fn without_requests(line: &[u8], keys: &BTreeSet<Key>) -> Option<Vec<u8>> {
    let Ok(Message::Batch(batch)) = Message::parse(line) else {
        return None;
    };
    let others = batch.members.iter().filter(|member| match member.message {
        Message::Request(request) => !keys.contains(&request.id.key()),
        _ => true,
    });
    batch::join(others.map(|member| member.whole.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: &[u8] =
        br#"[{"jsonrpc":"2.0","id":1,"method":"x"},{"jsonrpc":"2.0","id":2,"method":"x"}]"#;

    fn queue() -> (Queue, Position) {
        let mut queue = Queue::default();
        let position = queue.next_position();
        queue.push(BATCH.to_vec(), vec![Key::Number(1), Key::Number(2)]);
        (queue, position)
    }

    #[test]
    fn what_was_cancelled_of_a_batch_does_not_go_with_it() {
        let (mut queue, position) = queue();
        queue.cancel(position, &Key::Number(1));
        let popped = queue.pop().expect("a line");
        assert_eq!(popped.line, br#"[{"jsonrpc":"2.0","id":2,"method":"x"}]"#);
        assert_eq!(popped.requests, [Key::Number(2)]);
        assert_eq!((queue.is_empty(), queue.bytes()), (true, 0));
    }

    #[test]
    fn a_batch_of_which_all_was_cancelled_is_gone_at_once() {
        let (mut queue, position) = queue();
        queue.cancel(position, &Key::Number(1));
        queue.cancel(position, &Key::Number(2));
        assert_eq!((queue.is_empty(), queue.bytes()), (true, 0));
        assert!(queue.pop().is_none());
    }
}
