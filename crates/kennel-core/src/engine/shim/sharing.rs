//! Whether a session shares a server, and how it returns to sharing.

use std::time::Duration;

use crate::time::Moment;

/// Delay before the first attempt to share again. It doubles with each further attempt, up to [`MAX_DELAY`]: no event
/// tells when a daemon can be started (rule 10).
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Whether a session shares.
#[derive(Debug)]
pub(super) enum Sharing {
    /// It has a dedicated server until it ends.
    Dedicated,
    Shared,
    /// It has a dedicated server because there was no daemon.
    DedicatedForNow(Return),
}

/// Attempts to share again.
#[derive(Debug)]
pub(super) struct Return {
    pub(super) next: Moment,
    wait: Duration,
    /// An election for the attempt is in progress.
    pub(super) electing: bool,
}

impl Return {
    pub(super) fn first(now: Moment) -> Return {
        Return {
            next: now + FIRST_DELAY,
            wait: FIRST_DELAY,
            electing: false,
        }
    }

    /// Starts with the longest delay, for a daemon that runs but cannot start a server: a session that returned early
    /// would stop its dedicated server in vain.
    pub(super) fn with_max_delay(now: Moment) -> Return {
        Return {
            next: now + MAX_DELAY,
            wait: MAX_DELAY,
            electing: false,
        }
    }

    /// Records a failed attempt.
    pub(super) fn failed(&mut self, now: Moment) {
        self.electing = false;
        self.wait = MAX_DELAY.min(self.wait * 2);
        self.next = now + self.wait;
    }
}
