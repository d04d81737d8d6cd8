//! Why a line is not a message.

use std::fmt;

use super::BATCH_LIMIT;

/// Why a line is not a message. Its text completes "dropped a line from the server: …". It never quotes the line, which
/// may contain secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// A newline inside, at least for some readers.
    Newline,

    /// The line begins with `!`, like Kennel's control messages.
    Reserved,

    /// Not UTF-8.
    NotText {
        /// Number of valid bytes.
        at: usize,
    },

    /// Not one JSON value.
    NotJson {
        /// The position of the error, from 1 on.
        at: usize,
    },

    /// JSON, but not a JSON-RPC 2.0 message.
    Shape(&'static str),

    /// A batch of more than [`BATCH_LIMIT`] messages.
    LongBatch,
}

impl Malformed {
    /// Whether the line is a message that some readers would take for several lines.
    pub(crate) fn is_split(self, line: &[u8]) -> bool {
        self == Malformed::Newline && !line.contains(&b'\n')
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Newline => write!(f, "a newline inside"),
            Malformed::Reserved => write!(f, "it begins with `!`"),
            Malformed::NotText { at } => write!(f, "not UTF-8 after {at} bytes"),
            Malformed::NotJson { at } => write!(f, "not JSON at byte {at}"),
            Malformed::Shape(why) => write!(f, "not JSON-RPC 2.0: {why}"),
            Malformed::LongBatch => write!(
                f,
                "a batch of more than {BATCH_LIMIT} messages: send several batches"
            ),
        }
    }
}

impl std::error::Error for Malformed {}
