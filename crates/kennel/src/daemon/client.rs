//! One client: its lines both ways, its end. Its hello is `welcome`'s.

pub(super) mod admission;
mod carried;
mod welcome;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::InputLine;
use kennel_core::hello::{ClientHello, Control};
use kennel_core::lifetime::{ClientId, Sight};
use kennel_core::message::error_reply;
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;

use super::daemon_state::{DaemonState, Flag};
use super::memory::{IDLE, MODEST, PATIENCE, SMALL, SOON, wish_bytes};
use super::queue::Queue;
use super::server_io::ServerIo;
use super::socket::Socket;
use super::state::ClientState;
use super::tasks::{self, first_of, in_turns, moments, when};
use super::{accept, start, watch};
use crate::shim::lines::{Inbox, TooLong};

pub(super) use carried::Carried;
use welcome::welcome;

/// The JSON-RPC error code for a connection without a hello that the daemon has no room for.
const UNAVAILABLE: i32 = -32000;

/// A client, as its server knows it.
pub(super) struct ClientConn {
    pid: u32,
    since: u64,
    /// Its connection, until it has left.
    socket: RefCell<Option<Rc<Socket>>>,
    /// What it has said of a line that is not whole yet.
    inbox: RefCell<Inbox>,
    /// When it was last heard.
    heard_at: Cell<Instant>,
    /// Since when a line comes that is not whole, and not small any more.
    half_since: Cell<Option<Instant>>,
    /// That line waits until there is memory for more of it.
    waits_for_memory: Cell<bool>,
    /// The process at the other end, where it can be seen.
    peer: Option<ProcessRef>,
    /// Another one, that its hello announced.
    announced: OnceCell<ProcessRef>,
    /// What it said first; nothing, if it is bare: then it hears no word of Kennel's.
    hello: OnceCell<Rc<ClientHello>>,
    /// What it wants to run: its hello's wish, or a borrowed one.
    wish: OnceCell<Rc<ClientHello>>,
    wish_bytes: Cell<usize>,
    pub(super) to_client: Queue,
    /// It is not there any more.
    pub(super) left: Flag,
}

impl ClientConn {
    pub(super) fn new(socket: Socket, peer: Peer) -> ClientConn {
        ClientConn {
            pid: peer.pid,
            since: start::now(),
            socket: RefCell::new(Some(Rc::new(socket))),
            inbox: RefCell::default(),
            heard_at: Cell::new(Instant::now()),
            half_since: Cell::new(None),
            waits_for_memory: Cell::new(false),
            peer: peer.process,
            announced: OnceCell::new(),
            hello: OnceCell::new(),
            wish: OnceCell::new(),
            wish_bytes: Cell::new(0),
            to_client: Queue::default(),
            left: Flag::default(),
        }
    }

    /// What it said first, if it is not bare.
    pub(super) fn hello(&self) -> Option<&Rc<ClientHello>> {
        self.hello.get()
    }

    /// Says a word of Kennel's own, if it understands any. Words that can be done without are not said to one
    /// that does not listen.
    pub(super) fn tell(&self, word: &Control) {
        let can_wait = matches!(word, Control::Stderr(_) | Control::Pong);
        if self.hello.get().is_some() && !(can_wait && self.to_client.is_full()) {
            self.to_client.push(&word.line());
        }
    }

    /// It sends no more on its socket: its pipe is read.
    pub(super) fn use_pipes(&self) {
        if let Some(socket) = &*self.socket.borrow() {
            socket.turns_to_pipes();
        }
    }

    fn set_wish(&self, wish: Rc<ClientHello>) {
        self.wish_bytes.set(wish_bytes(&wish));
        let _ = self.wish.set(wish);
    }

    /// How many bytes are kept of what it wants to run.
    pub(super) fn wish_bytes(&self) -> usize {
        self.wish_bytes.get()
    }

    /// How many bytes the environment has that it wants to run it in.
    pub(super) fn environment_bytes(&self) -> usize {
        let env = self.wish.get().into_iter().flat_map(|wish| wish.env.iter());
        env.map(|(name, value)| name.as_bytes().len() + value.as_bytes().len())
            .sum()
    }

    /// What it wants to run.
    pub(super) fn wants(&self) -> Rc<ClientHello> {
        Rc::clone(self.wish.get().expect("known before it speaks"))
    }

    fn has_session(&self, session: &str) -> bool {
        let wish = self.wish.get();
        wish.is_some_and(|wish| wish.session == session)
    }

    /// How many bytes of memory are held of a line that it has not ended.
    pub(super) fn half_said(&self) -> usize {
        self.inbox.try_borrow().map_or(0, |inbox| inbox.memory())
    }

    /// How many bytes that are.
    pub(super) fn half_length(&self) -> usize {
        self.inbox.try_borrow().map_or(0, |inbox| inbox.len())
    }

    /// For how long nothing has come from it.
    pub(super) fn is_silent_for(&self) -> Duration {
        self.heard_at.get().elapsed()
    }

    /// Whether the line that is not whole has stopped, or comes slowly: none of it for [`IDLE`], or less than [`MODEST`] in
    /// each such time. One that waits for memory has not: nothing is read of it.
    pub(super) fn half_line_stalls(&self) -> bool {
        let times = u32::try_from(self.half_length() / MODEST).unwrap_or(u32::MAX);
        let is_slow = || self.half_line_age() > IDLE.saturating_mul(times.saturating_add(2));
        !self.waits_for_memory.get() && (self.is_silent_for() >= IDLE || is_slow())
    }

    /// For how long a line has been coming that is not whole, and not small.
    pub(super) fn half_line_age(&self) -> Duration {
        self.half_since
            .get()
            .map_or(Duration::ZERO, |it| it.elapsed())
    }

    /// Whether it has said who it is, or said a first line and is served without that.
    pub(super) fn is_admitted(&self) -> bool {
        self.wish.get().is_some()
    }

    /// Whether it is admitted, and what it has said of a line that is not whole is short enough to be taken while much is
    /// held.
    pub(super) fn is_modest(&self) -> bool {
        self.is_admitted() && self.half_said() <= MODEST
    }

    /// Forgets what it has said of a line that is not whole. One that is not admitted is told so, and disconnected.
    pub(super) fn drop_half_line(&self, daemon: &DaemonState) {
        if self.is_admitted() {
            if let Ok(mut inbox) = self.inbox.try_borrow_mut() {
                inbox.forget_line();
            }
            return;
        }
        self.turn_away(daemon);
    }

    /// Disconnects one that is not admitted, and tells it why.
    pub(super) fn turn_away(&self, daemon: &DaemonState) {
        let why = "too many connections have not said who they are, or they said too much";
        let first = self.inbox.try_borrow().map_or(None, |inbox| inbox.first());
        if let Some(socket) = &*self.socket.borrow() {
            match first {
                // Before a hello, or in the middle of one.
                None | Some(b'!') => {
                    accept::say_shortage(daemon, socket.as_fd(), &io::Error::other(why));
                }
                Some(_) => {
                    let words = format!("kennel: {why}: try again later");
                    let mut answer = error_reply(b"null", UNAVAILABLE, &words, None);
                    answer.push(b'\n');
                    let _ = socket.try_write(&answer);
                }
            }
        }
        if let Ok(mut inbox) = self.inbox.try_borrow_mut() {
            *inbox = Inbox::default();
        }
        self.left.raise();
    }

    /// Whether it has taken nothing of what waits for it for [`PATIENCE`], and would not now.
    pub(super) fn stalls(&self) -> bool {
        let socket = self.socket.borrow();
        let has_room = || socket.as_ref().is_some_and(|socket| socket.has_room());
        // The second question is for a daemon that was stopped itself.
        self.to_client.stands_still_for() >= PATIENCE && !has_room()
    }

    /// What `kennel ps` shows of it; `name` is what it calls itself.
    pub(super) fn state(&self, name: Option<&str>) -> ClientState {
        let app = self.hello.get().and_then(|hello| hello.app.as_ref());
        ClientState {
            // The kernel's word, where there is one.
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
    pub(super) fn sight(&self) -> Sight {
        match self.processes().is_empty() {
            true => Sight::Unseen,
            false => Sight::Seen,
        }
    }

    /// The processes with which it ends.
    fn processes(&self) -> Vec<&ProcessRef> {
        self.peer.iter().chain(self.announced.get()).collect()
    }

    /// Whether it knows what to do with pipes, and nothing waits to be said to it.
    fn may_have_pipes(&self) -> bool {
        self.hello.get().is_some_and(|hello| hello.pipes) && self.to_client.is_empty()
    }

    fn is_bare(&self) -> bool {
        self.hello.get().is_none()
    }
}

/// A client and where it is: what its lines are heard with.
#[derive(Clone, Copy)]
struct ClientTask<'a> {
    daemon: &'a Rc<DaemonState>,
    id: ClientId,
    link: &'a Rc<ClientConn>,
}

impl ClientTask<'_> {
    /// Takes the next line that the client has said to its end; `false` if there is none, or if the client is to read
    /// first: a short line may have a long answer.
    fn take_line(self, inbox: &RefCell<Inbox>, at: Instant) -> bool {
        if self.link.to_client.is_full() || self.exceeds_share() {
            return false;
        }
        if let Some(line) = inbox.borrow_mut().next_input() {
            self.take(line, at);
            return true;
        }
        let too_long = inbox.borrow_mut().next_too_long(false);
        let is_there = too_long.is_some();
        if let Some(line) = too_long {
            self.take_too_long(line, at);
        }
        is_there
    }

    /// A request that is too long is refused; in place of an answer that is, the server hears an error.
    fn take_too_long(self, line: TooLong, at: Instant) {
        let who = format!("client {}", self.id.0);
        self.daemon.log.line(line.note(&who));
        let mut engine = self.daemon.engine.borrow_mut();
        engine.client_line_skipped(self.id);
        // An id that is taken is another request's: to that one, this would be the answer.
        let taken: BTreeSet<Vec<u8>> = engine.in_flight_of(self.id).into_iter().collect();
        drop(engine);
        for mut message in line.messages() {
            if let Some(answer) = message.in_its_place() {
                self.take(InputLine::from(&answer[..]), at);
                continue;
            }
            message.id = message.id.filter(|id| !taken.contains(id));
            self.link.to_client.push(&message.refusal());
        }
    }

    fn take(self, line: InputLine<'_>, at: Instant) {
        self.daemon.client_line(self.id, line, at);
    }

    /// No more will come from it: when all is answered, that is the end.
    fn half_close(self) {
        let now = self.daemon.now();
        self.daemon
            .tell_engine(|engine| engine.client_eof(self.id, now));
    }

    fn server_io(self) -> Option<Rc<ServerIo>> {
        let slot = self.daemon.engine.borrow().slot_of(self.id);
        slot.and_then(|slot| self.daemon.server_io(slot))
    }

    /// Whether it has said more than is taken, or does not take what is said to it.
    fn is_crowded(self) -> bool {
        let is_short = self.daemon.memory.is_short();
        let engine = self.daemon.engine.borrow();
        self.link.to_client.is_full()
            || (is_short && self.link.to_client.len() > SMALL)
            || engine.is_crowded(self.id, || is_short)
    }

    /// Whether so little memory is left that its next line must wait. One that it has said whole waits for its server as well
    /// as here; but many short ones take more memory there.
    fn exceeds_share(self) -> bool {
        self.daemon.memory.is_short()
            && (self.link.to_client.len() > SMALL
                || self.daemon.engine.borrow().exceeds_share(self.id))
    }

    async fn has_room(self) {
        while self.is_crowded() {
            let is_short = self.daemon.memory.is_short();
            let is_full = self.link.to_client.is_full();
            let server_io = self.server_io();
            let stirred = async {
                match &server_io {
                    Some(server_io) => server_io.stirred.notified().await,
                    None => std::future::pending().await,
                }
            };
            first_of! {
                () = when(is_full, self.link.to_client.has_room()) => {},
                () = stirred => {},
                // Whatever makes room may have nothing to do with this client.
                () = when(is_short, moments::after(SOON)) => {},
            }
            if is_short {
                self.daemon.is_short_at(Instant::now());
            }
        }
    }

    /// Whether more may be read of the line that the client has not ended. A modest one waits for that, for [`PATIENCE`].
    async fn has_memory(self, socket: &Socket) -> bool {
        let (link, start) = (self.link, Instant::now());
        if link.half_since.get().is_none() {
            link.half_since.set(Some(start));
        }
        let has_memory = loop {
            if link.half_length() <= SMALL || self.daemon.makes_room(Some(self.id)) {
                break true;
            }
            let waits = link.is_modest() || self.daemon.frees_memory_soon();
            if !waits || start.elapsed() >= PATIENCE {
                break false;
            }
            link.waits_for_memory.set(true);
            first_of! {
                () = moments::after(SOON) => {},
                // Whoever reads it will see.
                () = socket.hung_up() => break true,
            }
        };
        if link.waits_for_memory.take() {
            link.heard_at.set(Instant::now());
        }
        has_memory
    }
}

/// Serves one client to its end.
pub(super) async fn serve(daemon: Rc<DaemonState>, id: ClientId, link: Rc<ClientConn>) {
    let socket = link.socket.borrow().clone();
    let ended = match &socket {
        Some(socket) => attend(&daemon, id, &link, socket).await,
        None => "it was gone already".into(),
    };
    daemon.log.line(format_args!(
        "client {} (process {}) left: {ended}",
        id.0, link.pid
    ));
    link.left.raise();
    drop((socket, link.socket.take()));
    daemon.left(id);
}

/// Returns why it ended.
async fn attend(
    daemon: &Rc<DaemonState>,
    id: ClientId,
    link: &Rc<ClientConn>,
    socket: &Rc<Socket>,
) -> String {
    let task = ClientTask { daemon, id, link };
    // One that comes from another program's life has said its first line there.
    if link.wish.get().is_none()
        && let Some(ended) = welcome(task, socket).await
    {
        return ended;
    }
    link.to_client.goes_straight_to(Rc::downgrade(socket));
    converse(task, socket).await
}

/// Its lines both ways, until one of the two ends it.
async fn converse(task: ClientTask<'_>, socket: &Rc<Socket>) -> String {
    let ClientTask { daemon, id, link } = task;
    // A task of its own: what else is waited for here is not looked at for every line.
    let hearing = hear(Rc::clone(daemon), id, Rc::clone(link), Rc::clone(socket));
    let mut hearing = tasks::spawn(hearing);
    let processes = link.processes();
    let write = async |bytes: &[u8]| {
        let written = socket.write(bytes).await;
        daemon.drained.notify_waiters();
        daemon.upgrade.stir();
        written
    };
    let ended = first_of! {
        _ = &mut hearing => return "it closed its connection".into(),
        () = watch::end_of_any(&processes, daemon.sweep) => {
            hearing.end();
            hear_the_rest(task, socket).await;
            return "its process ended".into();
        },
        () = link.left.up() => "dismissed".into(),
        written = link.to_client.write_out(write) => match written {
            Ok(()) => "all is said".into(),
            Err(error) => format!("it does not listen: {error}"),
        },
    };
    // Nothing of it is taken any more, and nobody else has its connection.
    hearing.end();
    ended
}

/// What one that has ended had said, and nobody had read: it is for its server all the same. No more than a connection
/// holds: whoever else has it may go on for ever. No more either than fills its queue with answers, which nobody reads.
async fn hear_the_rest(task: ClientTask<'_>, socket: &Socket) {
    const A_CONNECTION: usize = 2 << 20;
    let (inbox, now) = (&task.link.inbox, Instant::now());
    let mut heard = 0;
    loop {
        in_turns(|| task.take_line(inbox, now)).await;
        if heard >= A_CONNECTION || task.exceeds_share() || task.link.to_client.is_full() {
            return;
        }
        match socket.read_now(inbox) {
            Ok(count @ 1..) => heard += count,
            _ => return,
        }
    }
}

/// Its lines, until it closes its connection.
async fn hear(daemon: Rc<DaemonState>, id: ClientId, link: Rc<ClientConn>, socket: Rc<Socket>) {
    let task = ClientTask {
        daemon: &daemon,
        id,
        link: &link,
    };
    let is_half_closed = daemon.engine.borrow().is_half_closed(id);
    if !is_half_closed {
        if read_on(task, &socket, &link.inbox).await == Heard::Hangup {
            return;
        }
        task.half_close();
    }
    socket.hung_up().await;
}

#[derive(PartialEq, Eq)]
enum Heard {
    /// It will say no more, and may still listen.
    HalfClose,
    Hangup,
}

async fn read_on(task: ClientTask<'_>, socket: &Socket, inbox: &RefCell<Inbox>) -> Heard {
    let mut now = Instant::now();
    loop {
        in_turns(|| task.take_line(inbox, now)).await;
        if task.is_crowded() {
            // Nothing is read meanwhile: its end must be seen otherwise.
            first_of! {
                // Lines may be left that were read before.
                () = task.has_room() => continue,
                () = socket.hung_up() => return Heard::Hangup,
            }
        }
        if inbox.borrow().len() <= SMALL {
            task.link.half_since.set(None);
        } else if !task.has_memory(socket).await {
            inbox.borrow_mut().forget_line();
        }
        // Asked when something is there: until then others may have taken what room there was.
        let little = || task.daemon.memory.is_short();
        match socket.read(inbox, little).await {
            Ok(0) => break,
            Ok(_) => {
                now = Instant::now();
                task.daemon.heard(task.id, now);
                task.link.heard_at.set(now);
                if task.link.may_have_pipes() {
                    socket.offers_pipes();
                }
            }
            Err(_) => return Heard::Hangup,
        }
    }
    let rest = inbox.borrow_mut().rest();
    // A shim ends whatever it means to say: of anything else it sent the beginning ahead.
    if let Some(rest) = rest.filter(|_| task.link.is_bare()) {
        task.take(InputLine::from(&rest[..]), now);
    }
    if watch::is_hung_up(socket) {
        Heard::Hangup
    } else {
        Heard::HalfClose
    }
}
