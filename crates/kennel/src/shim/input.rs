//! Input from the app, the dedicated server and its warden, and the events that follow from it.

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
use crate::server_process::server_exit;
use crate::sharing::eras;
use crate::start_error::{self, Attempt, is_shortage};

/// Number of reads that empty a full pipe.
const MAX_PIPE_READS: usize = 64;

impl Shim {
    /// Handles the events of one wait. Returns how the session ends, if it does now.
    pub(super) fn handle_events(&mut self, ready: &Ready) -> io::Result<Option<End>> {
        while ready.signalled
            && let Some(signal) = self.signals.next()
        {
            match signal {
                STOP_SERVER => self.handle_stop_signal(),
                // Processes that outlived an earlier server are our children now, and so are their orphans.
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
        // Some reports may have been read when the server was lost.
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

    /// Handles the exit of a watched process. `Ok` if the app still runs: then the remaining processes are watched.
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
            // Lesson 20: an error that is not handled is reported again at once, in an endless loop.
            Err(error) => return Err(io::Error::new(error.kind(), format!("stdin: {error}"))),
        }
        Ok(())
    }

    /// Passes the lines of the app to the engine, and forwards them by its verdict.
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

    /// Refuses a request that is too long; sends the server an error instead of a response that is too long.
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
        // An id in use belongs to another request: the app would take the error for its response.
        line.id = line.id.filter(|id| !self.engine.session().is_in_flight(id));
        self.to_app.push(&line.refusal());
    }

    /// Sends the beginning of a long line, if it will be forwarded when it has ended.
    fn send_ahead(&mut self) {
        if !self.engine.session().can_forward() {
            return;
        }
        if let Some(conn) = &mut self.conn {
            conn.send_ahead(&self.from_app);
        } else if let Some(server) = self.server.as_mut().filter(|_| self.engine.has_server()) {
            server.send_ahead(&self.from_app);
        }
    }

    /// Returns the engine's verdict on a line of the app, after its actions were carried out.
    fn judge_app_line<'a>(&mut self, line: impl Into<Line<'a>>) -> Verdict {
        let verdict = self.engine.handle_app_line(line, self.now);
        self.carry_out();
        verdict
    }

    /// The queue of lines for the upstream, if there is one.
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

    /// Stops the server and reports its loss to the engine: how it ended, and how many of its bytes it never read.
    pub(super) fn lose_server(&mut self) {
        if !self.engine.has_server() {
            return;
        }
        let Some(server) = &mut self.server else {
            return;
        };
        server.close_stdin();
        // Its tree may live on after stdout was closed; the process that holds its store must end first.
        let _ = server.tree.stop();
        let unread = server.unread_bytes();
        let exit = server.exit.or_else(|| server.await_exit());
        if server.was_refused() && !self.started_once {
            // It never started: its pipes may be closed before the report with the reason, which is read next.
            return;
        }
        // Only now: its stdout may have been closed before its last lines on stderr were read.
        let stderr = self.read_last_stderr();
        let lost = Event::ServerLost {
            unread,
            ending: exit.map(server_exit),
            stderr,
        };
        self.engine.handle(lost, self.now);
    }

    /// Handles [`STOP_SERVER`] from `kennel stop`: only for a session that is dedicated until there is a daemon.
    fn handle_stop_signal(&mut self) {
        if let Some(server) = &mut self.server
            && self.engine.is_dedicated_for_now()
        {
            server.close_stdin();
            let unread = server.unread_bytes();
            self.engine
                .handle(Event::StopRequested { unread }, self.now);
            self.carry_out();
        }
    }

    /// Stores the protocol era of this server for later sessions: servers of the stateless protocol can be shared.
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

    /// Reads the rest of the server's stderr and returns its last lines.
    fn read_last_stderr(&mut self) -> String {
        self.read_stderr();
        let server = self.server.as_ref();
        server.map_or_else(String::new, |server| server.stderr_tail.text())
    }

    fn has_reports(&self) -> bool {
        let server = self.server.as_ref();
        server.is_some_and(|server| !server.reports.is_empty())
    }

    /// Reads and handles a report of the warden; `false` if no further one may be read.
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
                    ending: server_exit(exit),
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
            // A session does not require a record of its server, so this is never reported.
            Some(Report::NotRecorded(_)) => {}
            Some(Report::Refused(_) | Report::Empty) => self.handle_tree_empty(),
            // The warden was killed: its child died with it, and we must end the rest.
            None => {
                let _ = server.tree.reap();
                let records = self.records.get().map(|records| records.trees.handle());
                let _ = tree::end_strays(&[], records);
                self.handle_tree_empty();
            }
        }
        true
    }

    /// Handles the end of the whole process tree. Its last output may still be in its pipes.
    fn handle_tree_empty(&mut self) {
        self.read_rest_of_server();
        self.lose_server();
        // Before the server is dropped: its session record contains how it ended.
        self.engine.handle(Event::ServerTreeEmpty, self.now);
        self.carry_out();
        if let Some(server) = self.server.take() {
            let _ = server.tree.reap();
        }
    }

    /// Reads the last output of an ended server: no more than its pipe held, because another process may have the pipe open
    /// and write for ever.
    pub(super) fn read_rest_of_server(&mut self) {
        for _ in 0..MAX_PIPE_READS {
            match &self.server {
                Some(server) if server.has_output() => self.read_server(),
                _ => break,
            }
        }
        self.read_stderr();
    }

    /// Reports why the program cannot be started; returns the exit code.
    fn report_refused_start(&self, errno: i32) -> u8 {
        let path = std::env::var_os("PATH");
        let attempt = Attempt {
            program: &self.spec.command[0],
            cwd: self.spec.cwd.as_deref(),
            path: path.as_deref(),
        };
        let (code, message) = start_error::explain(attempt, errno);
        crate::fail(&message);
        code
    }
}

/// Reports text that the server printed on stdout on stderr: a dedicated session has no log.
fn report_printed(printed: &mut Printed, line: &[u8]) {
    let Some(line) = printed.line(line, Instant::now()) else {
        return;
    };
    if let Some(note) = line.left_out() {
        crate::warn(&note);
    }
    let hint = match line.is_first {
        true => " (only messages belong there; the app does not see it)",
        false => "",
    };
    crate::warn(&format!(
        "the server printed text on stdout{hint}: {}",
        line.text
    ));
}

/// Handles a line of the server that is too long: the app gets an error instead of a response. Returns the errors for the
/// server's requests in it, and whether the engine abandons the upstream.
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
