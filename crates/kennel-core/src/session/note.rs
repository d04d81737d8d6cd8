//! Notes for the log.

use std::fmt;

use crate::note::LineNote;

/// An anomaly that the session handled. It never quotes a line, which may contain secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// An anomaly of one message.
    Line(LineNote<Side>),

    /// A second `initialize` was refused with `-32600`.
    SecondInitialize,

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
    MoreNotes(usize),
}

/// The sender of a line.
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
            Note::Line(note) => write!(f, "{note}"),
            Note::SecondInitialize => write!(f, "refused a second initialize of the app"),
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
                "dropped a response to the server: it does not read its input"
            ),
            Note::Stale => write!(f, "dropped a line of a lost server"),
            Note::HandshakeRefused => write!(f, "the server refused the handshake of this session"),
            Note::StateRefused => write!(
                f,
                "the server refused a log level or a subscription that an earlier one had accepted"
            ),
            Note::Lost { again, refused } => write!(
                f,
                "the server was lost: {again} requests are replayed, {refused} answered with an error"
            ),
            Note::MoreNotes(count) => write!(f, "and {count} more like these"),
        }
    }
}

impl From<LineNote<Side>> for Note {
    fn from(note: LineNote<Side>) -> Note {
        Note::Line(note)
    }
}
