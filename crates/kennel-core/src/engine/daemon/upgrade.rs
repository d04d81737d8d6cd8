//! When a daemon hands over to a newer build.

use std::time::Duration;

use super::Daemon;
use crate::time::Moment;

/// How long to wait for a moment at which no request is pending.
const QUIET: Duration = Duration::from_secs(2);
/// Maximum bytes held for clients and servers when the state is written down: in memory they are up to five times then.
const LIGHT: usize = 4 << 20;
/// How long to wait for that. After it, half of the longest line may be held: where lines may be long, so may be what the
/// daemon has.
const HEAVY: Duration = Duration::from_secs(60);

/// A wait for a good moment to write down the daemon's state.
///
/// A moment without a pending request is preferred, for whoever waits would lose most if the new program failed; but a
/// pending request is handed over like everything else, so that moment is not waited for longer than `QUIET`.
#[derive(Debug, Clone, Copy)]
pub struct HandoverWait {
    since: Moment,
}

impl HandoverWait {
    /// A wait that begins now.
    pub fn new(now: Moment) -> HandoverWait {
        HandoverWait { since: now }
    }

    /// Whether the daemon holds little enough to write its state down: `held` bytes, where a line may have `max_line`.
    pub fn is_light(&self, held: usize, max_line: usize, now: Moment) -> bool {
        let most = match now >= self.since + HEAVY {
            true => LIGHT.max(max_line / 2),
            false => LIGHT,
        };
        held <= most
    }

    /// Whether no request is pending, or that was waited for long enough.
    pub fn is_quiet(&self, daemon: &Daemon, now: Moment) -> bool {
        now >= self.since + QUIET || daemon.is_quiet()
    }

    /// When to look again, if nothing happens before.
    pub fn next_timeout(&self, now: Moment) -> Option<Moment> {
        let timeouts = [self.since + QUIET, self.since + HEAVY];
        timeouts.into_iter().find(|at| *at > now)
    }
}
