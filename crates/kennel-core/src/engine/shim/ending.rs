//! When a session ends: its app has closed its input, and all is done.

use std::time::Duration;

use super::upstream::{Next, Upstream};
use super::{Action, End, Sharing, Shim};
use crate::session;
use crate::time::Moment;

/// How long responses of a shared server are awaited after the app closed its input, as a multiple of the first time of
/// `--stop-after`: 12 s by default.
const EOF_WAIT_FACTOR: u32 = 6;
/// The same for a dedicated server, which would go on without Kennel, too: 60 s by default, the request timeout of the
/// official SDKs.
const DEDICATED_EOF_WAIT_FACTOR: u32 = 30;
/// Minimum wait for a dedicated server that has not answered anything yet: its launcher may be installing it.
const DEDICATED_START: Duration = Duration::from_secs(300);
/// Time between two checks whether an app that does not read has closed its input. Its input is not read while its
/// output is full.
const CHECK_INPUT_EVERY: Duration = Duration::from_secs(1);

/// The progress of a session towards its end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    refused: Option<End>,
    /// How the dedicated server exited.
    exit: Option<session::ServerExit>,
    /// The app has closed its input: responses are awaited until then.
    answers_until: Option<Moment>,
    /// Every request is answered: the server's exit is awaited until then.
    leave_at: Option<Moment>,
    output: Output,
}

/// The app's output.
#[derive(Debug, Default)]
struct Output {
    left: usize,
    /// Whether the limit of remaining bytes is reached, so that the app's input is not read.
    full: bool,
    input_closed: bool,
    check_input_at: Option<Moment>,
    /// When the session ends: the app has closed its input and does not read, and its process cannot be watched.
    unread_until: Option<Moment>,
}

impl Ending {
    /// Records a response: the wait for the next one starts again.
    pub(super) fn answered(&mut self) {
        self.answers_until = None;
    }

    pub(super) fn refuse(&mut self, code: u8, why: Option<String>) {
        self.refused = Some(End::Refused { code, why });
    }

    pub(super) fn server_started(&mut self) {
        self.exit = None;
    }

    pub(super) fn server_exited(&mut self, ending: session::ServerExit) {
        self.exit = Some(ending);
    }

    pub(super) fn input_checked(&mut self, closed: bool, now: Moment) {
        self.output.input_closed = closed;
        self.output.check_input_at = Some(now + CHECK_INPUT_EVERY);
    }

    pub(super) fn next_timeout(&self, busy: bool) -> Option<Moment> {
        // While output is left, the session waits for the app.
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
    /// Records written output. `left`: bytes left; `full`: too many bytes are left to read more input; `progress`: some
    /// bytes were written.
    pub fn handle_output_written(&mut self, left: usize, full: bool, progress: bool, now: Moment) {
        let patience = self.settings.after_eof * EOF_WAIT_FACTOR;
        let output = &mut self.ending.output;
        (output.left, output.full) = (left, full);
        if self.settings.app_is_watched {
            // The app may read later: its exit or a closed output ends the session.
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

    /// Returns the end of the session, if all is done. `server_has_output`: the dedicated server has output that was
    /// not read yet.
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
        // Every request is answered. The server may take time to exit: for its last output, and because its exit code
        // is the session's.
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

    /// Gives up the pending requests if responses take too long after the app closed its input. A server need not exit
    /// because of that, so responses get several times as long as the exit, counted from the last response. The time
    /// does not count while the app's output is full, because the server's output is not read then.
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
                (after_eof * EOF_WAIT_FACTOR, sharing.start_timeout)
            }
            _ => (after_eof * DEDICATED_EOF_WAIT_FACTOR, DEDICATED_START),
        };
        match self.answered_once {
            true => patience,
            // It may still be starting.
            false => patience.max(start),
        }
    }
}
