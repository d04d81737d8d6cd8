//! What the shim hears, and what it does about it: from its app, its own server and that one's warden.

use std::io;
use std::time::Instant;

use kennel_core::engine;
use kennel_core::engine::shim::Event;
use kennel_core::message::Line;
use kennel_core::session::Verdict;
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_sys::starter::{Role, Starter};
use kennel_sys::tree::{self, Report};

use super::end::{End, NoticedBy};
use super::sleep::Ready;
use super::{Shim, few_descriptors, watch_exits};
use crate::lines::{Outbox, TooLong};
use crate::listing::STOP_SERVER;
use crate::printed::Printed;
use crate::server_process::ending;
use crate::sharing::eras;
use crate::start_error::{self, Attempt, is_shortage};

/// In so many reads, all that a pipe can hold is read.
const MAX_PIPE_READS: usize = 64;

impl Shim {
    pub(super) fn handle_events(&mut self, ready: &Ready) -> io::Result<Option<End>> {
        while ready.signalled
            && let Some(signal) = self.signals.next()
        {
            match signal {
                STOP_SERVER => self.handle_stop_signal(),
                // What outlived an earlier server is our child, and leaves us its own.
                Signal::CHILD => tree::reap_kept(&[]),
                _ => return Ok(Some(End::Signal(signal))),
            }
        }
        if ready.starter_exited
            && !self.watched().all(ProcessRef::is_alive)
            && let Err(role) = self.handle_starter_exit()?
        {
            return Ok(Some(End::after_app_gone(
                &self.stdin,
                NoticedBy::Starter(role),
            )));
        }
        if ready.stdout_closed {
            return Ok(Some(End::after_app_gone(&self.stdin, NoticedBy::Reader)));
        }
        if ready.stderr_readable {
            self.read_stderr();
        }
        if ready.server_readable {
            self.read_server();
        }
        // Some reports may have been taken in when the server was lost.
        if ready.warden_readable || self.has_reports() {
            while self.server.as_ref().is_some_and(|it| it.has_report())
                && self.read_warden_report()
            {}
        }
        let overdue_at = self.election.as_ref().map(|it| it.pending.overdue_at());
        if ready.elected || overdue_at.is_some_and(|at| Instant::now() >= at) {
            self.take_election_result();
            self.carry_out();
        }
        if ready.daemon_readable {
            self.read_daemon();
        }
        if ready.app_readable {
            self.read_app()?;
        }
        Ok(None)
    }

    /// Somebody who was watched has ended. Goes on with the app, if that is another.
    fn handle_starter_exit(&mut self) -> io::Result<Result<(), Role>> {
        let Starter::Watch(origin) = &mut self.starter else {
            return Ok(Ok(()));
        };
        if let Err(role) = origin.outlive_ended() {
            return Ok(Err(role));
        }
        self.starter_exits = watch_exits(&self.starter, &self.reactor)?;
        Ok(Ok(()))
    }

    pub(super) fn read_app(&mut self) -> io::Result<()> {
        let read = self.from_app.read(&self.stdin);
        match read {
            Ok(0) => {
                self.stdin_open = false;
                self.from_app.end();
                self.handle_app_lines();
                self.engine.handle(Event::AppClosed, self.now);
            }
            Ok(_) => {
                self.handle_app_lines();
                self.send_ahead();
                self.stdin_buffer.fit(&self.stdin, self.from_app.len());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Lesson 20: an error that is not handled comes again, and again.
            Err(error) => return Err(io::Error::new(error.kind(), format!("stdin: {error}"))),
        }
        Ok(())
    }

    fn handle_app_lines(&mut self) {
        let mut inbox = std::mem::take(&mut self.from_app);
        loop {
            while let Some(line) = inbox.next_message() {
                let verdict = self.judge_app_line(line);
                match (verdict, self.upstream_outbox()) {
                    (Verdict::Forward, Some(to)) => to.push_last(&mut inbox),
                    (Verdict::Replace(line), Some(to)) => to.push(&line),
                    (Verdict::Drop | Verdict::Abandon, Some(to)) => to.abort_partial_line(),
                    (_, None) => {}
                }
            }
            let too_long = inbox.next_too_long(false);
            if too_long.is_some() || inbox.is_skipping() {
                // Its beginning may have been sent ahead.
                self.upstream_outbox()
                    .into_iter()
                    .for_each(Outbox::abort_partial_line);
            }
            match too_long {
                Some(line) => {
                    let messages = line.messages().into_iter();
                    messages.for_each(|message| self.handle_too_long_app_line(message));
                }
                None => break,
            }
        }
        self.from_app = inbox;
    }

    /// A request that is too long is refused; in place of an answer that is, the server hears an error.
    fn handle_too_long_app_line(&mut self, mut line: TooLong) {
        if let Some(answer) = line.replacement() {
            let verdict = self.judge_app_line(&answer[..]);
            match (verdict, self.upstream_outbox()) {
                (Verdict::Forward, Some(to)) => to.push(&answer),
                (Verdict::Replace(other), Some(to)) => to.push(&other),
                (Verdict::Drop | Verdict::Abandon, _) | (_, None) => {}
            }
            return;
        }
        // An id that is taken is another request's: to that one, this would be the answer.
        line.id = line.id.filter(|id| !self.engine.session().is_in_flight(id));
        self.to_app.push(&line.refusal());
    }

    /// Sends the beginning of a long line, if it will be forwarded when it has ended.
    fn send_ahead(&mut self) {
        if !self.engine.session().forwards() {
            return;
        }
        if let Some(conn) = &mut self.conn {
            conn.send_ahead(&self.from_app);
        } else if let Some(server) = self.server.as_mut().filter(|_| self.engine.has_server()) {
            server.send_ahead(&self.from_app);
        }
    }

    /// What to do with a line of the app's. What the engine wants done before that is done.
    fn judge_app_line<'a>(&mut self, line: impl Into<Line<'a>>) -> Verdict {
        let verdict = self.engine.handle_app_line(line, self.now);
        self.carry_out();
        verdict
    }

    /// Where lines for the upstream go, if there is one.
    fn upstream_outbox(&mut self) -> Option<&mut Outbox> {
        let has_server = self.engine.has_server();
        let server = self.server.as_mut().filter(|_| has_server);
        let to_server = server.map(|server| &mut server.to);
        self.conn.as_mut().map(|conn| &mut conn.to).or(to_server)
    }

    fn read_server(&mut self) {
        let Some(server) = &mut self.server else {
            return;
        };
        let open = server.read();
        self.engine.handle_upstream_bytes();
        let in_use = self.engine.has_server();
        let mut abandoned = false;
        loop {
            while let Some(line) = server.from.next_message() {
                if !in_use {
                    continue;
                }
                match self.engine.handle_upstream_line(line, self.now) {
                    Verdict::Forward => self.to_app.push_last(&mut server.from),
                    Verdict::Replace(line) => self.to_app.push(&line),
                    Verdict::Drop => report_printed(&mut self.printed, line.bytes()),
                    Verdict::Abandon => abandoned = true,
                }
            }
            let Some(line) = server.from.next_too_long(true) else {
                break;
            };
            let (refusals, is_abandoned) =
                handle_too_long_line(&mut self.engine, &mut self.to_app, line, self.now);
            abandoned |= is_abandoned;
            for refusal in refusals.iter().filter(|_| in_use) {
                server.to.push_after_partial_line(refusal);
            }
        }
        let may_be_replaced = open && !abandoned && self.engine.may_replace_server();
        let outdated = may_be_replaced && server.is_outdated();
        self.remember_era();
        if !open || abandoned {
            self.lose_server();
        } else if outdated {
            self.engine.handle(Event::ServerOutdated, self.now);
            self.carry_out();
        }
    }

    /// The server ended, or is to end: the engine is told how, and what of its lines it never read.
    pub(super) fn lose_server(&mut self) {
        if !self.engine.has_server() {
            return;
        }
        let Some(server) = &mut self.server else {
            return;
        };
        server.close_stdin();
        // Its tree may live on behind a closed stdout; whoever holds its store must be gone first.
        let _ = server.tree.stop();
        let unread = server.unread_bytes();
        let exit = server.exit.or_else(|| server.await_exit());
        if server.was_refused() && !self.started_once {
            // It never started: its pipes may be closed before the report that says why is heard, which is next.
            return;
        }
        // Only now: its stdout may have ended before its last words on stderr were read.
        let stderr = self.read_last_stderr();
        let lost = Event::ServerLost {
            unread,
            ending: exit.map(ending),
            stderr,
        };
        self.engine.handle(lost, self.now);
    }

    /// A person stops the server of this session, which has one only for want of a daemon.
    fn handle_stop_signal(&mut self) {
        if let Some(server) = &mut self.server
            && self.engine.is_dedicated_for_now()
        {
            server.close_stdin();
            let unread = server.unread_bytes();
            self.engine.handle(Event::StopAsked { unread }, self.now);
            self.carry_out();
        }
    }

    /// For the sessions to come: who speaks the stateless protocol may share. Nothing else depends on it.
    fn remember_era(&mut self) {
        if !self.era_remembered
            && let Some(modern) = self.engine.session().is_modern()
        {
            self.era_remembered = true;
            if let Some(records) = self.records.get() {
                let _ = eras::remember(&records.user, &self.spec.key, modern);
            }
        }
    }

    fn read_stderr(&mut self) {
        if let Some(server) = &mut self.server {
            let to_stderr = &mut self.to_stderr;
            server.read_stderr(|line| to_stderr.push(line));
        }
    }

    /// What the server said last on stderr, what is still in the pipe included.
    fn read_last_stderr(&mut self) -> String {
        self.read_stderr();
        let server = self.server.as_ref();
        server.map_or_else(String::new, |server| server.stderr_tail.text())
    }

    fn has_reports(&self) -> bool {
        let server = self.server.as_ref();
        server.is_some_and(|server| !server.reports.is_empty())
    }

    /// Takes a report of the warden; `false` if no more is to be taken.
    fn read_warden_report(&mut self) -> bool {
        let Some(server) = &mut self.server else {
            return false;
        };
        match server.report() {
            Some(Report::Started { pid, .. }) => {
                self.started_once = true;
                self.list(pid);
            }
            Some(Report::Exited(exit)) => {
                server.exit = Some(exit);
                let exited = Event::ServerExited {
                    ending: ending(exit),
                    stdin_closed: server.stdin_is_closed(),
                };
                self.engine.handle(exited, self.now);
                self.carry_out();
            }
            Some(Report::Refused(errno)) if !self.started_once && is_shortage(errno) => {
                let error = io::Error::from_raw_os_error(errno);
                let why = format!("{error}{}", few_descriptors::advice(&error));
                self.engine
                    .handle(Event::ServerNotStarted { why }, self.now);
                self.handle_tree_empty();
            }
            Some(Report::Refused(errno)) if !self.started_once => {
                let code = self.report_refused_start(errno);
                self.engine.handle(Event::ServerRefused { code }, self.now);
                return false;
            }
            // Not required of a session's server, so never reported.
            Some(Report::NotRecorded(_)) => {}
            Some(Report::Refused(_) | Report::Empty) => self.handle_tree_empty(),
            // The warden was killed: its child died with it, and the rest is ours to end.
            None => {
                let _ = server.tree.reap();
                let records = self.records.get().map(|records| records.trees.handle());
                let _ = tree::end_strays(&[], records);
                self.handle_tree_empty();
            }
        }
        true
    }

    /// Nothing is left of its tree. What it said last may still be in its pipes.
    fn handle_tree_empty(&mut self) {
        self.read_rest_of_server();
        self.lose_server();
        // Before the server goes: the listing says how it ended.
        self.engine.handle(Event::ServerTreeEmpty, self.now);
        self.carry_out();
        if let Some(server) = self.server.take() {
            let _ = server.tree.reap();
        }
    }

    /// Reads what an ended server wrote last: no more than its pipe held, for another process may have that open for ever
    /// and go on writing.
    pub(super) fn read_rest_of_server(&mut self) {
        for _ in 0..MAX_PIPE_READS {
            match &self.server {
                Some(server) if server.has_output() => self.read_server(),
                _ => break,
            }
        }
        self.read_stderr();
    }

    fn report_refused_start(&self, errno: i32) -> u8 {
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

/// Tells on stderr what the server printed on stdout and is no message: a session with a server of its own has no log.
fn report_printed(printed: &mut Printed, line: &[u8]) {
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

/// Handles a line of the server that is too long: in place of an answer, the app gets an error. Returns the refusals of
/// the server's requests in it, and whether the engine abandons the upstream.
pub(super) fn handle_too_long_line(
    engine: &mut engine::shim::Shim,
    to_app: &mut Outbox,
    line: TooLong,
    now: Moment,
) -> (Vec<Vec<u8>>, bool) {
    crate::warn(&line.note("the server"));
    let (mut refusals, mut is_abandoned) = (Vec::new(), false);
    for message in line.messages() {
        match message.replacement() {
            Some(answer) => match engine.handle_upstream_line(&answer[..], now) {
                Verdict::Forward => to_app.push(&answer),
                Verdict::Replace(other) => to_app.push(&other),
                Verdict::Drop => {}
                Verdict::Abandon => is_abandoned = true,
            },
            None if message.id.is_some() => refusals.push(message.refusal()),
            None => {}
        }
    }
    (refusals, is_abandoned)
}
