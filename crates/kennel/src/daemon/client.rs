//! The state of one client. Its first line is handled in `welcome`, its other lines in `conversation`.

pub(super) mod admission;
mod conversation;
mod snapshot;
mod welcome;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::{MIN_READ_BYTES, STALL_TIMEOUT, hello_bytes, text_bytes};
use kennel_core::hello::{ClientHello, Control};
use kennel_core::lifetime::{ClientId, Liveness};
use kennel_sys::io::{Exit, Source};
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;

use super::daemon_state::DaemonState;
use super::queue::Queue;
use super::run_queue::{RunQueue, Runnable};
use super::socket::Socket;
use super::start;
use super::state::ClientState;
use crate::lines::Inbox;

pub(super) use conversation::ClientRef;
pub(super) use snapshot::ConnSnapshot;

/// A client's connection, queue and half line.
pub(super) struct ClientConn {
    pub(super) id: ClientId,
    run_queue: Rc<RunQueue>,
    pid: u32,
    since: u64,
    /// Its connection, until that is closed.
    socket: RefCell<Option<Rc<Socket>>>,
    /// The received bytes and lines that are not taken yet.
    inbox: RefCell<Inbox>,
    /// When bytes last came from it.
    last_read_at: Cell<Instant>,
    /// Since when its half line is longer than [`MIN_PER_CONNECTION`](kennel_core::engine::daemon::MIN_PER_CONNECTION).
    half_line_started: Cell<Option<Instant>>,
    /// The process at the other end, if the kernel tells.
    peer: Option<Rc<ProcessRef>>,
    /// Another process, which its hello named.
    announced: OnceCell<Rc<ProcessRef>>,
    /// Its hello. A client without one (a bare client) gets no control messages.
    hello: OnceCell<Rc<ClientHello>>,
    /// The hello that defines the server: its own, or for a bare client that of the first client.
    launch: OnceCell<Rc<ClientHello>>,
    hello_bytes: Cell<usize>,
    pub(super) to_client: Queue,
    /// Number of bytes in its connection that it had not read at the last check.
    unread_before: Cell<Option<usize>>,
    /// It is disconnected in the next run, or is gone.
    is_leaving: Cell<bool>,
    phase: RefCell<Phase>,
    reading: Cell<Reading>,
    /// Complete lines were read and not taken: it is in the run queue.
    has_lines: Cell<bool>,
    /// When the lines that are being taken were read.
    read_at: Cell<Instant>,
    /// Its connection has no room for its queued output.
    is_blocked: Cell<bool>,
    /// The exits of its processes, where the kernel reports them.
    exits: RefCell<Vec<Source<Exit>>>,
}

/// How far a client has come.
enum Phase {
    /// It was accepted. With the check that was made on its arrival, if it connected to the former build.
    New(Option<Box<admission::ArrivalCheck>>),
    /// Its first line is awaited. With the check that was made on arrival.
    Unintroduced(Box<admission::ArrivalCheck>),
    /// It is not served, and has a moment to read why. With the reason.
    Refused(String),
    /// It is served.
    Served,
    Closed,
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::New(None)
    }
}

/// Whether a served client is read.
#[derive(Clone, Copy)]
enum Reading {
    /// It is read.
    Open,
    /// It sent more than its server takes, or does not read: it is not read until that has changed.
    Throttled,
    /// Its half line has waited for memory since then.
    Memory(Instant),
    /// Its input has ended; it may still read.
    HalfClosed,
    /// Its process has ended, and this many bytes were read since, of those that it had sent before.
    AfterExit(usize),
}

impl ClientConn {
    pub(super) fn new(
        id: ClientId,
        run_queue: &Rc<RunQueue>,
        socket: Socket,
        peer: Peer,
    ) -> ClientConn {
        ClientConn {
            id,
            run_queue: Rc::clone(run_queue),
            pid: peer.pid,
            since: start::now(),
            socket: RefCell::new(Some(Rc::new(socket))),
            inbox: RefCell::default(),
            last_read_at: Cell::new(Instant::now()),
            half_line_started: Cell::new(None),
            peer: peer.process.map(Rc::new),
            announced: OnceCell::new(),
            hello: OnceCell::new(),
            launch: OnceCell::new(),
            hello_bytes: Cell::new(0),
            to_client: Queue::of(Rc::clone(run_queue), id),
            unread_before: Cell::new(None),
            is_leaving: Cell::new(false),
            phase: RefCell::default(),
            reading: Cell::new(Reading::Open),
            has_lines: Cell::new(false),
            read_at: Cell::new(Instant::now()),
            is_blocked: Cell::new(false),
            exits: RefCell::default(),
        }
    }

    /// Its hello, if it is not bare.
    pub(super) fn hello(&self) -> Option<&Rc<ClientHello>> {
        self.hello.get()
    }

    /// Sends a control message, if it understands any.
    pub(super) fn tell(&self, control: &Control) {
        let is_left_out = control.is_optional() && self.to_client.is_full();
        if self.hello.get().is_some() && !is_left_out {
            self.to_client.push(&control.line());
        }
    }

    /// Reads from its pipe from now on: it has sent its last line on the socket.
    pub(super) fn use_pipes(&self) {
        if let Some(socket) = &*self.socket.borrow() {
            socket.listen_on_pipes();
        }
    }

    fn set_launch(&self, launch: Rc<ClientHello>) {
        self.hello_bytes.set(hello_bytes(&launch));
        let _ = self.launch.set(launch);
    }

    /// Bytes stored for the hello that defines the server.
    pub(super) fn hello_bytes(&self) -> usize {
        self.hello_bytes.get()
    }

    /// Bytes of all texts in that hello, its environment included.
    pub(super) fn text_bytes(&self) -> usize {
        self.launch.get().map_or(0, |launch| text_bytes(launch))
    }

    /// The hello that defines the server.
    pub(super) fn launch_hello(&self) -> Rc<ClientHello> {
        Rc::clone(self.launch.get().expect("known when it is admitted"))
    }

    fn has_session(&self, session: &str) -> bool {
        let launch = self.launch.get();
        launch.is_some_and(|launch| launch.session == session)
    }

    /// Bytes of memory that its half line takes.
    pub(super) fn half_line_memory(&self) -> usize {
        self.inbox.try_borrow().map_or(0, |inbox| inbox.memory())
    }

    /// Bytes of its half line.
    pub(super) fn half_line_length(&self) -> usize {
        self.inbox.try_borrow().map_or(0, |inbox| inbox.len())
    }

    /// Since when its half line is not small.
    pub(super) fn half_line_since(&self) -> Option<Instant> {
        self.half_line_started.get()
    }

    /// Since when its half line is not read on, for lack of memory.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        match self.reading.get() {
            Reading::Memory(since) => Some(since),
            _ => None,
        }
    }

    /// When bytes last came from it.
    pub(super) fn last_read(&self) -> Instant {
        self.last_read_at.get()
    }

    /// Whether the kernel has input of it that the daemon may read, but has not had time to read.
    pub(super) fn has_input(&self) -> bool {
        let has_input = || {
            let socket = self.socket.borrow();
            socket.as_ref().is_some_and(|socket| socket.has_input())
        };
        matches!(self.reading.get(), Reading::Open) && has_input()
    }

    /// Its half line is read on, after it waited `since` then. The time of the wait does not make the line slow or idle.
    fn resume_half_line(&self, since: Instant, now: Instant) {
        let waited = now.saturating_duration_since(since);
        let started = self.half_line_started.get();
        self.half_line_started.set(started.map(|at| at + waited));
        self.last_read_at.set(now);
    }

    /// Time since which it has read nothing from its queue. After a while, the kernel is asked: the socket of a slow
    /// client has room only now and then.
    pub(super) fn unread_since(&self, now: Instant) -> Option<Instant> {
        let since = self.to_client.waits_since()?;
        if now.saturating_duration_since(since) >= STALL_TIMEOUT {
            let before = self.unread_before.get();
            let unread = self.record_unread();
            let has_taken = |unread| before.is_none_or(|before| before >= unread + MIN_READ_BYTES);
            if unread.is_some_and(has_taken) {
                self.to_client.is_being_read(now);
            }
        }
        self.to_client.waits_since()
    }

    /// Records how many written bytes it has not read.
    fn record_unread(&self) -> Option<usize> {
        let socket = self.socket.borrow();
        let unread = socket.as_ref().and_then(|it| it.unread_by_client());
        self.unread_before.set(unread);
        unread
    }

    /// Whether its first line was accepted.
    pub(super) fn is_admitted(&self) -> bool {
        self.launch.get().is_some()
    }

    /// Drops its half line. A client that is not admitted gets an error and is disconnected.
    pub(super) fn drop_half_line(&self, daemon: &DaemonState) {
        if self.is_admitted() {
            if let Ok(mut inbox) = self.inbox.try_borrow_mut() {
                inbox.skip_line_in_shortage();
            }
            return;
        }
        self.refuse_for_shortage(daemon);
    }

    /// Skips the line that has not ended.
    pub(super) fn skip_half_line(&self) {
        if let Ok(mut inbox) = self.inbox.try_borrow_mut() {
            inbox.skip_line();
        }
    }

    /// Disconnects a client that is not admitted, to save memory, and sends it the reason.
    pub(super) fn refuse_for_shortage(&self, daemon: &DaemonState) {
        let first = self.inbox.try_borrow().map_or(None, |inbox| inbox.first());
        if let Some(socket) = &*self.socket.borrow() {
            let clients = daemon.clients.borrow().len();
            let replies = &daemon.replies;
            let reply = replies.overloaded(first, std::process::id(), clients);
            let _ = socket.try_write(&reply);
        }
        if let Ok(mut inbox) = self.inbox.try_borrow_mut() {
            *inbox = Inbox::default();
        }
        self.disconnect();
    }

    /// Disconnects it in its next run.
    pub(super) fn disconnect(&self) {
        self.is_leaving.set(true);
        self.run_queue.push(Runnable::Client(self.id));
    }

    /// Whether it is to be disconnected, or is gone.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.get()
    }

    /// Whether its connection has room now.
    pub(super) fn can_write(&self) -> bool {
        let socket = self.socket.borrow();
        socket.as_ref().is_some_and(|socket| socket.has_room())
    }

    /// Its entry in `kennel ps`. `name`: `clientInfo.name`.
    pub(super) fn state(&self, name: Option<&str>) -> ClientState {
        let app = self.hello.get().and_then(|hello| hello.app.as_ref());
        ClientState {
            // The kernel's pid, if it tells one.
            pid: match (self.pid, self.hello.get()) {
                (0, Some(hello)) => hello.pid,
                (pid, _) => pid,
            },
            app_pid: app.map(|app| app.pid),
            app: app.map(|app| app.name.clone()),
            client: name.map(str::to_owned),
            since: self.since,
        }
    }

    /// Whether its process can be watched.
    pub(super) fn liveness(&self) -> Liveness {
        match self.processes().is_empty() {
            true => Liveness::Unwatchable,
            false => Liveness::Watchable,
        }
    }

    /// The processes whose exit is the end of the client.
    fn processes(&self) -> Vec<&Rc<ProcessRef>> {
        self.peer.iter().chain(self.announced.get()).collect()
    }

    /// Whether it supports pipes, and nothing is queued for it.
    fn may_have_pipes(&self) -> bool {
        self.hello.get().is_some_and(|hello| hello.pipes) && self.to_client.is_empty()
    }

    fn is_bare(&self) -> bool {
        self.hello.get().is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use kennel_core::engine::daemon::IDLE;
    use kennel_sys::io::{Reactor, Stream};

    use super::*;

    /// A client, and its end of the connection.
    fn client() -> (ClientConn, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let stream = Stream::new(ours.into()).unwrap();
        let socket = Socket::new(&Reactor::new().unwrap(), ClientId(1), stream);
        let peer = Peer::of(&theirs).unwrap();
        let conn = ClientConn::new(ClientId(1), &Rc::default(), socket, peer);
        (conn, theirs)
    }

    #[test]
    fn input_that_is_not_read_on_purpose_does_not_count() {
        let (conn, mut theirs) = client();
        assert!(!conn.has_input());
        theirs.write_all(b"x").unwrap();
        assert!(conn.has_input());
        conn.reading.set(Reading::Throttled);
        assert!(!conn.has_input());
    }

    #[test]
    fn a_half_line_is_not_slow_because_it_waited_for_memory() {
        let (conn, _theirs) = client();
        let started = conn.last_read_at.get();
        conn.half_line_started.set(Some(started));
        let (since, now) = (started + IDLE / 2, started + 3 * IDLE);
        conn.resume_half_line(since, now);
        let read_for = now - conn.half_line_since().unwrap();
        assert_eq!(read_for, IDLE / 2);
        assert_eq!(conn.last_read(), now);
    }

    #[test]
    fn a_client_that_takes_some_reads_though_there_is_no_room_for_more() {
        let (conn, mut theirs) = client();
        let socket = conn.socket.borrow().clone().unwrap();
        conn.to_client.push(&vec![b'x'; 8 << 20]);
        let write = |bytes: &[u8]| socket.try_write(bytes);
        conn.to_client.write_out(write).unwrap();
        conn.record_unread();
        let since = conn.to_client.waits_since().unwrap();
        let (later, much_later) = (since + STALL_TIMEOUT, since + 2 * STALL_TIMEOUT);
        let little = STALL_TIMEOUT - Duration::from_millis(1);
        assert_eq!(conn.unread_since(since + little), Some(since));
        assert_eq!(conn.unread_since(later), Some(since));
        theirs.read_exact(&mut vec![0; 4 * MIN_READ_BYTES]).unwrap();
        assert_eq!(conn.unread_since(later), Some(later));
        // Hardly anything more.
        theirs.read_exact(&mut [0; 16]).unwrap();
        assert_eq!(conn.unread_since(much_later), Some(later));
    }
}
