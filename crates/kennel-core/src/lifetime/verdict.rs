//! The end, and why.

use std::fmt;
use std::time::Duration;

use crate::time::{Moment, Spoken};

/// The end of a lifetime. It is given once and never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Why it ended.
    pub reason: Reason,

    /// When that was decided.
    pub at: Moment,
}

/// Why a lifetime ended. Its text is what the log, `kennel ps` and the user are told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Nobody was attached for the whole linger.
    LingerOver {
        /// How long nobody was there.
        nobody_for: Duration,
    },

    /// The owner was gone, and nobody attached, for the whole grace.
    OwnerGone {
        /// How long both held.
        nobody_for: Duration,
    },

    /// The backstop: clients were attached, but none gave a sign of life.
    Silent {
        /// How long none of them was heard, nor provably alive.
        silent_for: Duration,
    },

    /// The server exited and nobody is attached who would want it back.
    ServerExited,

    /// Somebody asked for it.
    StopAsked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            // A solo server does not linger: to say "for 0 ms" would only puzzle.
            Reason::LingerOver { nobody_for } if nobody_for < Duration::from_millis(1) => {
                write!(f, "no client attached")
            }
            Reason::LingerOver { nobody_for } => {
                write!(f, "no client attached for {}", Spoken(nobody_for))
            }
            Reason::OwnerGone { nobody_for } if nobody_for < Duration::from_millis(1) => {
                write!(f, "owner gone and no client attached")
            }
            Reason::OwnerGone { nobody_for } => {
                let length = Spoken(nobody_for);
                write!(f, "owner gone and no client attached for {length}")
            }
            Reason::Silent { silent_for } => {
                let length = Spoken(silent_for);
                write!(f, "no traffic for {length} and no client provably alive")
            }
            Reason::ServerExited => write!(f, "server exited and no client attached"),
            Reason::StopAsked => write!(f, "stop asked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_well_in_a_log_line() {
        let of_linger = |nobody_for| Reason::LingerOver { nobody_for };
        let of_owner = |nobody_for| Reason::OwnerGone { nobody_for };
        let of_silence = |silent_for| Reason::Silent { silent_for };
        let seconds = Duration::from_secs;

        for (reason, words) in [
            (of_linger(seconds(0)), "no client attached"),
            (of_linger(seconds(60)), "no client attached for 60 s"),
            (of_owner(seconds(0)), "owner gone and no client attached"),
            (
                of_owner(seconds(5)),
                "owner gone and no client attached for 5 s",
            ),
            (
                of_silence(seconds(1800)),
                "no traffic for 30 min and no client provably alive",
            ),
            (Reason::ServerExited, "server exited and no client attached"),
            (Reason::StopAsked, "stop asked"),
        ] {
            assert_eq!(reason.to_string(), words);
        }
    }
}
