//! Whether a session shares a server, and the way back after it could not.

use std::time::Duration;

use crate::time::Moment;

/// Time before the first attempt to share again. Each further attempt comes after twice as long, up to [`LONGEST`]: there
/// is no event for "a daemon could be started now" (rule 10).
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Whether a session shares.
#[derive(Debug)]
pub(super) enum Sharing {
    /// It has a server of its own for good.
    Dedicated,
    Shared,
    /// It would share, and has a server of its own because no daemon could be had.
    ForNow(Return),
}

/// The attempts to share again.
#[derive(Debug)]
pub(super) struct Return {
    pub(super) next: Moment,
    wait: Duration,
    /// An election for it is under way.
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

    /// For a daemon that is there but cannot start a server: a session that came back soon would stop its own server for
    /// nothing, again and again.
    pub(super) fn after_longest_wait(now: Moment) -> Return {
        Return {
            next: now + LONGEST,
            wait: LONGEST,
            electing: false,
        }
    }

    /// The attempt failed.
    pub(super) fn failed(&mut self, now: Moment) {
        self.electing = false;
        self.wait = LONGEST.min(self.wait * 2);
        self.next = now + self.wait;
    }
}
