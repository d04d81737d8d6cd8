//! A server's place in the daemon: its clients, and what is on its way to it. It is there before its process
//! and as long as anything of that is left.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Control};
use kennel_core::lifetime::ClientId;
use kennel_core::message::Key;
use kennel_core::mux::{Class, Lane, Mux, Out, Policy};
use kennel_core::time::Moment;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use super::client::Link;
use super::dormant::Used;
use super::house::{Flag, House};
use super::lanes::{self, Lanes};

/// A client that has this much on its way to the server is not read for now.
const FULL: usize = 1 << 20;
/// One that does not read holds nobody up: with this much on its way to it, of which it has taken nothing for
/// [`PATIENCE`], or with [`TOO_MUCH`], it is dropped. Alone on a server, it holds up the server instead.
const MUCH: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(2);
const TOO_MUCH: usize = 128 << 20;
/// What is longer than this goes through a wider pipe: nothing can overtake it any more, and some servers take
/// the longer for a line the more parts it comes in.
const LONG: usize = 64 * 1024;
const WIDE: usize = 256 * 1024;

pub(super) struct Station {
    pub(super) class: Class,
    /// What to run, and whose wish it was.
    pub(super) hello: Rc<ClientHello>,
    /// When the process may be started.
    pub(super) start_at: Instant,
    mux: RefCell<Mux>,
    lanes: RefCell<Lanes>,
    /// The server's stdin: a line may go there at once when none waits.
    stdin: RefCell<Weak<pipe::Sender>>,
    /// Of a line that went there the rest, before all that waits in the lanes.
    cut: Cell<Option<Chunk>>,
    /// What was taken out to be written is not written yet.
    writing: Cell<bool>,
    members: RefCell<BTreeMap<ClientId, Rc<Link>>>,
    /// What stands at the other end, once it runs.
    pub(super) warden: Cell<Option<u32>>,
    pub(super) pid: Cell<Option<u32>>,
    pub(super) since: Cell<u64>,
    pub(super) used: Used,
    /// It ended instead of an answer to `server/discover`.
    ended_on_discover: Cell<bool>,
    /// Its first process was ended by a signal.
    killed: Cell<bool>,
    /// It is on its way out: nobody joins it.
    pub(super) closing: Flag,
    /// There is something to write.
    news: Notify,
    /// Something was written, or somebody came or left.
    pub(super) stirred: Notify,
}

impl Station {
    pub(super) fn new(class: Class, hello: Rc<ClientHello>, start_at: Instant) -> Station {
        let policy = Policy {
            cache: hello.spec.cache,
            in_turn: hello.spec.in_turn,
        };
        Station {
            mux: RefCell::new(Mux::new(class.clone(), policy)),
            class,
            hello,
            start_at,
            lanes: RefCell::default(),
            stdin: RefCell::default(),
            cut: Cell::new(None),
            writing: Cell::new(false),
            members: RefCell::default(),
            warden: Cell::new(None),
            pid: Cell::new(None),
            since: Cell::new(super::start::now()),
            used: Used::now(),
            ended_on_discover: Cell::new(false),
            killed: Cell::new(false),
            closing: Flag::default(),
            news: Notify::new(),
            stirred: Notify::new(),
        }
    }

    pub(super) fn join(&self, house: &House, id: ClientId, link: &Rc<Link>) {
        self.members.borrow_mut().insert(id, Rc::clone(link));
        self.mux.borrow_mut().join(id, &link.session());
        self.settle(house);
        self.stirred.notify_waiters();
    }

    pub(super) fn leave(&self, house: &House, id: ClientId) {
        if self.members.borrow_mut().remove(&id).is_some() {
            self.mux.borrow_mut().leave(id);
            self.settle(house);
            self.stirred.notify_waiters();
        }
    }

    pub(super) fn hear_client(&self, house: &House, id: ClientId, line: &[u8]) {
        self.mux.borrow_mut().from_client(id, line, house.now());
        self.settle_for(house, Some(id));
    }

    /// Whether nobody waits for anything but news.
    pub(super) fn is_quiet(&self) -> bool {
        self.mux.borrow().is_quiet()
    }

    pub(super) fn hear_server(&self, house: &House, line: &[u8]) {
        // What it says by itself is of use to nobody in particular.
        if !self.is_quiet() {
            self.used.again();
        }
        self.mux.borrow_mut().from_server(line, house.now());
        self.settle(house);
        self.learn_era(house);
    }

    /// Whether another client may join: why not, for people.
    pub(super) fn newcomers(&self) -> Result<(), &'static str> {
        let mux = self.mux.borrow();
        match mux.ambiguous() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Whether its process may be left to itself for a while when its last client has gone.
    pub(super) fn lingers(&self, house: &House) -> bool {
        !house.closed.is_up()
            && self.class.is_shared()
            && self.newcomers().is_ok()
            && self.mux.borrow().knows_discover() != Some(false)
    }

    pub(super) fn requests(&self) -> u64 {
        self.mux.borrow().requests()
    }

    pub(super) fn clients(&self) -> usize {
        self.members.borrow().len()
    }

    /// The server is gone.
    pub(super) fn server_ended(&self, house: &House) {
        let told = self.mux.borrow().knows_discover().is_some();
        self.mux.borrow_mut().server_ended();
        self.settle(house);
        if !told && self.mux.borrow().knows_discover().is_some() {
            self.ended_on_discover.set(true);
            self.learn_from_its_end(house);
        }
    }

    /// Its first process was ended by a signal: that may have been anybody's wish.
    pub(super) fn was_killed(&self, house: &House) {
        self.killed.set(true);
        self.learn_from_its_end(house);
    }

    /// One that ends on the question does not know it; one that was killed meanwhile has said nothing.
    fn learn_from_its_end(&self, house: &House) {
        match (self.ended_on_discover.get(), self.killed.get()) {
            (true, false) => house.saw_era(false),
            (true, true) => house.saw_no_era(),
            (false, _) => {}
        }
    }

    /// The requests of each client that the server has never heard: those that wait for it, or were not
    /// written to the end. What is being written just now is not among them: it may be heard.
    pub(super) fn unsent(&self) -> BTreeMap<ClientId, Vec<Key>> {
        let (mux, lanes, cut) = (self.mux.borrow(), self.lanes.borrow(), self.cut.take());
        let cut_off = cut.iter().filter_map(Chunk::cut_off);
        let unheard = lanes.lines().chain(mux.lines_in_turn()).chain(cut_off);
        let mut unsent = BTreeMap::<ClientId, Vec<Key>>::new();
        for (client, id) in unheard.flat_map(|line| mux.askers(line)) {
            unsent.entry(client).or_default().extend(Key::of(&id));
        }
        self.cut.set(cut);
        unsent
    }

    /// This client will say no more, and waits for its answers.
    pub(super) fn client_eof(&self, house: &House, id: ClientId) {
        self.mux.borrow_mut().client_eof(id);
        self.settle(house);
    }

    fn learn_era(&self, house: &House) {
        let known = self.mux.borrow().knows_discover();
        if let Some(modern) = known.filter(|_| !self.ended_on_discover.get()) {
            house.saw_era(modern);
        }
    }

    /// Everyone leaves at once.
    pub(super) fn dismiss_all(&self) -> BTreeMap<ClientId, Rc<Link>> {
        self.closing.raise();
        self.stirred.notify_waiters();
        std::mem::take(&mut *self.members.borrow_mut())
    }

    /// Says a word of Kennel's own to the client whose wish this server was, if it is still there.
    pub(super) fn tell_its_starter(&self, word: &Control) {
        let members = self.members.borrow();
        let its = |link: &&Rc<Link>| link.session() == self.hello.session;
        if let Some(starter) = members.values().find(its) {
            starter.tell(word);
        }
    }

    /// Whether this client has said more than the server has taken.
    pub(super) fn is_crowded(&self, id: ClientId) -> bool {
        self.lanes.borrow().waiting(id) + self.mux.borrow().bytes_in_turn(id) >= FULL
    }

    /// Whether an answer of this client's is still to come.
    pub(super) fn owes(&self, id: ClientId) -> bool {
        self.mux.borrow().waits_for(id) > 0
    }

    /// The ids of this client's requests that have no answer yet, as it spelled them.
    pub(super) fn in_flight_of(&self, id: ClientId) -> Vec<Vec<u8>> {
        self.mux.borrow().in_flight_of(id)
    }

    /// Waits until the server may be heard: alone with it, a client that does not read holds it up.
    pub(super) async fn may_speak(&self) {
        loop {
            let alone = {
                let members = self.members.borrow();
                match members.values().next() {
                    Some(link) if members.len() == 1 && link.to_client.is_full() => Rc::clone(link),
                    _ => return,
                }
            };
            tokio::select! {
                () = alone.to_client.has_room() => {}
                () = self.stirred.notified() => {}
            }
        }
    }

    /// Writes what the clients say to the server, until it hears no more.
    pub(super) async fn feed(&self, stdin: pipe::Sender) {
        let stdin = Rc::new(stdin);
        *self.stdin.borrow_mut() = Rc::downgrade(&stdin);
        loop {
            let chunk = self.next_chunk().await;
            self.writing.set(true);
            let mut rest = &chunk.line[chunk.done..];
            let is_long = rest.len() > LONG;
            if is_long {
                widen(&stdin, WIDE);
            }
            while !rest.is_empty() {
                match stdin.try_write(rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if stdin.writable().await.is_err() {
                            return;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
            if is_long {
                widen(&stdin, lanes::CHUNK);
            }
            self.writing.set(false);
        }
    }

    /// What is to be written to the server next.
    async fn next_chunk(&self) -> Chunk {
        loop {
            if let Some(rest) = self.cut.take() {
                return rest;
            }
            if let Some(line) = self.lanes.borrow_mut().next_chunk() {
                self.stirred.notify_waiters();
                return Chunk { line, done: 0 };
            }
            self.news.notified().await;
        }
    }

    /// A line for the server. At once, if none waits: nobody is woken for it then.
    fn tell_server(&self, lane: Lane, mut line: Vec<u8>, by: Option<ClientId>) {
        self.used.again();
        let cut = self.cut.take();
        if cut.is_none()
            && !self.writing.get()
            && self.lanes.borrow().is_empty()
            && let Some(stdin) = self.stdin.borrow().upgrade()
        {
            line.push(b'\n');
            // If it hears no more, whoever writes the rest will see.
            let done = stdin.try_write(&line).unwrap_or(0);
            if done < line.len() {
                self.cut.set(Some(Chunk { line, done }));
                self.news.notify_one();
            }
            // It waited for its turn until now: whoever said it may say more.
            if by.is_none_or(|by| lane != Lane::Of(by)) {
                self.stirred.notify_waiters();
            }
            return;
        }
        self.cut.set(cut);
        self.lanes.borrow_mut().push(lane, line, by);
        self.news.notify_one();
    }

    /// Does what follows from what happened.
    fn settle(&self, house: &House) {
        self.settle_for(house, None);
    }

    /// The same, after something that this client said.
    fn settle_for(&self, house: &House, by: Option<ClientId>) {
        loop {
            let next = self.mux.borrow_mut().poll();
            match next {
                None => break,
                Some(Out::ToServer { lane, line }) => self.tell_server(lane, line, by),
                Some(Out::ToClient { client, line }) => self.deliver(house, client, line),
                Some(Out::Dismiss { client, why }) => {
                    let link = self.members.borrow_mut().remove(&client);
                    if let Some(link) = link {
                        house
                            .log
                            .line(format_args!("client {} goes solo: {why}", client.0));
                        link.go_solo(why);
                        self.stirred.notify_waiters();
                    }
                }
            }
        }
        loop {
            let note = self.mux.borrow_mut().poll_note();
            match note {
                None => break,
                Some(note) => house.log.line(note),
            }
        }
    }

    fn deliver(&self, house: &House, id: ClientId, line: Vec<u8>) {
        let members = self.members.borrow();
        let Some(link) = members.get(&id) else {
            return;
        };
        link.to_client.push_line(line);
        let waiting = link.to_client.len();
        let stands_still = waiting > MUCH && link.to_client.stands_still_for() > PATIENCE;
        if members.len() > 1 && (stands_still || waiting > TOO_MUCH) {
            house.log.line(format_args!(
                "client {} does not read: {waiting} bytes wait for it",
                id.0
            ));
            link.left.raise();
        } else if link.is_half_closed() && self.mux.borrow().waits_for(id) == 0 {
            link.finish();
        }
    }
}

/// Whole lines, and how much of them is written.
#[derive(Debug)]
struct Chunk {
    line: Vec<u8>,
    done: usize,
}

impl Chunk {
    /// The line, if not all of it is written: without its newline it may be understood.
    fn cut_off(&self) -> Option<&[u8]> {
        let line = self.line.trim_ascii_end();
        (self.done < line.len()).then_some(line)
    }
}

/// How much a pipe holds. One that has more in it, or whose owner has no more to spend, stays as it is.
fn widen(pipe: &pipe::Sender, size: usize) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, size);
}

/// Moments of the daemon's own clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(super) fn now(self) -> Moment {
        Moment::START + self.0.elapsed()
    }
}
