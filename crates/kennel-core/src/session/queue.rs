//! The app's lines that wait for an upstream.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{Key, Message};

use super::batch;

/// How many bytes may wait before the app's pipe is the better place for the rest.
pub const QUEUE_LIMIT: usize = 1 << 20;

/// Where a line stands in the queue: what is to be sent again stands before all that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Ticket(i64);

/// A line, and the requests in it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) line: Vec<u8>,
    pub(super) requests: Vec<Key>,
    /// Those of them that were cancelled meanwhile: taken out of the line when it goes.
    cancelled: BTreeSet<Key>,
    /// It was sent before. Its bytes were bounded then, and do not keep the app from being heard.
    again: bool,
}

impl Waiting {
    /// What is left of it when what was cancelled is taken out. `None`: nothing.
    fn without_cancelled(mut self) -> Option<Waiting> {
        if !self.cancelled.is_empty() {
            self.line = without(&self.line, &self.cancelled)?;
            self.requests.retain(|it| !self.cancelled.contains(it));
            self.cancelled.clear();
        }
        Some(self)
    }

    fn counts(&self) -> usize {
        match self.again {
            true => 0,
            false => self.line.len(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: BTreeMap<Ticket, Waiting>,
    bytes: usize,
    next: i64,
    /// The place of the one that stood in front most lately.
    first: i64,
}

impl Queue {
    /// The place the next line will have.
    pub(super) fn next_ticket(&self) -> Ticket {
        Ticket(self.next)
    }

    pub(super) fn push(&mut self, line: Vec<u8>, requests: Vec<Key>) {
        let waiting = Waiting {
            line,
            requests,
            cancelled: BTreeSet::new(),
            again: false,
        };
        self.bytes += waiting.counts();
        self.lines.insert(Ticket(self.next), waiting);
        self.next += 1;
    }

    /// The place before all others.
    pub(super) fn front(&mut self) -> Ticket {
        self.first -= 1;
        Ticket(self.first)
    }

    /// A request that was sent before, at its place.
    pub(super) fn put_back(&mut self, at: Ticket, line: Vec<u8>, request: Key) {
        let waiting = Waiting {
            line,
            requests: vec![request],
            cancelled: BTreeSet::new(),
            again: true,
        };
        self.lines.insert(at, waiting);
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        loop {
            let (_, waiting) = self.lines.pop_first()?;
            self.bytes -= waiting.counts();
            if let Some(waiting) = waiting.without_cancelled() {
                return Some(waiting);
            }
        }
    }

    /// Takes a request out again: its line, or its part of a batch. A batch is rebuilt once, however many of it are
    /// cancelled.
    pub(super) fn cancel(&mut self, ticket: Ticket, key: &Key) {
        let Some(waiting) = self.lines.get_mut(&ticket) else {
            return;
        };
        waiting.cancelled.insert(key.clone());
        if waiting.cancelled.len() < waiting.requests.len() {
            return;
        }
        if let Some(waiting) = self.lines.remove(&ticket) {
            self.bytes -= waiting.counts();
            if let Some(rest) = waiting.without_cancelled() {
                self.bytes += rest.counts();
                self.lines.insert(ticket, rest);
            }
        }
    }

    /// Forgets all but these requests, which stand alone.
    pub(super) fn keep_only(&mut self, kept: impl Fn(&Key) -> bool) {
        self.lines
            .retain(|_, waiting| waiting.requests.iter().any(&kept));
        self.bytes = self.lines.values().map(Waiting::counts).sum();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What is left of a line when these requests are taken out. `None`: nothing.
fn without(line: &[u8], keys: &BTreeSet<Key>) -> Option<Vec<u8>> {
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

    fn queue() -> (Queue, Ticket) {
        let mut queue = Queue::default();
        let ticket = queue.next_ticket();
        queue.push(BATCH.to_vec(), vec![Key::Number(1), Key::Number(2)]);
        (queue, ticket)
    }

    #[test]
    fn what_was_cancelled_of_a_batch_does_not_go_with_it() {
        let (mut queue, ticket) = queue();
        queue.cancel(ticket, &Key::Number(1));
        let popped = queue.pop().expect("a line");
        assert_eq!(popped.line, br#"[{"jsonrpc":"2.0","id":2,"method":"x"}]"#);
        assert_eq!(popped.requests, [Key::Number(2)]);
        assert_eq!((queue.is_empty(), queue.bytes()), (true, 0));
    }

    #[test]
    fn a_batch_of_which_all_was_cancelled_is_gone_at_once() {
        let (mut queue, ticket) = queue();
        queue.cancel(ticket, &Key::Number(1));
        queue.cancel(ticket, &Key::Number(2));
        assert_eq!((queue.is_empty(), queue.bytes()), (true, 0));
        assert!(queue.pop().is_none());
    }
}
