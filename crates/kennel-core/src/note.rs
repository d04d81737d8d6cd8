//! Notes for the log: anomalies of single lines, and a bounded list of notes.

use std::collections::VecDeque;
use std::fmt;

use crate::message::{Key, Malformed};

/// A message that was dropped, refused or repaired; `Side` sent it. It never quotes the message, which may contain
/// secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LineNote<Side> {
    /// A line, or one message of a batch, was dropped because it is not a message.
    Malformed(Side, Malformed),

    /// A line was invalid JSON and was repaired: not UTF-8, or control characters in a string.
    Repaired(Side, Malformed),

    /// A request was refused with `-32600`: some SDKs drop ids like this one.
    OddId(Side, Key),

    /// A request was refused with `-32600`: its id is in flight already.
    DuplicateId(Side, Key),

    /// A response was dropped: no request with its id is in flight.
    UnknownAnswer(Side, Option<Key>),

    /// A cancellation was dropped: no request with its id is in flight.
    UnknownCancel(Side, Key),
}

impl<Side: fmt::Display> fmt::Display for LineNote<Side> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineNote::Malformed(side, why) => write!(f, "dropped a line from {side}: {why}"),
            LineNote::Repaired(side, why) => write!(f, "repaired a line from {side}: {why}"),
            LineNote::OddId(side, id) => {
                write!(f, "refused a request of {side}: some SDKs drop the id {id}")
            }
            LineNote::DuplicateId(side, id) => {
                write!(f, "refused a request of {side}: its id {id} is in flight")
            }
            LineNote::UnknownAnswer(side, Some(id)) => {
                write!(f, "dropped a response of {side}: id {id} is not in flight")
            }
            LineNote::UnknownAnswer(side, None) => {
                write!(f, "dropped an error of {side} without id")
            }
            LineNote::UnknownCancel(side, id) => {
                write!(
                    f,
                    "dropped a cancellation of {side}: id {id} is not in flight"
                )
            }
        }
    }
}

/// Pending notes; bounded, so that bad lines cannot use up memory.
#[derive(Debug)]
pub(crate) struct Notes<Note> {
    kept: VecDeque<Note>,
    dropped: usize,
}

impl<Note> Notes<Note> {
    const LIMIT: usize = 64;

    pub(crate) fn push(&mut self, note: impl Into<Note>) {
        if self.kept.len() < Self::LIMIT {
            self.kept.push_back(note.into());
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the next note; after the last one, `more` with the number of notes that were dropped.
    pub(crate) fn pop(&mut self, more: impl FnOnce(usize) -> Note) -> Option<Note> {
        self.kept.pop_front().or_else(|| {
            let count = std::mem::take(&mut self.dropped);
            (count > 0).then(|| more(count))
        })
    }
}

impl<Note> Default for Notes<Note> {
    fn default() -> Notes<Note> {
        Notes {
            kept: VecDeque::new(),
            dropped: 0,
        }
    }
}
