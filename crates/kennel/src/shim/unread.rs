//! An app that closed its input and does not read its output: the session does not wait for it for good.

use std::time::{Duration, Instant};

use super::end::has_hung_up;
use super::{ENOUGH, PATIENCE_AFTER_EOF, Shim};

/// Time between two looks whether an app that reads nothing has closed its input. Its end cannot be read while what it
/// said before waits for room.
const LOOK: Duration = Duration::from_secs(1);

impl Shim {
    /// Whether the app closed its input and took nothing of its output for longer than a server has to end.
    /// `before`: how much was waiting before the last attempt to write.
    pub(super) fn is_left_unread(&mut self, before: usize) -> bool {
        let waiting = self.to_app.len();
        if waiting == 0 || !self.has_closed_input() {
            self.unread_until = None;
            return false;
        }
        if waiting < before {
            self.unread_until = None;
        }
        let now = Instant::now();
        let patience = self.spec.ladder.after_eof * PATIENCE_AFTER_EOF;
        now >= *self.unread_until.get_or_insert(now + patience)
    }

    fn has_closed_input(&self) -> bool {
        let cannot_hear = self.to_app.len() >= ENOUGH;
        self.session.app_is_done() || (cannot_hear && has_hung_up(&self.stdin))
    }

    /// When to look again whether output is left unread.
    pub(super) fn next_look_at_unread(&self) -> Option<Instant> {
        let full = self.to_app.len() >= ENOUGH && self.unread_until.is_none();
        self.unread_until
            .or_else(|| full.then(|| Instant::now() + LOOK))
    }
}
