//! Whether a session shares a server, and how it returns to sharing.

use std::time::Duration;

use crate::time::Moment;

/// Delay before the first attempt to share again. It doubles with each further attempt, up to [`LONGEST`]: no event
/// tells when a daemon can be started (rule 10).
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Whether a session shares.
#[derive(Debug)]
pub(super) enum Sharing {
    /// It has a dedicated server for good.
    Dedicated,
    Shared,
    /// It has a dedicated server because there was no daemon.
    ForNow(Return),
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
    pub(super) fn after_first_wait(now: Moment) -> Return {
        Return {
            next: now + FIRST,
            wait: FIRST,
            electing: false,
        }
    }

    /// Starts with the longest delay, for a daemon that runs but cannot start a server: a session that returned early
    /// would stop its dedicated server in vain.
    pub(super) fn after_longest_wait(now: Moment) -> Return {
        Return {
            next: now + LONGEST,
            wait: LONGEST,
            electing: false,
        }
    }

    /// Records a failed attempt.
    pub(super) fn failed(&mut self, now: Moment) {
        self.electing = false;
        self.wait = LONGEST.min(self.wait * 2);
        self.next = now + self.wait;
    }
}
