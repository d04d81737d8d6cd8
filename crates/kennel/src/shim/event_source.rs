//! Event sources of the shim and their tokens.

use kennel_sys::io::Token;

/// The source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EventSource {
    Signals,
    /// A process whose exit ends the session.
    Starter,
    Stdin,
    Stdout,
    Stderr,
    ServerStdin,
    ServerStdout,
    ServerStderr,
    /// Reports of the warden.
    Reports,
    Election,
    /// The connection to a daemon: its socket and its pipes.
    Daemon,
}

impl EventSource {
    const ALL: [EventSource; 11] = [
        EventSource::Signals,
        EventSource::Starter,
        EventSource::Stdin,
        EventSource::Stdout,
        EventSource::Stderr,
        EventSource::ServerStdin,
        EventSource::ServerStdout,
        EventSource::ServerStderr,
        EventSource::Reports,
        EventSource::Election,
        EventSource::Daemon,
    ];

    pub(super) fn token(self) -> Token {
        Token(self as u64)
    }

    pub(super) fn of(token: Token) -> Option<EventSource> {
        let index = usize::try_from(token.0).ok()?;
        EventSource::ALL.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_origin_is_known_by_its_token() {
        for origin in EventSource::ALL {
            assert_eq!(EventSource::of(origin.token()), Some(origin));
        }
        assert_eq!(EventSource::of(Token(u64::MAX)), None);
    }
}
