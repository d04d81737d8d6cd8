//! A server whose first process crashed while another process of its tree holds its stdin and stdout open.
//!
//! That other process may be the real server, behind a launcher that crashed, or a helper that the server started and that
//! inherited its stdio. Only the second never answers, and no end of output tells so.

use std::time::Duration;

use crate::session::Ending;
use crate::time::Moment;

/// How long a request may be pending without a word of the survivors before they count as helpers.
const SILENCE: Duration = Duration::from_secs(10);

/// Whether the first process crashed, and since when its survivors owe an answer and are silent.
#[derive(Debug, Default)]
pub(super) struct Survivors {
    crashed: bool,
    spoke: bool,
    silent_since: Option<Moment>,
}

impl Survivors {
    /// The first process ended, and others of the tree hold stdin and stdout. One that ended well may have been a launcher
    /// that went to the background.
    pub(super) fn first_process_ended(&mut self, ending: Ending) {
        self.crashed = ending != Ending::Code(0);
    }

    pub(super) fn spoke(&mut self) {
        self.spoke = true;
    }

    /// Whether the survivors count as lost by now; that is said once. `pending`: they owe an answer.
    pub(super) fn advance(&mut self, pending: bool, now: Moment) -> bool {
        let spoke = std::mem::take(&mut self.spoke);
        if !self.crashed || !pending {
            self.silent_since = None;
            return false;
        }
        if spoke || self.silent_since.is_none() {
            self.silent_since = Some(now);
        }
        let lost = self.next_timeout().is_some_and(|at| now >= at);
        if lost {
            *self = Survivors::default();
        }
        lost
    }

    pub(super) fn next_timeout(&self) -> Option<Moment> {
        Some(self.silent_since? + SILENCE)
    }

    /// Whether [`advance`](Self::advance) has to be called to begin the wait.
    pub(super) fn is_to_be_timed(&self, pending: bool) -> bool {
        self.crashed && pending && self.silent_since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn survivors_that_owe_an_answer_and_are_silent_are_lost_after_10_s() {
        let mut survivors = Survivors::default();
        survivors.first_process_ended(Ending::Signal(11));
        let mut now = Moment::START;
        assert!(!survivors.advance(true, now));
        now = now + 9 * SECOND;
        assert!(!survivors.advance(true, now));
        // It speaks: the time begins anew.
        survivors.spoke();
        assert!(!survivors.advance(true, now));
        assert_eq!(survivors.next_timeout(), Some(now + SILENCE));
        assert!(survivors.advance(true, now + SILENCE));
        assert!(!survivors.advance(true, now + SILENCE));
        assert_eq!(survivors.next_timeout(), None);
    }

    #[test]
    fn idle_survivors_and_those_of_a_launcher_that_ended_well_are_not_timed() {
        let mut survivors = Survivors::default();
        survivors.first_process_ended(Ending::Code(3));
        assert!(!survivors.advance(false, Moment::START + 3600 * SECOND));
        assert_eq!(survivors.next_timeout(), None);
        let mut launched = Survivors::default();
        launched.first_process_ended(Ending::Code(0));
        assert!(!launched.advance(true, Moment::START + 3600 * SECOND));
        assert_eq!(launched.next_timeout(), None);
    }
}
