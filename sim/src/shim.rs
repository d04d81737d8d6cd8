//! The driver of the engine of `kennel run` on the simulated kernel. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use kennel_core::engine::shim::{
    self as engine, Action, Event, Listing, Purpose, Settings, SharingSettings,
};
use kennel_core::hello::{ClientHello, PROTOCOL, Shares, Spec, Text};
use kennel_core::message::{Key, Message, Outcome};
use kennel_core::session::{Replay, ServerExit, Verdict};
use kennel_core::time::Moment;

use crate::coverage::Situation;
use crate::daemon_connection::DaemonConnection;
use crate::election_driver::{Elected, ElectionDriver, START_TIMEOUT};
use crate::kernel::{Kernel, Pid, PipeId, Shortage, WorldSettings};
use crate::lines::{Inbox, Outbox};
use crate::part;

/// Default of the first time of `--stop-after`.
const AFTER_EOF: Duration = Duration::from_secs(2);
/// Input is not read while this many bytes are queued at its destination.
const QUEUE_LIMIT: usize = 2_000;

pub(crate) struct Shim {
    pid: Pid,
    app: Pid,
    engine: engine::Shim,
    stdin: PipeId,
    stdin_open: bool,
    stdout: PipeId,
    from_app: Inbox,
    to_app: Outbox,
    connection: Option<DaemonConnection>,
    /// The connection that an election made, until the engine uses it.
    new_connection: Option<DaemonConnection>,
    server: Option<DedicatedServer>,
    election: Option<ElectionDriver>,
    /// The purpose of the last election.
    purpose: Option<Purpose>,
    /// Whether a request was pending before the last event.
    was_pending: bool,
    /// Whether the daemon, which lives, has just reported the loss of the server.
    loss_was_reported: bool,
}

/// The dedicated server.
struct DedicatedServer {
    pid: Pid,
    stdin: PipeId,
    stdout: PipeId,
    from: Inbox,
    to: Outbox,
}

impl Shim {
    pub(crate) fn new(pid: Pid, app: Pid, stdin: PipeId, stdout: PipeId, kernel: &Kernel) -> Shim {
        let settings = Settings {
            replay: Replay::default(),
            sharing: kernel.settings.shared.then(|| SharingSettings {
                modern_only: false,
                start_timeout: START_TIMEOUT,
                why: String::new(),
            }),
            why_dedicated: None,
            hibernate: kernel.settings.hibernate,
            after_eof: AFTER_EOF,
            app_is_watched: true,
        };
        Shim {
            pid,
            app,
            engine: engine::Shim::new(settings, kernel.now),
            stdin,
            stdin_open: true,
            stdout,
            from_app: Inbox::default(),
            to_app: Outbox::default(),
            connection: None,
            new_connection: None,
            server: None,
            election: None,
            purpose: None,
            was_pending: false,
            loss_was_reported: false,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        !kernel.alive(self.app)
            || self.app_is_readable(kernel)
            || self.daemon_is_readable(kernel)
            || self.server_is_ready(kernel)
            || self.may_write(kernel)
            || self.election.as_ref().is_some_and(|it| it.is_ready(kernel))
            || self
                .engine
                .next_timeout()
                .is_some_and(|at| at <= kernel.now)
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        let election = self.election.as_ref().and_then(ElectionDriver::wake);
        [election, self.engine.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles one event; `false` once the session ends.
    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        if !kernel.alive(self.app) {
            kernel.trace(self.pid, || "its app is gone".to_owned());
            return false;
        }
        let sources: [fn(&mut Shim, u64, &mut Kernel) -> bool; 4] = [
            Shim::read_app,
            Shim::read_daemon,
            Shim::read_server,
            Shim::continue_election,
        ];
        for nth in 0..sources.len() {
            if sources[(nth + salt as usize) % sources.len()](self, salt, kernel) {
                break;
            }
        }
        self.was_pending = self.engine.session().has_pending_requests();
        self.engine.advance(kernel.now);
        self.carry_out(kernel);
        self.write_queued(kernel);
        self.carry_out(kernel);
        let server = &self.server;
        let has_output = || {
            let has_output =
                |it: &DedicatedServer| it.from.has_line() || kernel.waiting(it.stdout) > 0;
            server.as_ref().is_some_and(has_output)
        };
        let end = self.engine.end(has_output, kernel.now);
        if let Some(end) = &end {
            kernel.trace(self.pid, || format!("ends: {end:?}"));
        }
        end.is_none()
    }

    fn handle(&mut self, event: Event, kernel: &mut Kernel) {
        self.was_pending = self.engine.session().has_pending_requests();
        self.engine.handle(event, kernel.now);
        self.carry_out(kernel);
    }

    fn app_is_readable(&self, kernel: &Kernel) -> bool {
        let upstream = self.connection.as_ref().map(|connection| &connection.to);
        let upstream = upstream.or(self.server.as_ref().map(|server| &server.to));
        let may_read = self.stdin_open
            && !self.engine.session().queue_is_full()
            && upstream.is_none_or(|to| to.len() < QUEUE_LIMIT)
            && self.to_app.len() < QUEUE_LIMIT;
        may_read && (self.from_app.has_line() || kernel.readable(self.stdin))
    }

    fn daemon_is_readable(&self, kernel: &Kernel) -> bool {
        let connection = self.connection.as_ref();
        self.to_app.len() < QUEUE_LIMIT
            && connection.is_some_and(|connection| connection.is_readable(kernel))
    }

    fn server_is_ready(&self, kernel: &Kernel) -> bool {
        self.server
            .as_ref()
            .is_some_and(|server| match self.engine.has_server() {
                true => {
                    let is_readable = server.from.has_line() || kernel.readable(server.stdout);
                    is_readable && self.to_app.len() < QUEUE_LIMIT
                }
                false => kernel.tree_is_empty(server.pid),
            })
    }

    fn may_write(&self, kernel: &Kernel) -> bool {
        let server = self.server.as_ref().filter(|_| self.engine.has_server());
        self.to_app.may_flush(self.stdout, kernel)
            || self
                .connection
                .as_ref()
                .is_some_and(|it| it.may_flush(kernel))
            || server.is_some_and(|it| it.to.may_flush(it.stdin, kernel))
    }

    fn write_queued(&mut self, kernel: &mut Kernel) {
        let loss_was_reported = std::mem::take(&mut self.loss_was_reported);
        while let Some(line) = self.engine.poll_to_app() {
            if let Ok(Message::Response(it)) = Message::parse(&line)
                && let (Outcome::Error(error), Some(id)) = (it.outcome, it.id)
                && let Key::Number(id) = id.key()
            {
                let unknown = String::from_utf8_lossy(error.bytes()).contains("\"unknown\"");
                let checked = kernel.request_log.refused(self.app, id).and_then(|()| {
                    let unknown = unknown && loss_was_reported;
                    kernel
                        .request_log
                        .check_refusal_after_reported_loss(self.app, id, unknown)
                });
                if let Err(broken) = checked {
                    kernel.check(false, || broken);
                }
            }
            self.to_app.push(&line, kernel);
        }
        let input_ended = self.engine.all_input_is_sent();
        if let Some(server) = self.server.as_mut().filter(|_| self.engine.has_server()) {
            while server.to.len() < QUEUE_LIMIT
                && let Some(line) = self.engine.poll_to_upstream()
            {
                server.to.push_after_partial_line(&line, kernel);
            }
            // Bytes that a dead server did not read are counted when it is lost.
            if !kernel.has_no_reader(server.stdin) {
                server.to.flush(server.stdin, kernel);
            }
            if input_ended && server.to.is_between_lines() {
                kernel.close_write(server.stdin);
            }
        }
        if let Some(connection) = &mut self.connection {
            while connection.to.len() < QUEUE_LIMIT
                && let Some(line) = self.engine.poll_to_upstream()
            {
                connection.to.push(&line, kernel);
            }
            connection.flush(kernel);
            if input_ended && connection.to.is_empty() {
                connection.end_input(kernel);
            }
        }
        while self.engine.poll_note().is_some() {}
        let before = self.to_app.len();
        self.to_app.flush(self.stdout, kernel);
        let left = self.to_app.len();
        self.engine
            .handle_output_written(left, left >= QUEUE_LIMIT, left < before, kernel.now);
    }

    fn outbox(&mut self) -> Option<&mut Outbox> {
        let has_server = self.engine.has_server();
        let server = self.server.as_mut().filter(|_| has_server);
        let to_server = server.map(|server| &mut server.to);
        self.connection
            .as_mut()
            .map(|connection| &mut connection.to)
            .or(to_server)
    }

    fn read_app(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        if !self.app_is_readable(kernel) {
            return false;
        }
        if !self.from_app.has_line() && !self.from_app.read(self.stdin, part(salt), kernel) {
            self.stdin_open = false;
            self.outbox()
                .into_iter()
                .for_each(|to| to.abort_partial_line(kernel));
            self.handle(Event::AppClosed, kernel);
        }
        match self.from_app.next_line() {
            Some(line) => self.handle_app_line(&line, kernel),
            None => self.send_ahead(kernel),
        }
        true
    }

    /// Sends the beginning of a long line, if it will be forwarded.
    fn send_ahead(&mut self, kernel: &mut Kernel) {
        if !self.stdin_open || !self.engine.session().can_forward() {
            return;
        }
        if let Some(connection) = &mut self.connection {
            connection.send_ahead(&self.from_app, kernel);
        } else if let Some(server) = self.server.as_mut().filter(|_| self.engine.has_server())
            && self.from_app.begins_a_call()
        {
            server.to.send_ahead(&self.from_app, server.stdin, kernel);
        }
    }

    fn handle_app_line(&mut self, line: &[u8], kernel: &mut Kernel) {
        if let Ok(Message::Notification(it)) = Message::parse(line)
            && let Ok(Some(id)) = it.cancelled()
            && let Key::Number(id) = id.key()
        {
            let between = !self.engine.session().is_attached();
            let last = between.then(|| kernel.last_pid());
            kernel.request_log.cancel_received(self.app, id, last);
        }
        let verdict = self.engine.handle_app_line(line, kernel.now);
        self.carry_out(kernel);
        match (verdict, self.outbox()) {
            (Verdict::Forward, Some(to)) => to.push_begun(line),
            (Verdict::Replace(line), Some(to)) => to.push(&line, kernel),
            (Verdict::Drop | Verdict::Abandon, Some(to)) => to.abort_partial_line(kernel),
            (_, None) => {}
        }
    }

    fn forward_upstream_line(&mut self, line: &[u8], kernel: &mut Kernel) -> Verdict {
        let verdict = self.engine.handle_upstream_line(line, kernel.now);
        match &verdict {
            Verdict::Forward => self.to_app.push(line, kernel),
            Verdict::Replace(line) => self.to_app.push(line, kernel),
            Verdict::Drop | Verdict::Abandon => {}
        }
        verdict
    }

    fn read_daemon(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        if !self.daemon_is_readable(kernel) {
            return false;
        }
        let Some(connection) = &mut self.connection else {
            return false;
        };
        if !connection.from.has_line() {
            let before = connection.from.rest().len();
            if !connection.read(part(salt), kernel) {
                let unwritten = connection.to.unwritten();
                self.handle(Event::DaemonClosed { unwritten }, kernel);
                return true;
            }
            if connection.from.rest().len() > before {
                self.engine.handle_upstream_bytes();
            }
        }
        if let Some(line) = connection.from.next_line() {
            if line.starts_with(b"!") {
                let text = String::from_utf8_lossy(&line).into_owned();
                kernel.trace(self.pid, || format!("reads {text}"));
                let losses = ["!lost", "!resting", "!solo"];
                self.loss_was_reported = losses.iter().any(|loss| text.starts_with(loss));
            }
            let _ = self.forward_upstream_line(&line, kernel);
        }
        true
    }

    fn read_server(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        if !self.server_is_ready(kernel) {
            return false;
        }
        let Some(server) = &mut self.server else {
            return false;
        };
        if !self.engine.has_server() {
            self.server = None;
            let exited = Event::ServerExited {
                ending: ServerExit::Code(0),
                stdin_closed: true,
            };
            self.handle(exited, kernel);
            self.handle(Event::ServerTreeEmpty, kernel);
            return true;
        }
        if !server.from.has_line() {
            if !server.from.read(server.stdout, part(salt), kernel) {
                self.lose_server(kernel);
                return true;
            }
            self.engine.handle_upstream_bytes();
        }
        let line = self.server.as_mut().and_then(|it| it.from.next_line());
        if let Some(line) = line
            && self.forward_upstream_line(&line, kernel) == Verdict::Abandon
        {
            self.lose_server(kernel);
        }
        true
    }

    fn lose_server(&mut self, kernel: &mut Kernel) {
        let Some(server) = &self.server else {
            return;
        };
        let dead = !kernel.alive(server.pid);
        let in_pipe = match dead {
            // The bytes sent ahead are not a complete line.
            true => kernel
                .waiting(server.stdin)
                .saturating_sub(server.to.ahead()),
            false => 0,
        };
        let lost = Event::ServerLost {
            unread: match server.to.matches_queued_lines() {
                true => server.to.len() + in_pipe,
                false => 0,
            },
            ending: dead.then_some(ServerExit::Signal(9)),
            stderr: String::new(),
        };
        kernel.close_write(server.stdin);
        kernel.close_read(server.stdout);
        kernel.stop_tree(server.pid);
        self.handle(lost, kernel);
    }

    fn continue_election(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let Some(election) = self.election.as_mut().filter(|it| it.is_ready(kernel)) else {
            return false;
        };
        if let Some(outcome) = election.turn(kernel) {
            self.election = None;
            let elected = match outcome {
                Elected::NotStuck => engine::Elected::NotStuck,
                Elected::Solo => engine::Elected::NoDaemon {
                    why: "no daemon".to_owned(),
                },
                Elected::Connected(connection, handshake) => {
                    self.new_connection = Some(connection);
                    engine::Elected::Connected { handshake }
                }
            };
            self.handle(Event::Elected(elected), kernel);
        }
        true
    }

    fn carry_out(&mut self, kernel: &mut Kernel) {
        while let Some(action) = self.engine.poll_action() {
            kernel.trace(self.pid, || format!("does: {action:?}"));
            match action {
                Action::StartServer => self.start_server(kernel),
                Action::DeclareServerLost => self.lose_server(kernel),
                Action::StopServer => self.stop_server(kernel),
                Action::Elect(purpose) => self.elect(purpose, kernel),
                Action::AbandonElection => {
                    if let Some(election) = self.election.take() {
                        election.abandon(kernel);
                    }
                }
                Action::UseConnection => self.use_connection(kernel),
                Action::DropConnection => {
                    if let Some(connection) = self.new_connection.take() {
                        connection.close(kernel);
                    }
                }
                Action::Disconnect => {
                    if let Some(connection) = self.connection.take() {
                        connection.close(kernel);
                    }
                }
                Action::Send(control) => {
                    if let Some(connection) = &mut self.connection {
                        connection.to.push_control_line(&control.line(), kernel);
                    }
                }
                Action::CheckDaemon => self.check_daemon(kernel),
                Action::CheckStopped => {
                    let event = Event::StoppedChecked { pid: None };
                    self.engine.handle(event, kernel.now);
                }
                Action::CheckInput => {
                    let event = Event::InputChecked { closed: false };
                    self.engine.handle(event, kernel.now);
                }
                Action::TakePipes => {
                    if let Some(connection) = &mut self.connection {
                        connection.take_pipes(kernel);
                    }
                }
                Action::List(Listing::Hibernating) if self.server.is_some() => {
                    kernel.occurred(Situation::HibernatesDedicated);
                }
                Action::List(Listing::Nothing)
                    if !self.engine.hibernates() && self.new_connection.is_none() =>
                {
                    kernel.occurred(Situation::Wakes);
                }
                Action::ReportStopped
                | Action::Warn(_)
                | Action::PassStderr(_)
                | Action::List(_)
                | Action::TimerCancelled => {}
            }
        }
    }

    fn stop_server(&mut self, kernel: &mut Kernel) {
        let was_pending = self.was_pending;
        kernel.check(!was_pending, || {
            "rule 3: a server is stopped while a request is pending".to_owned()
        });
        if let Some(server) = &self.server {
            kernel.close_write(server.stdin);
            kernel.stop_tree(server.pid);
        }
    }

    fn use_connection(&mut self, kernel: &mut Kernel) {
        let new = self.new_connection.take();
        kernel.check(new.is_some(), || "there is no connection to use".to_owned());
        kernel.check(self.server.is_none(), || {
            "a shim shares while its dedicated server is left".to_owned()
        });
        if let Some(former) = std::mem::replace(&mut self.connection, new) {
            former.close(kernel);
        }
        if self.purpose == Some(Purpose::Return) {
            kernel.occurred(Situation::Returns);
        }
    }

    fn check_daemon(&mut self, kernel: &Kernel) {
        let connection = self.connection.as_ref();
        let work = connection.and_then(|connection| kernel.work(connection.end.peer));
        self.engine.handle(Event::DaemonChecked(work), kernel.now);
    }

    fn start_server(&mut self, kernel: &mut Kernel) {
        if self.engine.is_dedicated_for_now() {
            kernel.occurred(Situation::DedicatedForNow);
        }
        if kernel.shortage == Some(Shortage::Sessions) {
            kernel.occurred(Situation::SessionLacks);
            let why = "no descriptors".to_owned();
            return self
                .engine
                .handle(Event::ServerNotStarted { why }, kernel.now);
        }
        let (pid, stdin, stdout) = kernel.start_server(self.pid, None);
        let previous = self.server.replace(DedicatedServer {
            pid,
            stdin,
            stdout,
            from: Inbox::default(),
            to: Outbox::default(),
        });
        kernel.check(previous.is_none(), || {
            "a shim starts a server while another one is left".to_owned()
        });
        self.engine.handle(Event::ServerStarted, kernel.now);
    }

    fn elect(&mut self, purpose: Purpose, kernel: &mut Kernel) {
        let suspect = match purpose {
            Purpose::CheckSuspect => self
                .connection
                .as_ref()
                .map(|connection| connection.end.peer),
            Purpose::Attach | Purpose::Return => None,
        };
        let handshake = match purpose {
            Purpose::Return => None,
            _ => self
                .engine
                .session()
                .handshake_request()
                .map(<[u8]>::to_vec),
        };
        self.purpose = Some(purpose);
        let hello = hello(self.pid, self.app, kernel.settings).line();
        let election_driver = ElectionDriver::new(self.pid, hello, handshake, suspect, kernel.now);
        let left = self.election.replace(election_driver);
        kernel.check(left.is_none(), || "two elections of one shim".to_owned());
    }
}

fn hello(shim: Pid, app: Pid, settings: WorldSettings) -> ClientHello {
    let hibernate = settings.hibernate;
    ClientHello {
        version: "0".to_owned(),
        protocol: PROTOCOL,
        pid: shim,
        identity: shim.to_string(),
        app: None,
        session: format!("session of {app}"),
        spec: Spec {
            command: vec![Text::from(&b"server"[..])],
            cwd: Text::from(&b"/"[..]),
            ladder: (2000, 2000),
            cache: true,
            in_turn: settings.in_turn,
            hibernate: hibernate.map(|after| after.as_millis() as u64),
            replace: false,
            detached: None,
        },
        env: Arc::default(),
        shares: Shares::default(),
        build: String::new(),
        program: Text::from(&b""[..]),
        pipes: settings.pipes,
        key: None,
    }
}
