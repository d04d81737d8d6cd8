//! A shim in the simulated world: a driver for the engine of `kennel run`. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use kennel_core::engine::shim::{
    self as engine, Action, Event, Purpose, Settings, SharingSettings,
};
use kennel_core::hello::{ClientHello, PROTOCOL, Shares, Spec, Text};
use kennel_core::message::{Key, Message, Outcome};
use kennel_core::session::{Ending, Replay, Verdict};
use kennel_core::time::Moment;

use crate::elector::{Elected, Elector, START_TIMEOUT};
use crate::kernel::{End, Heard, House, Kernel, Pid, PipeId};

/// The first time of `--stop-after`, as `kennel run` has it by default.
const AFTER_EOF: Duration = Duration::from_secs(2);

pub(crate) struct Shim {
    pid: Pid,
    app: Pid,
    engine: engine::Shim,
    stdin: PipeId,
    stdin_open: bool,
    stdout: PipeId,
    link: Option<End>,
    /// The connection that an election made, until the engine uses it.
    new_link: Option<End>,
    server: Option<Server>,
    election: Option<Elector>,
    /// A request was pending before the last event.
    owed: bool,
}

/// A server of the session's own.
struct Server {
    pid: Pid,
    stdin: PipeId,
    stdout: PipeId,
}

impl Shim {
    pub(crate) fn new(pid: Pid, app: Pid, stdin: PipeId, stdout: PipeId, kernel: &Kernel) -> Shim {
        let settings = Settings {
            replay: Replay::default(),
            sharing: kernel.house.shared.then(|| SharingSettings {
                modern_only: false,
                start_timeout: START_TIMEOUT,
                why: String::new(),
            }),
            why_dedicated: None,
            hibernate: kernel.house.hibernate,
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
            link: None,
            new_link: None,
            server: None,
            election: None,
            owed: false,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        !kernel.alive(self.app)
            || self.app_speaks(kernel)
            || self.link.is_some_and(|link| kernel.readable(link.read))
            || self.server_stirs(kernel)
            || self.election.as_ref().is_some_and(|it| it.is_ready(kernel))
            || self
                .engine
                .next_timeout()
                .is_some_and(|at| at <= kernel.now)
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        let election = self.election.as_ref().and_then(Elector::wake);
        [election, self.engine.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// One of the things that happened; `false` once the session is over.
    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        if !kernel.alive(self.app) {
            kernel.say(self.pid, || "its app is gone".to_owned());
            return false;
        }
        let sources: [fn(&mut Shim, &mut Kernel) -> bool; 4] = [
            Shim::read_app,
            Shim::read_daemon,
            Shim::read_server,
            Shim::continue_election,
        ];
        for nth in 0..sources.len() {
            if sources[(nth + salt as usize) % sources.len()](self, kernel) {
                break;
            }
        }
        self.owed = self.engine.session().owes();
        self.engine.advance(kernel.now);
        self.carry_out(kernel);
        self.pass_on(kernel);
        self.engine.output_written(0, false, false, kernel.now);
        let server = &self.server;
        let has_output = || {
            server
                .as_ref()
                .is_some_and(|it| kernel.waiting(it.stdout) > 0)
        };
        let end = self.engine.end(has_output, kernel.now);
        if let Some(end) = &end {
            kernel.say(self.pid, || format!("ends: {end:?}"));
        }
        end.is_none()
    }

    fn handle(&mut self, event: Event, kernel: &mut Kernel) {
        self.owed = self.engine.session().owes();
        self.engine.handle(event, kernel.now);
        self.carry_out(kernel);
    }

    fn app_speaks(&self, kernel: &Kernel) -> bool {
        let may_read = self.stdin_open && !self.engine.session().queue_is_full();
        may_read && kernel.readable(self.stdin)
    }

    fn server_stirs(&self, kernel: &Kernel) -> bool {
        self.server
            .as_ref()
            .is_some_and(|server| match self.engine.has_server() {
                true => kernel.readable(server.stdout),
                false => kernel.tree_is_empty(server.pid),
            })
    }

    fn pass_on(&mut self, kernel: &mut Kernel) {
        while let Some(line) = self.engine.poll_to_app() {
            if let Ok(Message::Response(it)) = Message::parse(&line)
                && let (Outcome::Error(_), Some(id)) = (it.outcome, it.id)
                && let Key::Number(id) = id.key()
                && let Err(broken) = kernel.books.refused(self.app, id)
            {
                kernel.must(false, || broken);
            }
            kernel.write(self.stdout, &line);
        }
        if let Some(to) = self.to_upstream() {
            while let Some(line) = self.engine.poll_to_upstream() {
                kernel.write(to, &line);
            }
            if self.engine.app_said_all() {
                kernel.close_write(to);
            }
        }
        while self.engine.poll_note().is_some() {}
    }

    fn to_upstream(&self) -> Option<PipeId> {
        let server = self.server.as_ref().filter(|_| self.engine.has_server());
        let to_server = server.map(|server| server.stdin);
        self.link.map(|link| link.write).or(to_server)
    }

    fn read_app(&mut self, kernel: &mut Kernel) -> bool {
        if !self.app_speaks(kernel) {
            return false;
        }
        match kernel.read(self.stdin) {
            Heard::Line(line) => self.take_from_app(&line, kernel),
            Heard::End => {
                self.stdin_open = false;
                self.handle(Event::AppClosed, kernel);
            }
            Heard::Nothing => {}
        }
        true
    }

    fn take_from_app(&mut self, line: &[u8], kernel: &mut Kernel) {
        if let Ok(Message::Notification(it)) = Message::parse(line)
            && let Ok(Some(id)) = it.cancelled()
            && let Key::Number(id) = id.key()
        {
            let between = !self.engine.session().is_attached();
            let last = between.then(|| kernel.last_pid());
            kernel.books.cancel_heard(self.app, id, last);
        }
        let verdict = self.engine.app_line(line, kernel.now);
        self.carry_out(kernel);
        match (verdict, self.to_upstream()) {
            (Verdict::Forward, Some(to)) => drop(kernel.write(to, line)),
            (Verdict::Replace(line), Some(to)) => drop(kernel.write(to, &line)),
            _ => {}
        }
    }

    fn take_from_upstream(&mut self, line: &[u8], kernel: &mut Kernel) -> Verdict {
        self.engine.upstream_spoke();
        let verdict = self.engine.upstream_line(line, kernel.now);
        match &verdict {
            Verdict::Forward => drop(kernel.write(self.stdout, line)),
            Verdict::Replace(line) => drop(kernel.write(self.stdout, line)),
            Verdict::Drop | Verdict::Abandon => {}
        }
        verdict
    }

    fn read_daemon(&mut self, kernel: &mut Kernel) -> bool {
        let Some(link) = self.link.filter(|link| kernel.readable(link.read)) else {
            return false;
        };
        match kernel.read(link.read) {
            Heard::Nothing => return false,
            Heard::End => self.handle(Event::DaemonClosed, kernel),
            Heard::Line(line) => {
                if line.starts_with(b"!") {
                    let text = String::from_utf8_lossy(&line).into_owned();
                    kernel.say(self.pid, || format!("is told {text}"));
                }
                let _ = self.take_from_upstream(&line, kernel);
            }
        }
        true
    }

    fn read_server(&mut self, kernel: &mut Kernel) -> bool {
        if !self.server_stirs(kernel) {
            return false;
        }
        let Some(server) = &self.server else {
            return false;
        };
        if !self.engine.has_server() {
            self.server = None;
            self.handle(
                Event::ServerExited {
                    ending: Ending::Code(0),
                    stdin_closed: true,
                },
                kernel,
            );
            self.handle(Event::ServerTreeEmpty, kernel);
            return true;
        }
        match kernel.read(server.stdout) {
            Heard::Line(line) => {
                if self.take_from_upstream(&line, kernel) == Verdict::Abandon {
                    self.lose_server(kernel);
                }
            }
            Heard::End => self.lose_server(kernel),
            Heard::Nothing => return false,
        }
        true
    }

    fn lose_server(&mut self, kernel: &mut Kernel) {
        let Some(server) = &self.server else {
            return;
        };
        let dead = !kernel.alive(server.pid);
        let lost = Event::ServerLost {
            unread: match dead {
                true => kernel.unread(server.stdin),
                false => 0,
            },
            ending: dead.then_some(Ending::Signal(9)),
            stderr: String::new(),
        };
        kernel.close_write(server.stdin);
        kernel.close_read(server.stdout);
        kernel.stop_tree(server.pid);
        self.handle(lost, kernel);
    }

    fn continue_election(&mut self, kernel: &mut Kernel) -> bool {
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
                Elected::Connected(end) => {
                    self.new_link = Some(end);
                    engine::Elected::Connected { greeting: None }
                }
            };
            self.handle(Event::Elected(elected), kernel);
        }
        true
    }

    fn carry_out(&mut self, kernel: &mut Kernel) {
        while let Some(action) = self.engine.poll_action() {
            kernel.say(self.pid, || format!("does: {action:?}"));
            match action {
                Action::StartServer => {
                    let (pid, stdin, stdout) = kernel.start_server(self.pid, None);
                    let left = self.server.replace(Server { pid, stdin, stdout });
                    kernel.must(left.is_none(), || {
                        "a shim starts a server while another one is left".to_owned()
                    });
                    self.engine.handle(Event::ServerStarted, kernel.now);
                }
                Action::LoseServer => self.lose_server(kernel),
                Action::StopServer => {
                    let owed = self.owed;
                    kernel.must(!owed, || {
                        "rule 3: a server is stopped while a request is pending".to_owned()
                    });
                    if let Some(server) = &self.server {
                        kernel.close_write(server.stdin);
                        kernel.stop_tree(server.pid);
                    }
                }
                Action::Elect(purpose) => {
                    let suspect = match purpose {
                        Purpose::CheckSuspect => self.link.map(|link| link.peer),
                        Purpose::Attach | Purpose::Return => None,
                    };
                    let hello = hello(self.pid, self.app, kernel.house).line();
                    let elector = Elector::new(self.pid, hello, suspect, kernel.now);
                    let left = self.election.replace(elector);
                    kernel.must(left.is_none(), || "two elections of one shim".to_owned());
                }
                Action::AbandonElection => {
                    if let Some(election) = self.election.take() {
                        election.abandon(kernel);
                    }
                }
                Action::UseConnection => {
                    let new = self.new_link.take();
                    kernel.must(new.is_some(), || "no connection to be used".to_owned());
                    kernel.must(self.server.is_none(), || {
                        "a shim shares while its own server is left".to_owned()
                    });
                    if let Some(former) = std::mem::replace(&mut self.link, new) {
                        kernel.hang_up(former);
                    }
                }
                Action::DropConnection => {
                    if let Some(link) = self.new_link.take() {
                        kernel.hang_up(link);
                    }
                }
                Action::Disconnect => {
                    if let Some(link) = self.link.take() {
                        kernel.hang_up(link);
                    }
                }
                Action::Send(control) => {
                    if let Some(link) = self.link {
                        kernel.write(link.write, &control.line());
                    }
                }
                Action::CheckDaemon => {
                    let work = self.link.and_then(|link| kernel.work(link.peer));
                    self.engine.handle(Event::DaemonChecked(work), kernel.now);
                }
                Action::CheckStopped => {
                    let event = Event::StoppedChecked { pid: None };
                    self.engine.handle(event, kernel.now);
                }
                Action::CheckInput => {
                    let event = Event::InputChecked { closed: false };
                    self.engine.handle(event, kernel.now);
                }
                Action::TakePipes
                | Action::ReportStopped
                | Action::Warn(_)
                | Action::PassStderr(_)
                | Action::List(_)
                | Action::TimerCancelled => {}
            }
        }
    }
}

fn hello(shim: Pid, app: Pid, house: House) -> ClientHello {
    let hibernate = house.hibernate;
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
            in_turn: house.in_turn,
            hibernate: hibernate.map(|after| after.as_millis() as u64),
            replace: false,
            detached: None,
        },
        env: Arc::default(),
        shares: Shares::default(),
        build: String::new(),
        program: Text::from(&b""[..]),
        pipes: false,
        key: None,
    }
}
