//! Notes for the log.

use std::fmt;

use crate::lifetime::ClientId;
use crate::note::LineNote;

/// An anomaly that the mux handled. It never quotes a line, which may contain secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// An anomaly of one message.
    Line(LineNote<Side>),

    /// A second `initialize` of a client was refused with `-32600`.
    SecondInitialize(ClientId),

    /// A request was refused: it belongs to the other era, or is incomplete.
    WrongEra(ClientId),

    /// A request with the method of a notification was refused with `-32601`.
    NotificationWithId(ClientId),

    /// A notification with the method of a request was dropped.
    RequestWithoutId(ClientId),

    /// A batch was refused with `-32600`: this protocol version has no batches.
    NoBatches(ClientId),

    /// Progress of a client was dropped: no server request has this token.
    UnknownProgress(ClientId),

    /// A cancellation of `initialize` was dropped: the protocol forbids it.
    InitializeCancelled(ClientId),

    /// A notification of the server was dropped: its recipient is unknown.
    Unaddressed(Unaddressed),

    /// A request about a task of another session was refused with `-32602`.
    ForeignTask(ClientId),

    /// A server request could be for several clients. The server got an error, and no more clients join it.
    Ambiguous,

    /// The client of a server request is gone. The server got an error.
    ClientGone,

    /// A line was dropped: its client is not attached.
    NotAttached(ClientId),

    /// Number of notes that were dropped because too many were pending.
    MoreNotes(usize),
}

/// A notification of the server without a known recipient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unaddressed {
    /// Progress of a request that is not in flight.
    Progress,
    /// A log message although the server works on no request that wants log messages, or on several.
    Log,
    /// A notification of a subscription that is not open.
    Subscription,
    /// An update of a resource without subscribers.
    Update,
    /// A notification about a task whose session is unknown or gone.
    Task,
    /// The end of an elicitation of an unknown client.
    Elicitation,
}

/// The sender of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A client.
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
            Unaddressed::Progress => write!(f, "progress of a request that is not in flight"),
            Unaddressed::Log => write!(f, "a log message that could belong to several requests"),
            Unaddressed::Subscription => {
                write!(f, "a notification of a subscription that is not open")
            }
            Unaddressed::Update => write!(f, "an update of a resource without subscribers"),
            Unaddressed::Task => write!(f, "a notification of a task whose client is unknown"),
            Unaddressed::Elicitation => {
                write!(f, "the end of an elicitation whose client is unknown")
            }
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Line(note) => write!(f, "{note}"),
            Note::SecondInitialize(client) => {
                write!(f, "refused a second initialize of client {}", client.0)
            }
            Note::WrongEra(client) => {
                write!(
                    f,
                    "refused a request of client {}: wrong protocol era",
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
                    "refused a batch of client {}: its protocol version has no batches",
                    client.0
                )
            }
            Note::UnknownProgress(client) => {
                write!(
                    f,
                    "dropped progress of client {}: unknown progress token",
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
                "a server request could be for several clients: answered with an error; no more clients join this server"
            ),
            Note::ClientGone => write!(
                f,
                "the client of a server request is gone: answered with an error"
            ),
            Note::NotAttached(client) => {
                write!(
                    f,
                    "dropped a line of client {}: it is not attached",
                    client.0
                )
            }
            Note::MoreNotes(count) => write!(f, "and {count} more like these"),
        }
    }
}

impl From<LineNote<Side>> for Note {
    fn from(note: LineNote<Side>) -> Note {
        Note::Line(note)
    }
}
