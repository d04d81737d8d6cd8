//! The end of a lifetime and its reason.

use std::fmt;
use std::time::Duration;

use crate::time::{HumanDuration, Moment};

/// The end of a lifetime. It does not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The reason.
    pub reason: Reason,

    /// When it was decided.
    pub at: Moment,
}

/// Why a lifetime ended. Its text appears in the log and in `kennel ps`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// No client was attached for all of linger.
    LingerOver {
        /// How long no client was attached.
        without_clients_for: Duration,
    },

    /// The owner was gone, without clients, for all of grace.
    OwnerGone {
        /// How long both held.
        without_clients_for: Duration,
    },

    /// Clients were attached, but silent and unwatchable.
    Silent {
        /// How long they were silent.
        silent_for: Duration,
    },

    /// The server exited without clients.
    ServerExited,

    /// A person stopped it.
    StopRequested,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            // A dedicated server does not linger: "for 0 ms" would only confuse.
            Reason::LingerOver {
                without_clients_for,
            } if without_clients_for < Duration::from_millis(1) => {
                write!(f, "no client attached")
            }
            Reason::LingerOver {
                without_clients_for,
            } => {
                write!(
                    f,
                    "no client attached for {}",
                    HumanDuration(without_clients_for)
                )
            }
            Reason::OwnerGone {
                without_clients_for,
            } if without_clients_for < Duration::from_millis(1) => {
                write!(f, "owner gone and no client attached")
            }
            Reason::OwnerGone {
                without_clients_for,
            } => {
                let length = HumanDuration(without_clients_for);
                write!(f, "owner gone and no client attached for {length}")
            }
            Reason::Silent { silent_for } => {
                let length = HumanDuration(silent_for);
                write!(f, "no traffic for {length} and no client provably alive")
            }
            Reason::ServerExited => write!(f, "server exited and no client attached"),
            Reason::StopRequested => write!(f, "stop asked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_well_in_a_log_line() {
        let of_linger = |without_clients_for| Reason::LingerOver {
            without_clients_for,
        };
        let of_owner = |without_clients_for| Reason::OwnerGone {
            without_clients_for,
        };
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
            (Reason::StopRequested, "stop asked"),
        ] {
            assert_eq!(reason.to_string(), words);
        }
    }
}
