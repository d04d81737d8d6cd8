//! The process of a server slot while it runs: its tree, its pipes, and what came of them so far.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::InputLine;
use kennel_core::hello::{ClientHello, Text};
use kennel_sys::detach::{Kind, adopt};
use kennel_sys::tree::{Launch, Tree};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::daemon_state::DaemonState;
use super::memory::SMALL;
use super::server::{detached, ladder, os};
use super::server_io::ServerIo;
use super::tasks::{Descriptor, in_turns};
use crate::shim::lines::{CHUNK, Inbox};

/// What a pipe holds: large lines need fewer turns.
const PIPE_SIZE: usize = 256 * 1024;
/// What a pipe may hold at most: see [`Width`](crate::shim::width::Width).
const A_PIPE: usize = 2 << 20;
/// A longer line on stderr is taken in parts.
const LONGEST_COMPLAINT: usize = 128 * 1024;
/// How much of what the server said on stderr is kept for an error.
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 500;

/// A server that was started. What is not in here of it is nowhere: another program can go on with it.
pub(super) struct Running {
    pub(super) tree: Tree,
    /// Until it is told that no more will come.
    stdin: RefCell<Option<Rc<Descriptor<OwnedFd>>>>,
    stdout: Heard,
    stderr: Heard,
    last_words: RefCell<VecDeque<String>>,
    pub(super) course: Cell<Course>,
}

/// The same, to go on with after an exec.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Carried {
    warden: u32,
    control: RawFd,
    stdin: RawFd,
    stdout: RawFd,
    stderr: RawFd,
    unfinished: Text,
    unfinished_complaint: Text,
    last_words: VecDeque<String>,
    course: Course,
}

impl Running {
    pub(super) fn start(
        hello: &ClientHello,
        records: Option<BorrowedFd<'_>>,
    ) -> io::Result<Running> {
        let (stdin, to_server) = pipe()?;
        let (from_server, stdout) = pipe()?;
        let (errors, stderr) = pipe()?;
        // Smaller pipes only cost turns: an unprivileged user may have used up its share of larger ones.
        let _ = rustix::pipe::fcntl_setpipe_size(&from_server, PIPE_SIZE);
        // What is in it cannot be overtaken any more: the flood of one client would be everybody's.
        let _ = rustix::pipe::fcntl_setpipe_size(&to_server, kennel_core::engine::daemon::CHUNK);
        let to_server = Descriptor::of_output(unblocked(to_server)?)?;
        let from_server = Heard::new(from_server, Vec::new())?;
        let errors = Heard::new(errors, Vec::new())?;
        let pair = |(name, value): &(Text, Text)| (os(name), os(value));
        let tree = Launch {
            server: hello.spec.command.iter().map(os).collect(),
            warden: vec![crate::this_build::itself().into(), "warden".into()],
            stdio: [stdin, stdout, stderr],
            env: Some(hello.env.iter().map(pair).collect()),
            cwd: Some(os(&hello.spec.cwd).into()),
            ladder: ladder(hello),
            detached: detached(hello),
            records,
        }
        .start()?;
        Ok(Running {
            tree,
            stdin: RefCell::new(Some(Rc::new(to_server))),
            stdout: from_server,
            stderr: errors,
            last_words: RefCell::default(),
            course: Cell::default(),
        })
    }

    /// Where it hears its clients, as long as it does.
    pub(super) fn stdin(&self) -> Option<Rc<Descriptor<OwnedFd>>> {
        self.stdin.borrow().clone()
    }

    /// How many bytes of memory are held of a line that it has not ended.
    pub(super) fn holds(&self) -> usize {
        let inbox = self.stdout.inbox.try_borrow();
        inbox.map_or(0, |inbox| inbox.memory())
    }

    /// No more will be said to it.
    pub(super) fn close_stdin(&self) {
        self.stdin.take();
    }

    /// What another program needs to go on with it; `None` on its way out.
    pub(super) fn carried(&self) -> Option<Carried> {
        let course = self.course.get();
        if course.stopped || course.silent || course.announced {
            return None;
        }
        Some(Carried {
            warden: self.tree.warden().pid(),
            control: self.tree.as_fd().as_raw_fd(),
            stdin: self.stdin.borrow().as_ref()?.as_fd().as_raw_fd(),
            stdout: self.stdout.fd(),
            stderr: self.stderr.fd(),
            unfinished: self.stdout.unfinished(),
            unfinished_complaint: self.stderr.unfinished(),
            last_words: self.last_words.borrow().clone(),
            course,
        })
    }

    /// Goes on with what another program started.
    pub(super) fn resume(carried: Carried) -> io::Result<Running> {
        let pipe = |fd| adopt(fd, Kind::Pipe);
        let bytes = |text: Text| text.as_bytes().to_vec();
        let stdin = Descriptor::of_output(unblocked(pipe(carried.stdin)?)?)?;
        Ok(Running {
            tree: Tree::taken_over(adopt(carried.control, Kind::Socket)?, carried.warden)?,
            stdin: RefCell::new(Some(Rc::new(stdin))),
            stdout: Heard::new(pipe(carried.stdout)?, bytes(carried.unfinished))?,
            stderr: Heard::new(pipe(carried.stderr)?, bytes(carried.unfinished_complaint))?,
            last_words: RefCell::new(carried.last_words),
            course: Cell::new(carried.course),
        })
    }
}

impl Carried {
    /// The descriptors it comes with.
    pub(super) fn descriptors(&self) -> [RawFd; 4] {
        [self.control, self.stdin, self.stdout, self.stderr]
    }
}

/// What is known of a server so far.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Course {
    /// It runs, or ran.
    pub(super) started: bool,
    /// It could not be started: the system's error.
    pub(super) refused: Option<i32>,
    /// Its stdout is closed.
    pub(super) silent: bool,
    /// Its stderr is closed.
    pub(super) calm: bool,
    /// Its warden was asked for the ladder.
    pub(super) stopped: bool,
    /// Its warden said that this is its end.
    pub(super) announced: bool,
}

impl Course {
    pub(super) fn stop(&mut self, tree: &Tree) {
        if !std::mem::replace(&mut self.stopped, true) {
            // Gone already: then its report is on the way.
            let _ = tree.stop();
        }
    }
}

/// What a server says on stdout.
#[derive(Clone)]
pub(super) struct Voice {
    daemon: Rc<DaemonState>,
    server_io: Rc<ServerIo>,
    running: Rc<Running>,
}

impl Voice {
    pub(super) fn new(
        daemon: &Rc<DaemonState>,
        server_io: &Rc<ServerIo>,
        running: &Rc<Running>,
    ) -> Voice {
        Voice {
            daemon: Rc::clone(daemon),
            server_io: Rc::clone(server_io),
            running: Rc::clone(running),
        }
    }

    /// Passes it on, to its end.
    pub(super) async fn listen(&self) {
        // Lines that another program had read.
        self.pass_on().await;
        loop {
            self.server_io.may_speak(&self.daemon).await;
            let read = self.running.stdout.more().await;
            self.pass_on().await;
            self.refuse_if_too_much();
            if !still_open(&read) {
                return self.last_line();
            }
        }
    }

    /// What an ended server had said, and nobody had read yet.
    pub(super) async fn hear_the_rest(&self) {
        let mut heard = 0;
        self.pass_on().await;
        // No more than its pipe held: whoever else has that may go on writing for ever.
        while heard < A_PIPE
            && let Ok(count @ 1..) = self.running.stdout.now()
        {
            heard += count;
            self.pass_on().await;
            self.refuse_if_too_much();
        }
        self.last_line();
    }

    /// Refuses a line that is still being read, if there is no room for it.
    fn refuse_if_too_much(&self) {
        let inbox = &self.running.stdout.inbox;
        let length = inbox.borrow().len();
        if length > SMALL && !self.daemon.makes_room_for_server(length) {
            inbox.borrow_mut().skip_line();
        }
    }

    async fn pass_on(&self) {
        let now = Instant::now();
        in_turns(|| self.pass_on_line(now)).await;
    }

    /// Passes on the next whole line; `false` if there is none.
    fn pass_on_line(&self, now: Instant) -> bool {
        let mut inbox = self.running.stdout.inbox.borrow_mut();
        if let Some(line) = inbox.next_input() {
            self.server_io.hear_server(&self.daemon, line, now);
            return true;
        }
        let Some(line) = inbox.next_too_long(true) else {
            return false;
        };
        self.daemon.log.line(line.note("the server"));
        for message in line.messages() {
            if let Some(answer) = message.in_its_place() {
                let answer = InputLine::from(&answer[..]);
                self.server_io.hear_server(&self.daemon, answer, now);
            } else if message.id.is_some() {
                let (slot, now) = (self.server_io.slot, self.daemon.moment(now));
                let refusal = message.refusal();
                self.daemon
                    .tell_engine(|engine| engine.answer_server(slot, refusal, now));
            }
        }
        true
    }

    fn last_line(&self) {
        let rest = self.running.stdout.inbox.borrow_mut().rest_of_server();
        if let Some(rest) = rest {
            let line = InputLine::from(&rest[..]);
            self.server_io
                .hear_server(&self.daemon, line, Instant::now());
        }
    }
}

/// What a server says on stderr.
pub(super) struct Complaints<'a> {
    daemon: &'a DaemonState,
    server_io: &'a ServerIo,
    heard: &'a Heard,
    last: &'a RefCell<VecDeque<String>>,
}

impl<'a> Complaints<'a> {
    pub(super) fn new(
        daemon: &'a DaemonState,
        server_io: &'a ServerIo,
        running: &'a Running,
    ) -> Complaints<'a> {
        Complaints {
            daemon,
            server_io,
            heard: &running.stderr,
            last: &running.last_words,
        }
    }

    /// Writes it down, to its end.
    pub(super) async fn listen(&self) {
        // Lines that another program had read.
        self.take_lines(false).await;
        loop {
            let read = self.heard.more().await;
            // One that never ends its lines (a progress bar) must not fill our memory.
            let too_long = self.heard.inbox.borrow().len() > LONGEST_COMPLAINT;
            self.take_lines(matches!(read, Ok(0)) || too_long).await;
            if !still_open(&read) {
                return;
            }
        }
    }

    /// As much as the pipe holds, once: one that goes on writing would keep us here for ever.
    pub(super) async fn hear_the_rest(&self) {
        let _ = self.heard.now();
        self.take_lines(true).await;
    }

    async fn take_lines(&self, ended: bool) {
        in_turns(|| {
            let mut inbox = self.heard.inbox.borrow_mut();
            let line = inbox.next_line();
            line.map(|line| self.take(line)).is_some()
        })
        .await;
        if ended && let Some(rest) = self.heard.inbox.borrow_mut().rest() {
            self.take(&rest);
        }
    }

    fn take(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).into_owned();
        self.server_io.log_complaint(self.daemon, &line);
        let mut last = self.last.borrow_mut();
        if last.len() == TAIL_LINES {
            last.pop_front();
        }
        last.push_back(line.chars().take(TAIL_LINE_BYTES).collect());
        let (slot, session) = (self.server_io.slot, &self.server_io.hello.session);
        self.daemon
            .tell_engine(|engine| engine.server_stderr(slot, session, line));
    }

    pub(super) fn last(&self) -> String {
        let last = self.last.borrow();
        let lines: Vec<&str> = last.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

/// A pipe of the server's, and what came of it. Nothing is borrowed while somebody waits for more.
pub(super) struct Heard {
    pipe: Descriptor<OwnedFd>,
    inbox: RefCell<Inbox>,
}

impl Heard {
    fn new(pipe: OwnedFd, unfinished: Vec<u8>) -> io::Result<Heard> {
        Ok(Heard {
            pipe: Descriptor::of_input(unblocked(pipe)?)?,
            inbox: RefCell::new(Inbox::with(unfinished)),
        })
    }

    /// What was read and is no whole line yet.
    fn unfinished(&self) -> Text {
        Text::from(self.inbox.borrow().unfinished())
    }

    fn fd(&self) -> RawFd {
        self.pipe.as_fd().as_raw_fd()
    }

    /// Reads something; 0 at the end.
    async fn more(&self) -> io::Result<usize> {
        let read = |pipe: &OwnedFd| self.inbox.borrow_mut().read(pipe);
        self.pipe.read(|| CHUNK, read).await
    }

    /// Reads what is there.
    fn now(&self) -> io::Result<usize> {
        self.inbox.borrow_mut().read(&self.pipe)
    }
}

/// It is ours alone: a flag of it is nobody else's.
fn unblocked(pipe: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(pipe)
}

fn still_open(read: &io::Result<usize>) -> bool {
    match read {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}
