//! What the shim hears, and what it does about it: from its app, its own server and that one's warden.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Instant;

use kennel_core::message::{Line, Message};
use kennel_core::mux::{self, Opening};
use kennel_core::session::{SERVER_RESTARTED, Session, Unsent, Verdict};
use kennel_sys::process::ProcessRef;
use kennel_sys::starter::{Role, Starter};
use kennel_sys::tree::{self, Report};

use super::end::{End, Gone};
use super::lines::{Outbox, TooLong};
use super::sleep::Ready;
use super::watch::Who;
use super::{Sharing, Shim, Upstream, millis_until};
use crate::printed::Printed;
use crate::sharing::eras;
use crate::start_error::{self, Attempt};

/// In so many reads, all that a pipe can hold is read.
const READS_OF_A_PIPE: usize = 64;

impl Shim {
    pub(super) fn look(&mut self, ready: &Ready) -> io::Result<Option<End>> {
        if ready.signalled
            && let Some(signal) = self.signals.next()
        {
            return Ok(Some(End::Signal(signal)));
        }
        if ready.starter_stirs
            && !self.watched().all(ProcessRef::is_alive)
            && let Err(role) = self.outlive_starter()?
        {
            return Ok(Some(End::without_app(&self.stdin, Gone::Starter(role))));
        }
        if ready.app_is_deaf {
            return Ok(Some(End::without_app(&self.stdin, Gone::Reader)));
        }
        if ready.server_complains {
            self.hear_complaints();
        }
        if ready.server_speaks {
            self.hear_server();
        }
        if ready.warden_reports || self.has_reports() {
            // Some may have been taken in when the server was lost.
            while let Some(Upstream { server, .. }) = &self.server
                && server.report_is_there()
            {
                if let Some(end) = self.hear_warden() {
                    return Ok(Some(end));
                }
            }
        }
        if ready.elected {
            self.hear_election();
        }
        if ready.daemon_speaks {
            self.hear_daemon();
        }
        if self.election.is_none()
            && let Some(link) = &mut self.link
            && let Err(suspect) = link.look_after(self.session.owes())
        {
            self.suspect = suspect;
            self.elect();
        }
        if ready.app_speaks {
            self.hear_app()?;
        }
        Ok(None)
    }

    /// Somebody who was watched has ended. Goes on with the app, if that is another.
    fn outlive_starter(&mut self) -> io::Result<Result<(), Role>> {
        let Starter::Watch(origin) = &mut self.starter else {
            return Ok(Ok(()));
        };
        if let Err(role) = origin.outlive_ended() {
            return Ok(Err(role));
        }
        for exit in origin.iter().filter_map(|it| it.process.exit_fd()) {
            self.watch.add_once(exit, Who::Starter)?;
        }
        Ok(Ok(()))
    }

    pub(super) fn hear_app(&mut self) -> io::Result<()> {
        let read = self.from_app.read(&self.stdin);
        self.stdin.was_read(&read);
        match read {
            Ok(0) => {
                self.stdin_open = false;
                self.from_app.end();
                self.take_lines_of_app();
                self.session.app_eof();
                if self.resting {
                    // Nobody will wake it any more.
                    self.session.give_up("it was stopped", "");
                }
            }
            Ok(_) => {
                self.take_lines_of_app();
                self.send_ahead();
                self.stdin_width.suit(&self.stdin, self.from_app.len());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Lesson 20: an error that is not handled comes again, and again.
            Err(error) => return Err(io::Error::new(error.kind(), format!("stdin: {error}"))),
        }
        Ok(())
    }

    fn take_lines_of_app(&mut self) {
        let mut inbox = std::mem::take(&mut self.from_app);
        loop {
            while let Some(line) = inbox.next_message() {
                match self.take_from_app(line) {
                    Some((Verdict::Forward, to)) => to.push_last(&mut inbox),
                    Some((Verdict::Replace(line), to)) => to.push(&line),
                    Some((Verdict::Drop | Verdict::Abandon, to)) => to.recall(),
                    None => {}
                }
            }
            let too_long = inbox.next_too_long(false);
            if too_long.is_some() || inbox.is_skipping() {
                // Its beginning may have been sent ahead.
                self.recall();
            }
            match too_long {
                Some(line) => {
                    let messages = line.messages().into_iter();
                    messages.for_each(|message| self.too_long_from_app(message));
                }
                None => break,
            }
        }
        self.from_app = inbox;
    }

    fn recall(&mut self) {
        match (&mut self.link, &mut self.server) {
            (Some(link), _) => link.to.recall(),
            (None, Some(upstream)) if !upstream.lost => upstream.server.to.recall(),
            (None, _) => {}
        }
    }

    /// A request that is too long is refused; in place of an answer that is, the server hears an error.
    fn too_long_from_app(&mut self, mut line: TooLong) {
        if let Some(answer) = line.in_its_place() {
            match self.take_from_app(&answer[..]) {
                Some((Verdict::Forward, to)) => to.push(&answer),
                Some((Verdict::Replace(other), to)) => to.push(&other),
                Some((Verdict::Drop | Verdict::Abandon, _)) | None => {}
            }
            return;
        }
        // An id that is taken is another request's: to that one, this would be the answer.
        line.id = line.id.filter(|id| !self.session.awaits(id));
        self.to_app.push(&line.refusal());
    }

    /// Sends the beginning of a long line, if it will be forwarded when it has ended.
    fn send_ahead(&mut self) {
        if !self.session.forwards() {
            return;
        }
        match (&mut self.link, &mut self.server) {
            (Some(link), _) => link.send_ahead(&self.from_app),
            (None, Some(upstream)) if !upstream.lost => upstream.server.send_ahead(&self.from_app),
            (None, _) => {}
        }
    }

    /// What to do with a line of the app's, and whom it is for; `None` while there is nobody.
    fn take_from_app<'a>(&mut self, line: impl Into<Line<'a>>) -> Option<(Verdict, &mut Outbox)> {
        let line = line.into();
        if !self.introduced {
            self.introduce(line);
        }
        let may_wake = self.resting || self.hibernation.is_some() || self.is_left_alone();
        if may_wake && asks_something(line) {
            self.is_of_use();
            self.wake();
            if !self.is_too_early() {
                self.ask_again();
                self.expect_a_server();
            }
        }
        let verdict = self.session.from_app(line);
        if self.resting && self.session.queue_is_full() {
            // Else nothing more would be heard, a request included.
            self.wake();
        }
        match (&mut self.link, &mut self.server) {
            (Some(link), _) => Some((verdict, &mut link.to)),
            (
                None,
                Some(Upstream {
                    server,
                    lost: false,
                }),
            ) => Some((verdict, &mut server.to)),
            (None, _) => None,
        }
    }

    /// Takes from the app's first request what the app is called, and whether the session may share.
    fn introduce(&mut self, line: Line<'_>) {
        let message = match Message::parse(line) {
            // They say nothing about it, unless so many wait already that no request would be heard.
            Ok(Message::Notification(_) | Message::Response(_))
                if !self.session.queue_is_full() =>
            {
                return;
            }
            message => message,
        };
        self.introduced = true;
        self.tally.client = message.as_ref().ok().and_then(mux::client_name);
        if !self.sharing.as_ref().is_some_and(Sharing::is_modern_only) {
            return;
        }
        let opening = message.as_ref().ok().map(mux::opening);
        if !matches!(opening, Some(Opening::Modern(_) | Opening::Probe)) {
            self.why_solo = self.sharing.take().map(|sharing| sharing.why);
        }
        self.next_start.get_or_insert_with(Instant::now);
    }

    /// Whether there is no server, and none will come by itself.
    fn is_left_alone(&self) -> bool {
        let upstream = self.server.is_some()
            || self.link.is_some()
            || self.election.is_some()
            || self.coming_back.is_some();
        self.given_up || (!upstream && self.next_start.is_none())
    }

    /// Whether the restart limit does not allow another server yet: the error for a request says when it does.
    fn is_too_early(&mut self) -> bool {
        let wait = millis_until(self.retry_at, Instant::now());
        if self.is_left_alone() {
            self.session.retry_after(wait);
        }
        wait.is_some() && self.is_left_alone()
    }

    /// A later request tries again.
    fn expect_a_server(&mut self) {
        if self.is_left_alone() && !self.session.app_is_done() {
            self.session.upstream_expected();
            self.next_start = Some(self.limit.next_attempt(Instant::now()));
        }
    }

    fn hear_server(&mut self) {
        let Some(Upstream { server, lost }) = &mut self.server else {
            return;
        };
        let open = server.read();
        self.stopped.server_spoke();
        let busy = !self.session.is_quiet();
        let mut abandoned = false;
        loop {
            while let Some(line) = server.from.next_message() {
                if *lost {
                    continue;
                }
                self.answered_once = true;
                self.upstream_answered = true;
                self.answers_until = None;
                match self.session.from_upstream(line) {
                    Verdict::Forward => self.to_app.push_last(&mut server.from),
                    Verdict::Replace(line) => self.to_app.push(&line),
                    Verdict::Drop => tell_printed(&mut self.printed, line.bytes()),
                    Verdict::Abandon => abandoned = true,
                }
            }
            let Some(line) = server.from.next_too_long(true) else {
                break;
            };
            crate::warn(&line.note("the server"));
            for message in line.messages() {
                let heard = hear_too_long(&message, &mut self.session, &mut self.to_app);
                abandoned |= heard == TooLongHeard::Abandoned;
                if heard == TooLongHeard::Asks && !*lost {
                    server.to.push_in_turn(&message.refusal());
                }
            }
        }
        // Nobody waits for it: another one takes its place unnoticed.
        let idle = open && !*lost && self.session.is_idle() && self.session.is_quiet();
        let outdated = idle && server.is_outdated();
        self.remember_era();
        if busy {
            self.is_of_use();
        }
        if !open || abandoned {
            self.lose();
        } else if outdated && !self.session.app_is_done() {
            self.put_down_own();
            self.session
                .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
            self.next_start = Some(Instant::now());
        }
    }

    /// For the sessions to come: who speaks the stateless protocol may share. Nothing else depends on it.
    fn remember_era(&mut self) {
        if !self.era_remembered
            && let Some(modern) = self.session.is_modern()
        {
            self.era_remembered = true;
            if let Some(records) = self.records.get() {
                let _ = eras::remember(&records.user, &self.spec.key, modern);
            }
        }
    }

    fn hear_complaints(&mut self) {
        let Some(Upstream { server, .. }) = &mut self.server else {
            return;
        };
        let to_stderr = &mut self.to_stderr;
        server.read_errors(|line| to_stderr.push(line));
    }

    /// What the server said last on stderr, what is still in the pipe included.
    pub(super) fn last_words(&mut self) -> String {
        self.hear_complaints();
        let server = self.server.as_ref().map(|upstream| &upstream.server);
        server.map_or_else(String::new, |server| server.said.text())
    }

    fn has_reports(&self) -> bool {
        let server = self.server.as_ref().map(|upstream| &upstream.server);
        server.is_some_and(|server| !server.reports.is_empty())
    }

    fn hear_warden(&mut self) -> Option<End> {
        let Upstream { server, .. } = self.server.as_mut()?;
        match server.report() {
            Some(Report::Started { pid, .. }) => {
                self.started_once = true;
                self.list(pid);
            }
            Some(Report::Exited(exit)) => self.last_exit = Some(exit),
            Some(Report::Refused(errno)) if !self.started_once => {
                return Some(End::Refused(self.say_refused(errno)));
            }
            // Not required of a session's server, so never reported.
            Some(Report::NotRecorded(_)) => {}
            Some(Report::Refused(_) | Report::Empty) => self.server_is_gone(),
            // The warden was killed: its child died with it, and the rest is ours to end.
            None => {
                let _ = server.tree.wait();
                let records = self.records.get().map(|records| records.trees.as_fd());
                let _ = tree::end_strays(&[], records);
                self.server_is_gone();
            }
        }
        None
    }

    /// Nothing is left of its tree. What it said last may still be in its pipes.
    fn server_is_gone(&mut self) {
        // Not until it is closed: somebody outside of the tree may have it open for ever, and go on writing.
        for _ in 0..READS_OF_A_PIPE {
            match &self.server {
                Some(Upstream { server, .. }) if server.has_said_more() => self.hear_server(),
                _ => break,
            }
        }
        self.hear_complaints();
        self.lose();
        if let Some(mut upstream) = self.server.take() {
            let _ = upstream.server.tree.wait();
        }
        // A service that outlived an earlier server is our child now, and may have ended since.
        tree::reap_kept(&[]);
        if self.resting || self.coming_back.is_some() {
            // It was put down: how it took that is nobody's exit code.
            self.last_exit = None;
        } else if self.next_start.is_some() {
            self.note_restart();
        }
    }

    fn say_refused(&self, errno: i32) -> u8 {
        let path = std::env::var_os("PATH");
        let attempt = Attempt {
            program: &self.spec.command[0],
            cwd: self.spec.cwd.as_deref(),
            path: path.as_deref(),
        };
        let (code, words) = start_error::explain(attempt, errno);
        crate::fail(&words);
        code
    }
}

/// What became of a line of the upstream that was too long.
#[derive(PartialEq, Eq)]
pub(super) enum TooLongHeard {
    Done,
    /// It was the server's own request: that one is to hear why it has no answer.
    Asks,
    /// The upstream has to go.
    Abandoned,
}

/// In place of an answer that is too long, the app hears an error.
pub(super) fn hear_too_long(
    line: &TooLong,
    session: &mut Session,
    to_app: &mut Outbox,
) -> TooLongHeard {
    let Some(answer) = line.in_its_place() else {
        return match line.id {
            Some(_) => TooLongHeard::Asks,
            None => TooLongHeard::Done,
        };
    };
    match session.from_upstream(&answer[..]) {
        Verdict::Forward => to_app.push(&answer),
        Verdict::Replace(other) => to_app.push(&other),
        Verdict::Drop => {}
        Verdict::Abandon => return TooLongHeard::Abandoned,
    }
    TooLongHeard::Done
}

/// Whether this needs a server: a ping is the session's own to answer, and who only tells something can wait.
fn asks_something(line: Line<'_>) -> bool {
    match Message::parse(line) {
        Ok(Message::Request(request)) => !request.method.is("ping"),
        Ok(Message::Batch(_)) => true,
        Ok(Message::Notification(_) | Message::Response(_)) | Err(_) => false,
    }
}

/// Tells on stderr what the server printed on stdout and is no message: a session with a server of its own has no log.
fn tell_printed(printed: &mut Printed, line: &[u8]) {
    let Some(telling) = printed.line(line, Instant::now()) else {
        return;
    };
    if let Some(words) = telling.left_out() {
        crate::warn(&words);
    }
    let hint = match telling.is_first {
        true => " (only messages belong there; the app does not see it)",
        false => "",
    };
    crate::warn(&format!(
        "the server printed text on stdout{hint}: {}",
        telling.text
    ));
}
