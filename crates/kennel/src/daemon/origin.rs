//! The daemon's sources of events, as tokens of its reactor.

use kennel_core::engine::daemon::SlotId;
use kennel_core::lifetime::ClientId;
use kennel_sys::io::Token;

/// A source of events. Numbers of clients and slots are never used again, so a late event of a removed one has no
/// receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Listener,
    /// SIGTERM, SIGINT and SIGHUP.
    Signals,
    /// SIGCHLD.
    Children,
    OwnerExit,
    ClientSocket(ClientId),
    /// The pipe from a client.
    ClientInput(ClientId),
    /// The pipe to a client.
    ClientOutput(ClientId),
    ClientExit(ClientId),
    ServerStdin(SlotId),
    ServerStdout(SlotId),
    ServerStderr(SlotId),
    /// The reports of a warden.
    Reports(SlotId),
    WardenExit(SlotId),
    /// The output of a newer build's check.
    CheckAnswer,
    CheckExit,
}

/// The lowest bits of a token are the kind, the others the number.
const KIND_BITS: u32 = 4;

impl Origin {
    pub(super) fn token(self) -> Token {
        let (kind, number) = match self {
            Origin::Listener => (0, 0),
            Origin::Signals => (1, 0),
            Origin::Children => (2, 0),
            Origin::OwnerExit => (3, 0),
            Origin::ClientSocket(id) => (4, id.0),
            Origin::ClientInput(id) => (5, id.0),
            Origin::ClientOutput(id) => (6, id.0),
            Origin::ClientExit(id) => (7, id.0),
            Origin::ServerStdin(slot) => (8, slot.0),
            Origin::ServerStdout(slot) => (9, slot.0),
            Origin::ServerStderr(slot) => (10, slot.0),
            Origin::Reports(slot) => (11, slot.0),
            Origin::WardenExit(slot) => (12, slot.0),
            Origin::CheckAnswer => (13, 0),
            Origin::CheckExit => (14, 0),
        };
        Token(number << KIND_BITS | kind)
    }

    pub(super) fn of(token: Token) -> Option<Origin> {
        let number = token.0 >> KIND_BITS;
        let (client, slot) = (ClientId(number), SlotId(number));
        Some(match token.0 & ((1 << KIND_BITS) - 1) {
            0 => Origin::Listener,
            1 => Origin::Signals,
            2 => Origin::Children,
            3 => Origin::OwnerExit,
            4 => Origin::ClientSocket(client),
            5 => Origin::ClientInput(client),
            6 => Origin::ClientOutput(client),
            7 => Origin::ClientExit(client),
            8 => Origin::ServerStdin(slot),
            9 => Origin::ServerStdout(slot),
            10 => Origin::ServerStderr(slot),
            11 => Origin::Reports(slot),
            12 => Origin::WardenExit(slot),
            13 => Origin::CheckAnswer,
            14 => Origin::CheckExit,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_origin_has_its_own_token() {
        let (client, slot) = (ClientId(1 << 40), SlotId(7));
        let all = [
            Origin::Listener,
            Origin::Signals,
            Origin::Children,
            Origin::OwnerExit,
            Origin::ClientSocket(client),
            Origin::ClientInput(client),
            Origin::ClientOutput(client),
            Origin::ClientExit(client),
            Origin::ServerStdin(slot),
            Origin::ServerStdout(slot),
            Origin::ServerStderr(slot),
            Origin::Reports(slot),
            Origin::WardenExit(slot),
            Origin::CheckAnswer,
            Origin::CheckExit,
        ];
        for origin in all {
            assert_eq!(Origin::of(origin.token()), Some(origin));
        }
        assert_eq!(Origin::of(Token(15)), None);
    }
}
