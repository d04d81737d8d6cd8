//! The app's lines that wait for an upstream.

use std::collections::BTreeMap;

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
    /// It was sent before. Its bytes were bounded then, and do not keep the app from being heard.
    again: bool,
}

impl Waiting {
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
            again: true,
        };
        self.lines.insert(at, waiting);
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let (_, waiting) = self.lines.pop_first()?;
        self.bytes -= waiting.counts();
        Some(waiting)
    }

    /// Takes a request out again: its line, or its part of a batch.
    pub(super) fn cancel(&mut self, ticket: Ticket, key: &Key) {
        let Some(mut waiting) = self.lines.remove(&ticket) else {
            return;
        };
        self.bytes -= waiting.counts();
        waiting.requests.retain(|request| request != key);
        if let Some(line) = without(&waiting.line, key) {
            waiting.line = line;
            self.bytes += waiting.counts();
            self.lines.insert(ticket, waiting);
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

/// What is left of a line when the request `key` is taken out. `None`: nothing.
fn without(line: &[u8], key: &Key) -> Option<Vec<u8>> {
    let Ok(Message::Batch(batch)) = Message::parse(line) else {
        return None;
    };
    let others = batch.members.iter().filter(|member| match member.message {
        Message::Request(request) => request.id.key() != *key,
        _ => true,
    });
    batch::join(others.map(|member| member.whole.bytes()))
}
