//! What is worth a line in the log.

use std::collections::VecDeque;
use std::fmt;

use crate::lifetime::ClientId;
use crate::message::{Key, Malformed};

/// Something odd that was dealt with. It never quotes a line, which may hold secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A line, or one message of it, was dropped: it is none.
    Malformed(Side, Malformed),

    /// A line was no JSON, and was repaired: its text was not UTF-8, or had control characters.
    Repaired(Side, Malformed),

    /// A request was refused with `-32600`: some SDKs drop such an id.
    OddId(Side, Key),

    /// A request was refused with `-32600`: one with this id waits for its answer already.
    DuplicateId(Side, Key),

    /// A second `initialize` of a client was refused with `-32600`.
    SecondInitialize(ClientId),

    /// A request was refused: it is of the other era, or not fit for its own.
    WrongEra(ClientId),

    /// A request whose method is a notification's was refused with `-32601`.
    NotificationWithId(ClientId),

    /// A notification whose method is a request's was dropped.
    RequestWithoutId(ClientId),

    /// A batch was refused with `-32600`: this version of the protocol has none.
    NoBatches(ClientId),

    /// An answer was dropped: nobody waits for it. It is late, or a second one, or names none.
    UnknownAnswer(Side, Option<Key>),

    /// A cancellation was dropped: no such request is in flight.
    UnknownCancel(Side, Key),

    /// Progress was dropped: the server asked this client nothing of which it wants to hear it.
    UnknownProgress(ClientId),

    /// A cancellation of `initialize` was dropped: the protocol forbids it.
    InitializeCancelled(ClientId),

    /// A notification of the server was dropped: whom it is for cannot be told.
    Unaddressed(Unaddressed),

    /// A client asked for a task of another session, and was refused with `-32602`.
    ForeignTask(ClientId),

    /// The server asked something, and it cannot be told whom: it was answered with an error, and
    /// the server takes no new clients.
    Ambiguous,

    /// The server asked something of a client that is gone, and was answered with an error.
    ClientGone,

    /// A line was dropped: its client is not attached.
    NotAttached(ClientId),

    /// This many notes were not kept.
    Unnoted(usize),
}

/// A notification of the server that names nobody who is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unaddressed {
    /// Progress of a request that is over, or never was.
    Progress,
    /// A message for the log of one of several requests, or of none.
    Log,
    /// Of a subscription that is over, or never was.
    Subscription,
    /// Of a resource that nobody subscribed to.
    Update,
    /// About a task whose owner is unknown or gone.
    Task,
    /// The end of an elicitation that nobody is known to have been asked.
    Elicitation,
}

/// Who sent a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// One of the clients.
    Client(ClientId),
    /// The server.
    Server,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Side::Client(client) => write!(f, "client {}", client.0),
            Side::Server => write!(f, "the server"),
        }
    }
}

impl fmt::Display for Unaddressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unaddressed::Progress => write!(f, "progress of no request in flight"),
            Unaddressed::Log => write!(f, "a log message that is not of one request alone"),
            Unaddressed::Subscription => write!(f, "a notification of no open subscription"),
            Unaddressed::Update => write!(f, "an update of a resource that nobody subscribed to"),
            Unaddressed::Task => write!(f, "a notification of a task whose owner is not here"),
            Unaddressed::Elicitation => write!(f, "the end of an elicitation of nobody here"),
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
            Note::SecondInitialize(client) => {
                write!(f, "refused a second initialize of client {}", client.0)
            }
            Note::WrongEra(client) => {
                write!(
                    f,
                    "refused a request of client {}: not of this era",
                    client.0
                )
            }
            Note::NotificationWithId(client) => {
                let client = client.0;
                write!(f, "refused a notification of client {client}: it has an id")
            }
            Note::RequestWithoutId(client) => {
                write!(f, "dropped a request of client {}: it has no id", client.0)
            }
            Note::NoBatches(client) => {
                write!(
                    f,
                    "refused a batch of client {}: its version has none",
                    client.0
                )
            }
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
            Note::UnknownProgress(client) => {
                write!(
                    f,
                    "dropped progress of client {}: of nothing that it was asked",
                    client.0
                )
            }
            Note::InitializeCancelled(client) => {
                let client = client.0;
                write!(
                    f,
                    "dropped a cancellation of client {client}: initialize cannot be cancelled"
                )
            }
            Note::Unaddressed(what) => write!(f, "dropped {what}"),
            Note::ForeignTask(client) => {
                write!(f, "refused client {} a task of another session", client.0)
            }
            Note::Ambiguous => write!(
                f,
                "the server asked something that could be any client's: answered with an error, and no client joins it any more"
            ),
            Note::ClientGone => write!(
                f,
                "the server asked something of a client that is gone: answered with an error"
            ),
            Note::NotAttached(client) => {
                write!(
                    f,
                    "dropped a line of client {}: it is not attached",
                    client.0
                )
            }
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
