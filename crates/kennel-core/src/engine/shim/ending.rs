//! When a session ends: its app has closed its input, and there is nothing left to do.

use std::time::Duration;

use super::upstream::{Next, Upstream};
use super::{Action, End, Sharing, Shim};
use crate::session;
use crate::time::Moment;

/// How many times the first time of `--stop-after` answers of a shared server are waited for once the app has closed its
/// input: 12 s by default.
const PATIENCE_AFTER_EOF: u32 = 6;
/// The same for a dedicated server, which would go on without Kennel, too: 60 s by default, as long as the official SDKs
/// wait for an answer.
const DEDICATED_PATIENCE_AFTER_EOF: u32 = 30;
/// A dedicated server that has not answered anything yet may still be installed by its launcher: it gets this much at least.
const DEDICATED_START: Duration = Duration::from_secs(300);
/// Time between two checks whether an app that reads nothing has closed its input. That cannot be read while what it said
/// before waits for room.
const CHECK_INPUT_EVERY: Duration = Duration::from_secs(1);

/// How far a session is on its way to its end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    refused: Option<End>,
    /// How the session's own server ended.
    exit: Option<session::Ending>,
    /// The app has closed its input: answers are waited for until then.
    answers_until: Option<Moment>,
    /// Everything is answered: the server's exit is waited for until then.
    leave_at: Option<Moment>,
    output: Output,
}

/// The app's output, and whether the app reads it.
#[derive(Debug, Default)]
struct Output {
    left: usize,
    /// So much is left that the app's input is not read.
    full: bool,
    input_closed: bool,
    check_input_at: Option<Moment>,
    /// The app has closed its input and does not read, and nobody would tell of its end: it is waited for until then.
    unread_until: Option<Moment>,
}

impl Ending {
    /// An upstream answered: the next answer gets its time again.
    pub(super) fn answered(&mut self) {
        self.answers_until = None;
    }

    pub(super) fn refuse(&mut self, code: u8, why: Option<String>) {
        self.refused = Some(End::Refused { code, why });
    }

    pub(super) fn server_started(&mut self) {
        self.exit = None;
    }

    pub(super) fn server_exited(&mut self, ending: session::Ending) {
        self.exit = Some(ending);
    }

    pub(super) fn input_checked(&mut self, closed: bool, now: Moment) {
        self.output.input_closed = closed;
        self.output.check_input_at = Some(now + CHECK_INPUT_EVERY);
    }

    pub(super) fn next_timeout(&self, busy: bool) -> Option<Moment> {
        // While something is left to write, the app is what is waited for.
        let leave_at = self.leave_at.filter(|_| self.output.left == 0);
        let answers_until = self.answers_until.filter(|_| busy);
        let output = self.output.unread_until.or(self.output.check_input_at);
        [leave_at, answers_until, output]
            .into_iter()
            .flatten()
            .min()
    }
}

impl Shim {
    /// As much as the app took was written: this many bytes are left, and `full` if that is too much to read more of its
    /// input. `progress`: it took some.
    pub fn output_written(&mut self, left: usize, full: bool, progress: bool, now: Moment) {
        let patience = self.settings.after_eof * PATIENCE_AFTER_EOF;
        let output = &mut self.ending.output;
        (output.left, output.full) = (left, full);
        if self.settings.app_is_watched {
            // While it lives, it may read later: its end, or a closed output, ends the session.
            return;
        }
        if !full {
            (output.input_closed, output.check_input_at) = (false, None);
        }
        let closed = self.session.app_is_done() || output.input_closed;
        if left == 0 || !closed || progress {
            output.unread_until = None;
        }
        if left > 0 && closed {
            output.unread_until.get_or_insert(now + patience);
        } else if full && output.check_input_at.is_none_or(|at| now >= at) {
            output.check_input_at = Some(now + CHECK_INPUT_EVERY);
            self.actions.push_back(Action::CheckInput);
        }
    }

    /// How the session ends, if there is nothing left to do. `server_has_output`: the session's own server has written
    /// something that was not read yet.
    pub fn end(&mut self, server_has_output: impl FnOnce() -> bool, now: Moment) -> Option<End> {
        if let Some(refused) = &self.ending.refused {
            return Some(refused.clone());
        }
        if self.ending.output.unread_until.is_some_and(|at| now >= at) {
            return Some(End::Unread);
        }
        let done = self.session.app_is_done() && self.session.is_idle();
        if !done || self.ending.output.left > 0 {
            return None;
        }
        // Everything is answered. The server may take its time to end by itself: for its last words, and because its exit
        // code is the session's.
        let after_eof = self.settings.after_eof;
        let leave_at = *self.ending.leave_at.get_or_insert(now + after_eof);
        let gone = match self.upstream {
            Upstream::Dedicated | Upstream::Draining(_) => {
                self.ending.exit.is_some() && !server_has_output()
            }
            _ => true,
        };
        (gone || now >= leave_at).then_some(End::AppDone(self.ending.exit))
    }

    /// The app has closed its input. A server need not end by that, so answers are waited for several times as long as it
    /// may take to end, counted from the last answer. While the app does not read its output, the server's is not read
    /// either, and that time does not count.
    pub(super) fn stop_waiting_for_answers(&mut self, now: Moment) {
        if !self.session.app_is_done() || self.session.is_idle() {
            return;
        }
        if self.ending.output.full {
            self.ending.answers_until = None;
            return;
        }
        let until = match self.ending.answers_until {
            Some(until) => until,
            None => now + self.patience_after_eof(),
        };
        self.ending.answers_until = Some(until);
        if now < until {
            return;
        }
        match self.upstream {
            Upstream::Attached(_) | Upstream::Electing => self.leave_daemon(),
            Upstream::Draining(_) => self.upstream = Upstream::Draining(Next::GiveUp),
            Upstream::Waiting { .. } => self.upstream = Upstream::GaveUp,
            _ => {}
        }
        let why = "the app closed its input, and the server did not answer in time";
        self.session.give_up(why, "");
    }

    fn patience_after_eof(&self) -> Duration {
        let after_eof = self.settings.after_eof;
        let (patience, start) = match (&self.sharing, &self.settings.sharing) {
            (Sharing::Shared, Some(sharing)) => {
                (after_eof * PATIENCE_AFTER_EOF, sharing.start_timeout)
            }
            _ => (after_eof * DEDICATED_PATIENCE_AFTER_EOF, DEDICATED_START),
        };
        match self.answered_once {
            true => patience,
            // It may still be starting.
            false => patience.max(start),
        }
    }
}
