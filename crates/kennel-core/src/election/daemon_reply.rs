//! The first line of a daemon in response to a hello or `!ping`.

use super::Reply;
use crate::hello::{Control, DaemonHello, KEY_VERSION};

/// A daemon's response to a hello or `!ping`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonReply {
    /// The daemon accepted this client.
    Hello(DaemonHello),
    /// The daemon answers `!ping`.
    Pong,
    /// The daemon accepts clients with different keys: its build does not check keys, or computes those of an earlier
    /// version. This client's hello makes it become a newer build.
    Outdated,
    /// The daemon takes no new clients.
    Leaving,
    /// The connection was closed, or the line is not from a daemon.
    Closed,
}

impl DaemonReply {
    /// Reads a reply. `None`: a control message that is no reply, such as one of a later version.
    ///
    /// ```
    /// use kennel_core::election::DaemonReply;
    ///
    /// assert_eq!(DaemonReply::parse(b"!going"), Some(DaemonReply::Leaving));
    /// assert_eq!(DaemonReply::parse(b"!later {}"), None);
    /// assert_eq!(DaemonReply::parse(b"HTTP/1.1 400 Bad Request"), Some(DaemonReply::Closed));
    /// ```
    pub fn parse(line: &[u8]) -> Option<DaemonReply> {
        match DaemonHello::parse(line) {
            Ok(hello) if hello.checks_keys && hello.key_version >= KEY_VERSION => {
                return Some(DaemonReply::Hello(hello));
            }
            Ok(_) => return Some(DaemonReply::Outdated),
            Err(_) if line.starts_with(b"!hello ") => return Some(DaemonReply::Closed),
            Err(_) => {}
        }
        match Control::parse_from_daemon(line) {
            Some(Control::Pong) => Some(DaemonReply::Pong),
            Some(Control::Going | Control::Moved | Control::Stopped | Control::Resting) => {
                Some(DaemonReply::Leaving)
            }
            Some(_) => None,
            None => Some(DaemonReply::Closed),
        }
    }

    /// The kind of reply, as an election needs it.
    pub fn kind(&self) -> Reply {
        match self {
            DaemonReply::Hello(_) => Reply::Hello,
            DaemonReply::Pong => Reply::Pong,
            // The election waits and connects again: then to another daemon, or to another build.
            DaemonReply::Outdated | DaemonReply::Leaving => Reply::Leaving,
            DaemonReply::Closed => Reply::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_reply_or_skipped() {
        let hello = r#"!hello {"version":"0","protocol":1,"generation":"g","checks_keys":true,"key_version":3}"#;
        let former = r#"!hello {"version":"0","protocol":1,"generation":"g","checks_keys":true}"#;
        let outdated = r#"!hello {"version":"0","protocol":1,"generation":"g"}"#;
        let meanings = [
            (hello, Some(Reply::Hello)),
            (former, Some(Reply::Leaving)),
            (outdated, Some(Reply::Leaving)),
            ("!pong", Some(Reply::Pong)),
            ("!going", Some(Reply::Leaving)),
            ("!moved", Some(Reply::Leaving)),
            ("!stopped", Some(Reply::Leaving)),
            ("!resting", Some(Reply::Leaving)),
            ("!hello {}", Some(Reply::Closed)),
            (r#"{"jsonrpc":"2.0"}"#, Some(Reply::Closed)),
            ("", Some(Reply::Closed)),
            ("!hello", None),
            ("!stderr \"words\"", None),
            ("!later {}", None),
        ];
        for (line, expected) in meanings {
            let reply = DaemonReply::parse(line.as_bytes());
            assert_eq!(reply.map(|reply| reply.kind()), expected, "{line}");
        }
    }
}
