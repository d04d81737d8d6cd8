//! What is worth a line in the log.

use std::collections::VecDeque;
use std::fmt;

use crate::message::{Key, Malformed};

/// Something odd that was dealt with. It never quotes a line, which may hold secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A line was dropped: it is no message.
    Malformed(Side, Malformed),

    /// A line was no JSON, and was repaired: its text was not UTF-8, or had control characters.
    Repaired(Side, Malformed),

    /// A request was refused with `-32600`: some SDKs drop such an id.
    OddId(Side, Key),

    /// A request was refused with `-32600`: one with this id waits for its answer already.
    DuplicateId(Side, Key),

    /// A second `initialize` was refused with `-32600`.
    SecondInitialize,

    /// An answer was dropped: nobody waits for it. It is late, or a second one, or names none.
    UnknownAnswer(Side, Option<Key>),

    /// A cancellation was dropped: no such request is in flight.
    UnknownCancel(Side, Key),

    /// A cancellation of the app was dropped: its id is longer than that of any request.
    LongCancel,

    /// A cancellation of `initialize` was dropped: the protocol forbids it.
    InitializeCancelled,

    /// A notification of the app was dropped: there is no server, and none expected.
    NotificationLost,

    /// An answer of the session's own to a request of the server was dropped: the server does not read those before it.
    ReplyDropped,

    /// A line was dropped: it came from an upstream that is lost already.
    Stale,

    /// The upstream answered the handshake with an error, as no earlier one had.
    HandshakeRefused,

    /// The upstream refused something that an earlier one had accepted: a log level, a subscription.
    StateRefused,

    /// The upstream was lost; of what it had been asked, this many requests are asked again, and this
    /// many were answered with an error.
    Lost {
        /// The next upstream gets them.
        again: usize,
        /// Their outcome is unknown, and a second time might do harm.
        refused: usize,
    },

    /// This many notes were not kept.
    Unnoted(usize),
}

/// Who sent a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The app.
    App,
    /// The server, or the daemon on its behalf.
    Upstream,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Side::App => write!(f, "the app"),
            Side::Upstream => write!(f, "the server"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Malformed(side, why) => write!(f, "dropped a line from {side}: {why}"),
            Note::Repaired(side, why) => write!(f, "repaired a line from {side}: {why}"),
            Note::OddId(side, id) => {
                write!(f, "refused a request of {side}: some SDKs drop the id {id}")
            }
            Note::DuplicateId(side, id) => {
                write!(f, "refused a request of {side}: its id {id} is in flight")
            }
            Note::SecondInitialize => write!(f, "refused a second initialize of the app"),
            Note::UnknownAnswer(side, Some(id)) => {
                write!(f, "dropped an answer of {side}: nobody waits for id {id}")
            }
            Note::UnknownAnswer(side, None) => write!(f, "dropped an error of {side} without id"),
            Note::UnknownCancel(side, id) => {
                write!(
                    f,
                    "dropped a cancellation of {side}: id {id} is not in flight"
                )
            }
            Note::LongCancel => {
                write!(f, "dropped a cancellation of the app: its id is too long")
            }
            Note::InitializeCancelled => {
                write!(
                    f,
                    "dropped a cancellation of the app: initialize cannot be cancelled"
                )
            }
            Note::NotificationLost => write!(f, "dropped a notification of the app: no server"),
            Note::ReplyDropped => write!(
                f,
                "dropped an answer for the server: it does not read those before it"
            ),
            Note::Stale => write!(f, "dropped a line of a server that is lost already"),
            Note::HandshakeRefused => write!(f, "the server refused the handshake of this session"),
            Note::StateRefused => write!(
                f,
                "the server refused a log level or a subscription that an earlier one had accepted"
            ),
            Note::Lost { again, refused } => write!(
                f,
                "the server was lost: {again} requests are sent again, {refused} answered with an error"
            ),
            Note::Unnoted(count) => write!(f, "and {count} more like these"),
        }
    }
}

/// Notes that wait to be asked for: a flood of bad lines must not become a flood of memory.
#[derive(Debug, Default)]
pub(super) struct Notes {
    kept: VecDeque<Note>,
    unnoted: usize,
}

impl Notes {
    const LIMIT: usize = 64;

    pub(super) fn push(&mut self, note: Note) {
        if self.kept.len() < Notes::LIMIT {
            self.kept.push_back(note);
        } else {
            self.unnoted += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<Note> {
        self.kept.pop_front().or_else(|| {
            let count = std::mem::take(&mut self.unnoted);
            (count > 0).then_some(Note::Unnoted(count))
        })
    }
}
