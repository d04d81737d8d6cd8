//! The running server of a slot: its process tree, its pipes, and their unprocessed input.

use std::cell::{Cell, RefCell};
use std::io::{self, PipeReader, PipeWriter};
use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::{InputLine, MIN_PER_CONNECTION, Reader, SlotId};
use kennel_core::hello::{ClientHello, Text};
use kennel_sys::detach::{Kind, adopt};
use kennel_sys::io::{Interest, Reactor, Source, number_of};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::tree::Tree;
use serde::{Deserialize, Serialize};

use super::daemon_state::DaemonState;
use super::origin::Origin;
use super::run_queue::{DELIVERIES_PER_RUN, LINES_PER_RUN, Runnable};
use super::server::{ServerStage, detached, stop_ladder, to_os_string};
use super::server_io::ServerIo;
use crate::lines::{Inbox, SkippedLines};
use crate::server_process::{
    MAX_STDERR_LINE, ServerLaunch, ServerPipes, StderrTail, is_still_open,
};

/// Maximum bytes read after stdout was given up: a pipe holds at most that, see [`BufferSize`](kennel_sys::io::BufferSize).
const MAX_AFTER_END: usize = 2 << 20;
/// A started server, with everything that a newer build needs of it.
pub(super) struct ServerProcess {
    pub(super) tree: Source<Tree>,
    /// Until the server's input is closed.
    stdin: RefCell<Option<Rc<Source<PipeWriter>>>>,
    stdout: OutputPipe,
    stdout_end: Cell<StdoutEnd>,
    stderr: OutputPipe,
    stderr_tail: RefCell<StderrTail>,
    pub(super) status: Cell<ServerStatus>,
}

/// A [`ServerProcess`] in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProcessSnapshot {
    warden: u32,
    control: i32,
    stdin: i32,
    stdout: i32,
    stderr: i32,
    unfinished: Text,
    /// `None` from builds before version 0.4.
    #[serde(default)]
    skipped: Option<SkippedLines>,
    #[serde(rename = "unfinished_complaint")]
    unfinished_stderr: Text,
    #[serde(default)]
    skipped_stderr: Option<SkippedLines>,
    #[serde(rename = "last_words")]
    stderr_tail: StderrTail,
    #[serde(rename = "course")]
    status: ServerStatus,
}

impl ServerProcess {
    pub(super) fn start(
        reactor: &Reactor,
        slot: SlotId,
        hello: &ClientHello,
        records: Option<&RuntimeDir>,
    ) -> io::Result<ServerProcess> {
        let pair = |(name, value): &(Text, Text)| (to_os_string(name), to_os_string(value));
        let launch = ServerLaunch {
            command: hello.spec.command.iter().map(to_os_string).collect(),
            env: Some(hello.env.iter().map(pair).collect()),
            cwd: Some(to_os_string(&hello.spec.cwd).into()),
            ladder: stop_ladder(hello),
            detached: detached(hello),
            records,
            // Small: no line can overtake what is in it, so that one client's flood would delay all clients.
            stdin_size: kennel_core::engine::daemon::CHUNK,
        };
        let (tree, pipes) = launch.start()?;
        Ok(ServerProcess::new(reactor, slot, tree, pipes))
    }

    fn new(reactor: &Reactor, slot: SlotId, tree: Tree, pipes: ServerPipes) -> ServerProcess {
        let output_pipe = |pipe, origin: Origin| OutputPipe {
            pipe: Source::new(reactor, pipe, origin.token()),
            inbox: RefCell::default(),
        };
        let stdin = Source::new(reactor, pipes.stdin, Origin::ServerStdin(slot).token());
        ServerProcess {
            tree: Source::new(reactor, tree, Origin::Reports(slot).token()),
            stdin: RefCell::new(Some(Rc::new(stdin))),
            stdout: output_pipe(pipes.stdout, Origin::ServerStdout(slot)),
            stdout_end: Cell::default(),
            stderr: output_pipe(pipes.stderr, Origin::ServerStderr(slot)),
            stderr_tail: RefCell::default(),
            status: Cell::default(),
        }
    }

    /// Waits for reports of the warden, and for output.
    pub(super) fn set_interest(&self) -> io::Result<()> {
        self.tree.set_interest(Interest::READ)?;
        self.stdout.pipe.set_interest(Interest::READ)?;
        let status = self.status.get();
        if !status.stderr_closed {
            self.stderr.pipe.set_interest(Interest::READ)?;
        }
        Ok(())
    }

    /// Stops waiting for its events, except for the warden's exit.
    pub(super) fn ignore(&self) {
        let _ = self.tree.set_interest(Interest::NONE);
        let _ = self.stdout.pipe.set_interest(Interest::NONE);
        let _ = self.stderr.pipe.set_interest(Interest::NONE);
    }

    /// Stops its process tree.
    pub(super) fn stop(&self) {
        if !self.status.get().stopped {
            // If the warden is gone, its report is in the pipe already.
            let _ = self.tree.stop();
        }
        self.update_status(|status| status.stopped = true);
    }

    pub(super) fn update_status(&self, change: impl FnOnce(&mut ServerStatus)) {
        let mut status = self.status.get();
        change(&mut status);
        self.status.set(status);
    }

    /// Whether the rest of its stdout is read, after it was given up.
    pub(super) fn is_drained(&self) -> bool {
        matches!(self.stdout_end.get(), StdoutEnd::GivenUp(_))
    }

    /// The last lines that it wrote to stderr.
    pub(super) fn stderr_tail(&self) -> String {
        self.stderr_tail.borrow().text()
    }

    /// Its input, until that is closed.
    pub(super) fn stdin(&self) -> Option<Rc<Source<PipeWriter>>> {
        self.stdin.borrow().clone()
    }

    /// Bytes of memory that its half line takes.
    pub(super) fn held_bytes(&self) -> usize {
        let inbox = self.stdout.inbox.try_borrow();
        inbox.map_or(0, |inbox| inbox.memory())
    }

    /// Closes its input.
    pub(super) fn close_stdin(&self) {
        self.stdin.take();
    }

    /// Its snapshot; `None` if it is ending.
    pub(super) fn snapshot(&self) -> Option<ProcessSnapshot> {
        let ServerProcess {
            tree,
            stdin,
            stdout,
            // An end is read again. A stdout that was given up is not in a snapshot.
            stdout_end: _,
            stderr,
            stderr_tail,
            status,
        } = self;
        let status = status.get();
        if status.stopped || status.stdout_closed || status.announced || self.is_drained() {
            return None;
        }
        let (unfinished, skipped) = stdout.snapshot();
        let (unfinished_stderr, skipped_stderr) = stderr.snapshot();
        Some(ProcessSnapshot {
            warden: tree.warden().pid(),
            control: number_of(tree),
            stdin: number_of(&**stdin.borrow().as_ref()?),
            stdout: number_of(&stdout.pipe),
            stderr: number_of(&stderr.pipe),
            unfinished,
            skipped: Some(skipped),
            unfinished_stderr,
            skipped_stderr: Some(skipped_stderr),
            stderr_tail: stderr_tail.borrow().clone(),
            status,
        })
    }

    /// Continues with a server of a snapshot.
    pub(super) fn restore(
        reactor: &Reactor,
        slot: SlotId,
        snapshot: ProcessSnapshot,
    ) -> io::Result<ServerProcess> {
        let pipe = |fd| adopt(fd, Kind::Pipe);
        let pipes = ServerPipes {
            stdin: pipe(snapshot.stdin)?.into(),
            stdout: pipe(snapshot.stdout)?.into(),
            stderr: pipe(snapshot.stderr)?.into(),
        };
        pipes.set_nonblocking()?;
        let tree = Tree::taken_over(adopt(snapshot.control, Kind::Socket)?, snapshot.warden)?;
        let running = ServerProcess::new(reactor, slot, tree, pipes);
        running
            .stdout
            .restore(snapshot.unfinished, snapshot.skipped);
        running
            .stderr
            .restore(snapshot.unfinished_stderr, snapshot.skipped_stderr);
        running.stderr_tail.replace(snapshot.stderr_tail);
        running.status.set(snapshot.status);
        Ok(running)
    }
}

impl AsRef<ProcessRef> for ServerProcess {
    /// The warden.
    fn as_ref(&self) -> &ProcessRef {
        self.tree.warden()
    }
}

impl ProcessSnapshot {
    /// Whether the next line of stdout may be the rest of a line that the former build skipped: older builds do not say so.
    pub(super) fn may_have_skipped(&self) -> bool {
        self.skipped.is_none() && self.unfinished.as_bytes().is_empty()
    }

    /// Its descriptors.
    pub(super) fn descriptors(&self) -> [i32; 4] {
        [self.control, self.stdin, self.stdout, self.stderr]
    }
}

/// The state of a server's process and streams.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub(super) struct ServerStatus {
    /// It runs, or ran.
    pub(super) started: bool,
    /// It could not be started: the system's error number.
    pub(super) refused: Option<i32>,
    /// Its stdout is closed.
    #[serde(rename = "silent")]
    pub(super) stdout_closed: bool,
    /// Its stderr is closed.
    #[serde(rename = "calm")]
    pub(super) stderr_closed: bool,
    /// Its warden was ordered to stop it.
    pub(super) stopped: bool,
    /// Its warden reported the end of the tree.
    pub(super) announced: bool,
}

/// How far a server's stdout is read.
#[derive(Debug, Default, Clone, Copy)]
enum StdoutEnd {
    /// It is open.
    #[default]
    Open,
    /// The end was read; complete lines may be left.
    Closed,
    /// It was given up, and this many bytes were read since. Bounded: another process that has the pipe may write for ever.
    GivenUp(usize),
}

/// A pipe from the server, and its unprocessed input.
struct OutputPipe {
    pipe: Source<PipeReader>,
    inbox: RefCell<Inbox>,
}

impl OutputPipe {
    /// The beginning of an incomplete line, and the lines that are being skipped.
    fn snapshot(&self) -> (Text, SkippedLines) {
        let inbox = self.inbox.borrow();
        let (unfinished, skipped) = inbox.snapshot();
        (Text::from(unfinished), skipped)
    }

    /// Continues with a [`snapshot`](Self::snapshot).
    fn restore(&self, unfinished: Text, skipped: Option<SkippedLines>) {
        let unfinished = unfinished.as_bytes().to_vec();
        let inbox = Inbox::restored(unfinished, skipped.unwrap_or_default());
        self.inbox.replace(inbox);
    }

    /// Reads available output once; 0 at the end.
    fn read(&self) -> io::Result<usize> {
        self.inbox.borrow_mut().read(&self.pipe)
    }
}

/// Reads a server's stdout.
impl ServerIo {
    /// Handles output or the end of stdout.
    pub(super) fn on_stdout(&self, daemon: &DaemonState) {
        let Some(running) = self.process() else {
            return;
        };
        let is_open = matches!(running.stdout_end.get(), StdoutEnd::Open);
        // Lines that were read before come first.
        if !is_open || self.has_lines.get() || self.stage.get() == ServerStage::Reaping {
            return;
        }
        if !is_still_open(&running.stdout.read()) {
            running.stdout_end.set(StdoutEnd::Closed);
        }
        self.forward_lines(daemon);
        self.advance(daemon);
    }

    /// Passes complete lines to the engine, up to [`LINES_PER_RUN`] and [`DELIVERIES_PER_RUN`]; then decides whether
    /// more is read.
    pub(super) fn forward_lines(&self, daemon: &DaemonState) {
        let Some(running) = self.process() else {
            return;
        };
        if running.status.get().stdout_closed {
            return;
        }
        let now = Instant::now();
        let delivered = daemon.deliveries.get();
        for _ in 0..LINES_PER_RUN {
            if !self.forward_line(daemon, &running, now) {
                self.has_lines.set(false);
                return self.all_lines_forwarded(daemon, &running);
            }
            if daemon.deliveries.get().wrapping_sub(delivered) >= DELIVERIES_PER_RUN {
                break;
            }
        }
        self.has_lines.set(true);
        daemon.run_queue.push(Runnable::Server(self.slot));
    }

    fn all_lines_forwarded(&self, daemon: &DaemonState, running: &ServerProcess) {
        self.refuse_if_too_much(daemon, running);
        match running.stdout_end.get() {
            StdoutEnd::Open => {
                let update_throttle = self.update_throttle(daemon);
                let interest = if update_throttle {
                    Interest::READ
                } else {
                    Interest::NONE
                };
                let _ = running.stdout.pipe.set_interest(interest);
            }
            StdoutEnd::Closed => self.stdout_is_closed(daemon, running),
            StdoutEnd::GivenUp(count_before) => {
                match (count_before < MAX_AFTER_END).then(|| running.stdout.read()) {
                    Some(Ok(count @ 1..)) => {
                        running
                            .stdout_end
                            .set(StdoutEnd::GivenUp(count_before + count));
                        self.has_lines.set(true);
                        daemon.run_queue.push(Runnable::Server(self.slot));
                    }
                    _ => self.stdout_is_closed(daemon, running),
                }
            }
        }
    }

    /// Handles the end of stdout, after all its lines.
    fn stdout_is_closed(&self, daemon: &DaemonState, running: &ServerProcess) {
        let rest = running.stdout.inbox.borrow_mut().rest_of_server_output();
        if let Some(rest) = rest {
            self.take_server_line(daemon, InputLine::from(&rest[..]), Instant::now());
        }
        let _ = running.stdout.pipe.set_interest(Interest::NONE);
        running.update_status(|status| status.stdout_closed = true);
        match self.stage.get() {
            ServerStage::Reaping => self.process_is_gone(daemon),
            _ => daemon.run_queue.push(Runnable::Server(self.slot)),
        }
    }

    /// Reads the rest of an ended server's stdout.
    pub(super) fn drain(&self, daemon: &DaemonState) {
        let Some(running) = self.process() else {
            return;
        };
        if matches!(running.stdout_end.get(), StdoutEnd::Open) {
            let _ = running.stdout.pipe.set_interest(Interest::NONE);
            running.stdout_end.set(StdoutEnd::GivenUp(0));
        }
        self.forward_lines(daemon);
    }

    /// Skips a line that is still being read, if memory is short.
    fn refuse_if_too_much(&self, daemon: &DaemonState, running: &ServerProcess) {
        let inbox = &running.stdout.inbox;
        let length = inbox.borrow().len();
        if length > MIN_PER_CONNECTION && !daemon.make_room(Reader::Server(length)) {
            inbox.borrow_mut().skip_line();
        }
    }

    /// Passes the next complete line to the engine; `false` if there is none.
    fn forward_line(&self, daemon: &DaemonState, running: &ServerProcess, now: Instant) -> bool {
        let mut inbox = running.stdout.inbox.borrow_mut();
        if let Some(line) = inbox.next_input() {
            self.take_server_line(daemon, line, now);
            return true;
        }
        let Some(line) = inbox.next_too_long(true) else {
            return false;
        };
        daemon.log.line(line.note("the server"));
        for message in line.messages() {
            if let Some(answer) = message.replacement() {
                self.take_server_line(daemon, InputLine::from(&answer[..]), now);
            } else if message.id.is_some() {
                let (slot, now) = (self.slot, daemon.moment(now));
                let refusal = message.refusal();
                daemon.tell_engine(|engine| engine.answer_server(slot, refusal, now));
            }
        }
        true
    }
}

/// Reads a server's stderr.
impl ServerIo {
    /// Handles output or the end of stderr.
    pub(super) fn on_stderr(&self, daemon: &DaemonState) {
        let Some(running) = self.process() else {
            return;
        };
        if self.has_stderr_lines.get() || running.status.get().stderr_closed {
            return;
        }
        if !is_still_open(&running.stderr.read()) {
            let _ = running.stderr.pipe.set_interest(Interest::NONE);
            running.update_status(|status| status.stderr_closed = true);
        }
        self.read_stderr(daemon);
    }

    /// Logs complete lines, up to [`LINES_PER_RUN`].
    pub(super) fn read_stderr(&self, daemon: &DaemonState) {
        let Some(running) = self.process() else {
            return;
        };
        for _ in 0..LINES_PER_RUN {
            if !self.take_stderr_line(daemon, &running) {
                self.has_stderr_lines.set(false);
                // A line that never ends, such as a progress bar, must not fill the memory.
                let is_long = running.stderr.inbox.borrow().len() > MAX_STDERR_LINE;
                if is_long || running.status.get().stderr_closed {
                    self.take_last_stderr_line(daemon, &running);
                }
                return;
            }
        }
        self.has_stderr_lines.set(true);
        daemon.run_queue.push(Runnable::Server(self.slot));
    }

    /// Reads stderr only once more: a process that keeps writing would never let it end.
    pub(super) fn read_last_stderr(&self, daemon: &DaemonState) {
        let Some(running) = self.process() else {
            return;
        };
        let _ = running.stderr.read();
        while self.take_stderr_line(daemon, &running) {}
        self.take_last_stderr_line(daemon, &running);
    }

    fn take_stderr_line(&self, daemon: &DaemonState, running: &ServerProcess) -> bool {
        let mut inbox = running.stderr.inbox.borrow_mut();
        let line = inbox.next_line();
        line.map(|line| self.log_printed_line(daemon, running, line))
            .is_some()
    }

    fn take_last_stderr_line(&self, daemon: &DaemonState, running: &ServerProcess) {
        let rest = running.stderr.inbox.borrow_mut().rest();
        if let Some(rest) = rest {
            self.log_printed_line(daemon, running, &rest);
        }
    }

    fn log_printed_line(&self, daemon: &DaemonState, running: &ServerProcess, line: &[u8]) {
        running.stderr_tail.borrow_mut().push(line);
        let line = String::from_utf8_lossy(line).into_owned();
        self.log_stderr(daemon, &line);
        let (slot, session) = (self.slot, &self.hello.session);
        daemon.tell_engine(|engine| engine.handle_server_stderr(slot, session, line));
    }

    fn process(&self) -> Option<Rc<ServerProcess>> {
        self.running.borrow().clone()
    }
}
