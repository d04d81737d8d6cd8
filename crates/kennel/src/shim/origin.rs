//! What an event of the shim's reactor is about.

use kennel_sys::io::Token;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Origin {
    Signals,
    /// A process whose end is the end of the session.
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

impl Origin {
    const ALL: [Origin; 11] = [
        Origin::Signals,
        Origin::Starter,
        Origin::Stdin,
        Origin::Stdout,
        Origin::Stderr,
        Origin::ServerStdin,
        Origin::ServerStdout,
        Origin::ServerStderr,
        Origin::Reports,
        Origin::Election,
        Origin::Daemon,
    ];

    pub(super) fn token(self) -> Token {
        Token(self as u64)
    }

    pub(super) fn of(token: Token) -> Option<Origin> {
        let place = usize::try_from(token.0).ok()?;
        Origin::ALL.get(place).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_origin_is_known_by_its_token() {
        for origin in Origin::ALL {
            assert_eq!(Origin::of(origin.token()), Some(origin));
        }
        assert_eq!(Origin::of(Token(u64::MAX)), None);
    }
}
