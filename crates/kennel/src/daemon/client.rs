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

use kennel_core::hello::{ClientHello, Control, Lost, Solo, VOID};
use kennel_core::lifetime::{ClientId, Sight};
use kennel_core::message::{
    INITIALIZE_LIMIT, Key, Line, Message, error_reply, long_initialize, result_reply,
};
use kennel_core::mux::{self, Class, Era, Opening};
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;

use super::house::{Flag, House};
use super::memory::{PATIENCE, SMALL, wish_bytes};
use super::queue::Queue;
use super::socket::Socket;
use super::state::ClientState;
use super::station::Station;
use super::tasks::{self, first_of, in_turns, when};
use super::{accept, start, watch};
use crate::shim::lines::{Inbox, Spoken, TooLong};

pub(super) use carried::Carried;
use welcome::welcome;

/// The JSON-RPC error code for a connection without a hello that the daemon has no room for.
const UNAVAILABLE: i32 = -32000;

/// A client, as its server knows it.
pub(super) struct Link {
    pid: u32,
    since: u64,
    /// Its connection, until it has left.
    socket: RefCell<Option<Rc<Socket>>>,
    /// What it has said of a line that is not whole yet.
    inbox: RefCell<Inbox>,
    /// When it was last heard.
    heard_at: Cell<Instant>,
    /// The process at the other end, where it can be seen.
    peer: Option<ProcessRef>,
    /// Another one, that its hello announced.
    announced: OnceCell<ProcessRef>,
    /// What it said first; nothing, if it is bare: then it hears no word of Kennel's.
    hello: OnceCell<Rc<ClientHello>>,
    /// What it wants to run: its hello's wish, or a borrowed one.
    wish: OnceCell<Rc<ClientHello>>,
    wish_bytes: Cell<usize>,
    place: RefCell<Place>,
    pub(super) to_client: Queue,
    /// It is not there any more.
    pub(super) left: Flag,
    /// It will say no more, and waits for its answers.
    half_closed: Cell<bool>,
    /// How much of what it said was taken since it began, or began again, if that was counted.
    heard: Cell<Option<u64>>,
    /// What it calls itself.
    name: RefCell<Option<String>>,
}

/// Where a client's session stands.
enum Place {
    /// It has no server yet: what it says first tells which.
    Opening,
    At(Rc<Station>),
    /// Its server was lost: what it says is for that one, until it has heard so and begins again (rule 5).
    Lost,
}

impl Link {
    pub(super) fn new(socket: Socket, peer: Peer) -> Link {
        Link {
            pid: peer.pid,
            since: start::now(),
            socket: RefCell::new(Some(Rc::new(socket))),
            inbox: RefCell::default(),
            heard_at: Cell::new(Instant::now()),
            peer: peer.process,
            announced: OnceCell::new(),
            hello: OnceCell::new(),
            wish: OnceCell::new(),
            wish_bytes: Cell::new(0),
            place: RefCell::new(Place::Opening),
            to_client: Queue::default(),
            left: Flag::default(),
            half_closed: Cell::new(false),
            heard: Cell::new(None),
            name: RefCell::default(),
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

    /// The connection ends when all that waits is written.
    pub(super) fn finish(&self) {
        self.to_client.end();
    }

    pub(super) fn is_half_closed(&self) -> bool {
        self.half_closed.get()
    }

    fn set_wish(&self, wish: Rc<ClientHello>) {
        self.wish_bytes.set(wish_bytes(&wish));
        let _ = self.wish.set(wish);
    }

    /// How many bytes are kept of what it wants to run.
    pub(super) fn wish_bytes(&self) -> usize {
        self.wish_bytes.get()
    }

    /// What it wants to run.
    pub(super) fn wants(&self) -> Rc<ClientHello> {
        Rc::clone(self.wish.get().expect("known before it speaks"))
    }

    pub(super) fn session(&self) -> String {
        self.wants().session.clone()
    }

    fn has_session(&self, session: &str) -> bool {
        let wish = self.wish.get();
        wish.is_some_and(|wish| wish.session == session)
    }

    /// Its server is gone.
    pub(super) fn lost_server(&self, lost: Lost) {
        *self.place.borrow_mut() = Place::Lost;
        // To whoever would not understand, or will not ask again, this is the end.
        if self.hello.get().is_none() || self.is_half_closed() {
            return self.finish();
        }
        let heard = self.heard.get();
        self.tell(&Control::Lost(Lost { heard, ..lost }));
    }

    /// After how much idle time its server may hibernate. Whoever would not understand that it does wants none of
    /// it.
    pub(super) fn hibernates_after(&self) -> Option<Duration> {
        let millis = self.hello.get()?.spec.hibernate?;
        Some(Duration::from_millis(millis))
    }

    /// Its server hibernates: what it says from now on is for the next one.
    pub(super) fn rest(&self) {
        *self.place.borrow_mut() = Place::Lost;
        self.tell(&Control::Resting);
        self.finish();
    }

    /// It may not share a server.
    pub(super) fn go_solo(&self, why: &str, unsent: Vec<Key>) {
        *self.place.borrow_mut() = Place::Lost;
        self.tell(&Control::Solo(Solo {
            why: why.to_owned(),
            unsent,
            heard: self.heard.get(),
        }));
        self.finish();
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

    /// Whether it has said who it is, or said a first line and is served without that.
    pub(super) fn is_admitted(&self) -> bool {
        self.wish.get().is_some()
    }

    /// Forgets what it has said of a line that is not whole. One that is not admitted is told so, and disconnected.
    pub(super) fn drop_half_line(&self, house: &House) {
        if self.is_admitted() {
            if let Ok(mut inbox) = self.inbox.try_borrow_mut() {
                inbox.skip_line();
            }
            return;
        }
        self.turn_away(house);
    }

    /// Disconnects one that is not admitted, and tells it why.
    pub(super) fn turn_away(&self, house: &House) {
        let why = "too many connections have not said who they are, or they said too much";
        let first = self.inbox.try_borrow().map_or(None, |inbox| inbox.first());
        if let Some(socket) = &*self.socket.borrow() {
            match first {
                // Before a hello, or in the middle of one.
                None | Some(b'!') => {
                    accept::say_shortage(house, socket.as_fd(), &io::Error::other(why));
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

    pub(super) fn state(&self) -> ClientState {
        let app = self.hello.get().and_then(|hello| hello.app.as_ref());
        ClientState {
            // The kernel's word, where there is one.
            pid: match (self.pid, self.hello.get()) {
                (0, Some(hello)) => hello.pid,
                (pid, _) => pid,
            },
            app_pid: app.map(|app| app.pid),
            app: app.map(|app| app.name.clone()),
            client: self.name.borrow().clone(),
            since: self.since,
        }
    }

    /// A line of it was taken. What is for a lost server is not.
    fn count(&self, line: &[u8]) {
        if !matches!(&*self.place.borrow(), Place::Lost) {
            let heard = self.heard.get();
            self.heard
                .set(heard.map(|heard| heard + line.len() as u64 + 1));
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

    fn station(&self) -> Option<Rc<Station>> {
        match &*self.place.borrow() {
            Place::At(station) => Some(Rc::clone(station)),
            Place::Opening | Place::Lost => None,
        }
    }
}

/// A client and where it is: what its lines are heard with.
#[derive(Clone, Copy)]
struct Visit<'a> {
    house: &'a Rc<House>,
    id: ClientId,
    link: &'a Rc<Link>,
}

impl Visit<'_> {
    /// Takes the next line that the client has said to its end; `false` if there is none, or if the client is to read
    /// first: a short line may have a long answer.
    fn take_line(self, inbox: &RefCell<Inbox>, at: Instant) -> bool {
        if self.link.to_client.is_full() {
            return false;
        }
        if let Some(line) = inbox.borrow_mut().next_spoken() {
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
        self.house.log.line(line.note(&who));
        // How much of what it said was heard cannot be counted any more.
        self.link.heard.set(None);
        // An id that is taken is another request's: to that one, this would be the answer.
        let taken = self.link.station().map(|it| it.in_flight_of(self.id));
        let taken: BTreeSet<Vec<u8>> = taken.into_iter().flatten().collect();
        for mut message in line.messages() {
            if let Some(answer) = message.in_its_place() {
                self.take(Spoken::from(&answer[..]), at);
                continue;
            }
            message.id = message.id.filter(|id| !taken.contains(id));
            self.link.to_client.push(&message.refusal());
        }
    }

    /// A line of the client's.
    fn take(self, spoken: Spoken<'_>, at: Instant) {
        let line = spoken.line();
        if line.bytes().ends_with(&[VOID]) {
            return;
        }
        if !self.link.is_bare()
            && let Some(word) = Control::parse(line.bytes())
        {
            return self.obey(&word);
        }
        self.link.count(line.bytes());
        if let Some(station) = self.link.station() {
            if !opens_again(&station, line) {
                return station.hear_client(self.house, self.id, spoken, at);
            }
            // Of a server that it leaves: nobody else will answer.
            for id in station.in_flight_of(self.id) {
                self.link.to_client.push(&no_such_method(&id));
            }
            self.leave_server();
        }
        let is_opening = matches!(&*self.link.place.borrow(), Place::Opening);
        if is_opening && let Ok(message) = Message::parse(line) {
            self.open(&message, line, at);
        }
    }

    fn obey(self, word: &Control) {
        match word {
            Control::Ping => self.link.tell(&Control::Pong),
            Control::Pipes => {
                if let Some(socket) = &*self.link.socket.borrow() {
                    socket.turns_to_pipes();
                }
            }
            Control::Again => {
                let mut place = self.link.place.borrow_mut();
                if let Place::Lost = *place {
                    *place = Place::Opening;
                    self.link.heard.set(Some(0));
                }
            }
            _ => {}
        }
    }

    /// The first line of a session.
    fn open(self, message: &Message<'_>, line: Line<'_>, at: Instant) {
        // What nobody waits for means nothing to a server that has heard nothing else.
        let id = match message {
            Message::Request(request) => Some(request.id.raw()),
            Message::Batch(_) => None,
            Message::Notification(_) | Message::Response(_) => return,
        };
        if let Some(name) = mux::client_name(message) {
            *self.link.name.borrow_mut() = Some(name);
        }
        let shares = self.link.wants().shares;
        let class = match (mux::opening(message), id) {
            (Opening::Ping, Some(id)) => {
                return self.link.to_client.push(&result_reply(id, "{}"));
            }
            (Opening::Probe, Some(id)) if self.house.is_known_to_be_legacy() => {
                return self.link.to_client.push(&no_such_method(id));
            }
            (Opening::Legacy(_), Some(id)) if line.bytes().len() > INITIALIZE_LIMIT => {
                return self.link.to_client.push(&long_initialize(id));
            }
            (Opening::Legacy(class), _) if shares.legacy => class,
            (Opening::Modern(class), _) if shares.modern => class,
            (Opening::Probe, _) if shares.modern => Class::modern(),
            _ => Class::private(),
        };
        let placed = self.house.pool.place(self.house, self.id, self.link, class);
        match placed {
            Ok(station) => {
                *self.link.place.borrow_mut() = Place::At(Rc::clone(&station));
                station.hear_client(self.house, self.id, Spoken::Seen(line), at);
            }
            Err(why) => {
                self.house.log.line(format_args!(
                    "client {} cannot share and goes solo: {why}",
                    self.id.0
                ));
                self.link.go_solo(why, message.requests());
            }
        }
    }

    fn leave_server(self) {
        if let Some(station) = self.link.station() {
            *self.link.place.borrow_mut() = Place::Opening;
            station.leave(self.house, self.id);
        }
    }

    /// No more will come from it: when all is answered, that is the end.
    fn half_close(self) {
        self.link.half_closed.set(true);
        let station = self.link.station();
        if let Some(station) = &station {
            station.client_eof(self.house, self.id);
        }
        if !station.is_some_and(|it| it.owes(self.id)) {
            self.link.finish();
        }
    }

    /// Whether it has said more than is taken, or does not take what is said to it.
    fn is_crowded(self) -> bool {
        let station = self.link.station();
        let is_crowded = |it: Rc<Station>| it.is_crowded(self.house, self.id);
        self.link.to_client.is_full() || station.is_some_and(is_crowded)
    }

    async fn has_room(self) {
        while self.is_crowded() {
            match self.link.station() {
                Some(station) => {
                    let is_full = self.link.to_client.is_full();
                    first_of! {
                        () = when(is_full, self.link.to_client.has_room()) => {},
                        () = station.stirred.notified() => {},
                    }
                }
                None => self.link.to_client.has_room().await,
            }
        }
    }
}

/// Whether a modern client turns out to be a legacy one: it asked whether the server knows better. A server that does
/// know the modern era says itself what it thinks of `initialize`.
fn opens_again(station: &Station, line: Line<'_>) -> bool {
    station.class.era() == Era::Modern
        && !station.knows_discover()
        && matches!(
            Message::parse(line).map(|message| mux::opening(&message)),
            Ok(Opening::Legacy(_))
        )
}

fn no_such_method(id: &[u8]) -> Vec<u8> {
    error_reply(id, -32601, "Method not found", None)
}

/// Serves one client to its end.
pub(super) async fn serve(house: Rc<House>, id: ClientId, link: Rc<Link>) {
    let socket = link.socket.borrow().clone();
    let ended = match &socket {
        Some(socket) => attend(&house, id, &link, socket).await,
        None => "it was gone already".into(),
    };
    house.log.line(format_args!(
        "client {} (process {}) left: {ended}",
        id.0, link.pid
    ));
    link.left.raise();
    drop((socket, link.socket.take()));
    let visit = Visit {
        house: &house,
        id,
        link: &link,
    };
    visit.leave_server();
    house.left(id);
}

/// Returns why it ended.
async fn attend(house: &Rc<House>, id: ClientId, link: &Rc<Link>, socket: &Rc<Socket>) -> String {
    let visit = Visit { house, id, link };
    // One that comes from another program's life has said its first line there.
    if link.wish.get().is_none()
        && let Some(ended) = welcome(visit, socket).await
    {
        return ended;
    }
    link.to_client.goes_straight_to(Rc::downgrade(socket));
    converse(visit, socket).await
}

/// Its lines both ways, until one of the two ends it.
async fn converse(visit: Visit<'_>, socket: &Rc<Socket>) -> String {
    let Visit { house, id, link } = visit;
    // A task of its own: what else is waited for here is not looked at for every line.
    let hearing = hear(Rc::clone(house), id, Rc::clone(link), Rc::clone(socket));
    let mut hearing = tasks::spawn(hearing);
    let processes = link.processes();
    let write = async |bytes: &[u8]| {
        let written = socket.write(bytes).await;
        house.drained.notify_waiters();
        house.upgrade.stir();
        written
    };
    let ended = first_of! {
        _ = &mut hearing => return "it closed its connection".into(),
        () = watch::end_of_any(&processes, house.sweep) => {
            hearing.end();
            hear_the_rest(visit, socket).await;
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
async fn hear_the_rest(visit: Visit<'_>, socket: &Socket) {
    const A_CONNECTION: usize = 2 << 20;
    let (inbox, now) = (&visit.link.inbox, Instant::now());
    let mut heard = 0;
    loop {
        in_turns(|| visit.take_line(inbox, now)).await;
        if heard >= A_CONNECTION || visit.link.to_client.is_full() {
            return;
        }
        match socket.read_now(inbox) {
            Ok(count @ 1..) => heard += count,
            _ => return,
        }
    }
}

/// Its lines, until it closes its connection.
async fn hear(house: Rc<House>, id: ClientId, link: Rc<Link>, socket: Rc<Socket>) {
    let visit = Visit {
        house: &house,
        id,
        link: &link,
    };
    if !link.is_half_closed() {
        if read_on(visit, &socket, &link.inbox).await == Heard::Hangup {
            return;
        }
        visit.half_close();
    }
    socket.hung_up().await;
}

#[derive(PartialEq, Eq)]
enum Heard {
    /// It will say no more, and may still listen.
    HalfClose,
    Hangup,
}

async fn read_on(visit: Visit<'_>, socket: &Socket, inbox: &RefCell<Inbox>) -> Heard {
    let mut now = Instant::now();
    loop {
        in_turns(|| visit.take_line(inbox, now)).await;
        if visit.is_crowded() {
            // Nothing is read meanwhile: its end must be seen otherwise.
            first_of! {
                // Lines may be left that were read before.
                () = visit.has_room() => continue,
                () = socket.hung_up() => return Heard::Hangup,
            }
        }
        match socket.read(inbox).await {
            Ok(0) => break,
            Ok(_) => {
                now = Instant::now();
                visit.house.heard(visit.id, now);
                visit.link.heard_at.set(now);
                let is_small = inbox.borrow().len() <= SMALL;
                if !is_small && !visit.house.makes_room(Some(visit.id)) {
                    inbox.borrow_mut().skip_line();
                }
                if visit.link.may_have_pipes() {
                    socket.offers_pipes();
                }
            }
            Err(_) => return Heard::Hangup,
        }
    }
    let rest = inbox.borrow_mut().rest();
    // A shim ends whatever it means to say: of anything else it sent the beginning ahead.
    if let Some(rest) = rest.filter(|_| visit.link.is_bare()) {
        visit.take(Spoken::from(&rest[..]), now);
    }
    if watch::is_hung_up(socket) {
        Heard::Hangup
    } else {
        Heard::HalfClose
    }
}
