//! A server's place in the daemon: its clients, and what is on its way to it. It is there before its process
//! and as long as anything of that is left.

mod carried;
mod delivery;
mod feed;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Control};
use kennel_core::lifetime::ClientId;
use kennel_core::message::Key;
use kennel_core::mux::{Class, Mux, Note, Out, Policy, Side};
use kennel_core::time::Moment;

use super::client::{Link, admission};
use super::dormant::{self, Used};
use super::house::{Flag, House};
use super::lanes::Lanes;
use super::log::Quota;
use super::running::Running;
use super::server;
use super::state::TALK;
use super::stopped::StopWatch;
use super::tasks::{Descriptor, Notify, first_of, moments};
use crate::printed::Printed;
use crate::shim::lines::{Spoken, max_line};
use crate::shim::width::Width;
use crate::sources::{Look, Sources};

pub(super) use carried::Carried;
use feed::Unwritten;

/// A client that has this much on its way to the server is not read for now.
const FULL: usize = 1 << 20;
/// How often the files of a server are looked at, while somebody uses it.
const LOOK: Duration = Duration::from_secs(1);
/// Lines a minute that are logged of odd lines that were dropped, and of what the server says on stderr.
const NOTES: usize = 100;
const COMPLAINTS: usize = 1000;

pub(super) struct Station {
    pub(super) class: Class,
    /// What to run, and whose wish it was.
    pub(super) hello: Rc<ClientHello>,
    /// When the process may be started.
    pub(super) start_at: Instant,
    mux: RefCell<Mux>,
    lanes: RefCell<Lanes>,
    /// The server's stdin: a line may go there at once when none waits.
    stdin: RefCell<Weak<Descriptor<OwnedFd>>>,
    /// What is being written there, before all that waits in the lanes.
    cut: RefCell<Option<Unwritten>>,
    /// That pipe is narrow, for what is in it cannot be overtaken; but not for what is long, for nothing can overtake that
    /// any more, and some servers take the longer for a line the more parts it comes in.
    width: Width,
    /// Its process and all that comes of it, while it is there.
    pub(super) running: RefCell<Option<Rc<Running>>>,
    /// What its mux notes for the log, and what it says on stderr: so many lines.
    notes: RefCell<Quota>,
    complaints: RefCell<Quota>,
    /// What it printed on stdout that is no message.
    printed: RefCell<Printed>,
    /// The last line of its process was none.
    printed_text: Cell<bool>,
    /// The files its process was started from.
    pub(super) sources: RefCell<Sources>,
    /// When they were last looked at.
    looked: Cell<Option<Instant>>,
    /// They are not what they were: it is to be replaced.
    stale: Cell<bool>,
    /// Since when nobody is here.
    pub(super) deserted_since: Cell<Option<Instant>>,
    members: RefCell<BTreeMap<ClientId, Rc<Link>>>,
    /// What stands at the other end, once it runs.
    pub(super) warden: Cell<Option<u32>>,
    pub(super) pid: Cell<Option<u32>>,
    pub(super) since: Cell<u64>,
    pub(super) used: Used,
    pub(super) stop_watch: StopWatch,
    /// It ended instead of an answer to `server/discover`.
    ended_on_discover: Cell<bool>,
    /// Its first process was ended by a signal.
    killed: Cell<bool>,
    /// It is on its way out: nobody joins it.
    pub(super) closing: Flag,
    /// Until when its mux waits for somebody.
    due: Cell<Option<Moment>>,
    /// There is something to write.
    news: Notify,
    /// Something was written, somebody came or left, or is waited for.
    pub(super) stirred: Notify,
}

impl Station {
    pub(super) fn new(class: Class, hello: Rc<ClientHello>, start_at: Instant) -> Station {
        let policy = Policy {
            cache: hello.spec.cache,
            in_turn: hello.spec.in_turn,
        };
        let mut mux = Mux::new(class.clone(), policy);
        mux.set_max_line(max_line());
        Station {
            mux: RefCell::new(mux),
            class,
            hello,
            start_at,
            lanes: RefCell::default(),
            stdin: RefCell::default(),
            cut: RefCell::default(),
            width: Width::default(),
            running: RefCell::default(),
            notes: RefCell::new(Quota::new(NOTES)),
            complaints: RefCell::new(Quota::new(COMPLAINTS)),
            printed: RefCell::default(),
            printed_text: Cell::default(),
            sources: RefCell::default(),
            looked: Cell::new(None),
            stale: Cell::new(false),
            deserted_since: Cell::new(None),
            members: RefCell::default(),
            warden: Cell::new(None),
            pid: Cell::new(None),
            since: Cell::new(super::start::now()),
            used: Used::now(),
            stop_watch: StopWatch::default(),
            ended_on_discover: Cell::new(false),
            killed: Cell::new(false),
            closing: Flag::default(),
            due: Cell::new(None),
            news: Notify::default(),
            stirred: Notify::default(),
        }
    }

    /// A client that another program let in.
    pub(super) fn has(&self, id: ClientId, link: &Rc<Link>) {
        self.members.borrow_mut().insert(id, Rc::clone(link));
    }

    /// Whether nobody waits for anything, and nothing is on its way to the server.
    pub(super) fn is_quiet(&self) -> bool {
        self.mux.borrow().is_quiet()
            && self.cut.borrow().is_none()
            && self.lanes.borrow().is_empty()
    }

    pub(super) fn join(&self, house: &House, id: ClientId, link: &Rc<Link>) {
        self.members.borrow_mut().insert(id, Rc::clone(link));
        self.mux.borrow_mut().join(id, &link.session());
        self.settle(house);
        self.stirred.notify_waiters();
    }

    pub(super) fn leave(&self, house: &House, id: ClientId) {
        if self.members.borrow_mut().remove(&id).is_some() {
            self.mux.borrow_mut().leave(id, house.now());
            self.settle(house);
            self.stirred.notify_waiters();
        }
    }

    pub(super) fn hear_client(&self, house: &House, id: ClientId, line: Spoken<'_>, at: Instant) {
        self.look_at_sources(house, at);
        let now = house.moment(at);
        match line {
            Spoken::Seen(line) => self.mux.borrow_mut().from_client(id, line, now),
            Spoken::Taken(line, scan) => {
                let mut mux = self.mux.borrow_mut();
                mux.from_client_owned(id, line, &scan, now);
            }
        }
        self.settle_for(house, Some(id), at);
        self.make_way(house);
    }

    /// Whoever owes an answer for too long is not waited for any more.
    pub(super) async fn keep_time(&self, house: &House) -> Infallible {
        loop {
            let due = self.mux.borrow().due();
            let due = due.map(|due| Instant::now() + (due - house.now()));
            first_of! {
                () = self.stirred.notified() => {},
                () = moments::until(due) => {
                    self.mux.borrow_mut().tick(house.now());
                    self.settle(house);
                },
            }
        }
    }

    /// How long it may be of no use before it hibernates: only where all who are here want that, and as the most
    /// patient of them wants it.
    pub(super) fn hibernates_after(&self) -> Option<Duration> {
        let members = self.members.borrow();
        let wishes: Option<Vec<u64>> = members.values().map(|it| it.hibernates_after()).collect();
        dormant::patience(&wishes?)
    }

    pub(super) fn hear_server(&self, house: &House, line: Spoken<'_>, at: Instant) {
        self.stop_watch.server_spoke(at);
        // What it says by itself is of use to nobody in particular.
        if !self.is_quiet() {
            if self.used.is_longer_ago_than(TALK, at) {
                // The question was written down before its answer: that one is worth a line, too.
                house.talked.notify_one();
            }
            self.used.at(at);
        }
        let now = house.moment(at);
        let seen = match line {
            Spoken::Seen(line) => {
                self.mux.borrow_mut().from_server(line, now);
                Some(line)
            }
            Spoken::Taken(line, scan) => {
                self.mux.borrow_mut().from_server_owned(line, &scan, now);
                None
            }
        };
        self.settle_for(house, None, at);
        if self.printed_text.take()
            && let Some(line) = seen
        {
            self.log_printed(house, line.bytes(), at);
        }
        self.learn_era(house);
        house.upgrade.stir();
        self.make_way(house);
    }

    /// Writes down what the server printed on stdout and is no message.
    fn log_printed(&self, house: &House, line: &[u8], at: Instant) {
        if let Some(telling) = self.printed.borrow_mut().line(line, at) {
            if let Some(words) = telling.left_out() {
                house.log.line(words);
            }
            let text = &telling.text;
            house
                .log
                .line(format_args!("server says: (on stdout) {text}"));
        }
    }

    /// Writes down what the server says on stderr.
    pub(super) fn log_complaint(&self, house: &House, line: &str) {
        let (quota, now) = (&self.complaints, Instant::now());
        let line = format_args!("server says: {line}");
        house.log.line_within(quota, now, "lines of stderr", line);
    }

    /// Its process is to be replaced, if its files changed and nobody would miss it; whether it is.
    pub(super) fn is_replaced(&self, house: &House) -> bool {
        self.look_at_sources(house, Instant::now());
        self.make_way(house)
    }

    fn make_way(&self, house: &House) -> bool {
        let due = self.stale.get() && self.is_idle();
        if due {
            server::replace(house, self);
        }
        due
    }

    /// Somebody has a use for it: a reason to see whether it is what it would be if it were started now. Its
    /// files offer no event that covers what a launcher may do, and a look costs less than a line.
    fn look_at_sources(&self, house: &House, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < LOOK;
        let replaces = self.hello.spec.replace && self.class.is_shared();
        if !replaces || self.looked.get().is_some_and(is_recent) {
            return;
        }
        self.looked.set(Some(now));
        let changed = self.sources.borrow_mut().look() == Look::Changed;
        if changed && !self.stale.replace(true) {
            house
                .log
                .line("the server's files changed: it is replaced when nobody waits for it");
        }
    }

    /// Whether nobody waits for its process, and it works on nothing.
    pub(super) fn is_idle(&self) -> bool {
        let running = self.running.borrow();
        let runs = running
            .as_ref()
            .is_some_and(|it| !it.course.get().announced);
        runs && !self.closing.is_up() && self.is_quiet() && self.mux.borrow().is_idle()
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

    /// Whether its process has shown that it knows `server/discover`.
    pub(super) fn knows_discover(&self) -> bool {
        self.mux.borrow().knows_discover() == Some(true)
    }

    pub(super) fn requests(&self) -> u64 {
        self.mux.borrow().requests()
    }

    /// Whether its process has answered anything.
    pub(super) fn has_answered(&self) -> bool {
        self.mux.borrow().latency().is_some()
    }

    /// How long its process takes for an answer.
    pub(super) fn latency_us(&self) -> Option<u64> {
        let latency = self.mux.borrow().latency()?;
        u64::try_from(latency.as_micros()).ok()
    }

    /// When the oldest pending request was made.
    pub(super) fn pending_since(&self) -> Option<Moment> {
        self.mux.borrow().pending_since()
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
    /// written to the end.
    pub(super) fn unsent(&self) -> BTreeMap<ClientId, Vec<Key>> {
        let (mux, lanes, cut) = (self.mux.borrow(), self.lanes.borrow(), self.cut.borrow());
        let cut_off = cut.iter().flat_map(Unwritten::cut_off);
        let unheard = lanes.lines().chain(mux.lines_in_turn()).chain(cut_off);
        let mut unsent = BTreeMap::<ClientId, Vec<Key>>::new();
        for (client, id) in unheard.flat_map(|line| mux.askers(line)) {
            unsent.entry(client).or_default().extend(Key::of(&id));
        }
        for client in self.members.borrow().keys() {
            let held = mux.held_of(*client);
            unsent.entry(*client).or_default().extend(held);
        }
        unsent
    }

    /// This client will say no more, and waits for its answers.
    pub(super) fn client_eof(&self, house: &House, id: ClientId) {
        self.mux.borrow_mut().client_eof(id, house.now());
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

    /// Sends away the clients for which no server may be started any more; nothing that they said has been sent. With
    /// none left, there is nothing to start.
    pub(super) fn dismiss_confined(&self, house: &House) {
        let members = self.members.borrow().clone();
        let refused = members.into_iter().filter_map(|(id, link)| {
            let why = admission::may_have_a_server(&link).err()?;
            Some((id, link, why))
        });
        let refused: Vec<_> = refused.collect();
        if refused.is_empty() {
            return;
        }
        let mut unsent = self.unsent();
        for (id, link, why) in refused {
            let log = &house.log;
            log.line(format_args!("client {} gets no server here: {why}", id.0));
            link.go_solo(&why, unsent.remove(&id).unwrap_or_default());
            self.leave(house, id);
        }
        if self.clients() == 0 {
            self.closing.raise();
        }
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
        self.lanes.borrow().waiting(id) + self.mux.borrow().keeps(id) >= FULL
    }

    /// Whether an answer of this client's is still to come.
    pub(super) fn owes(&self, id: ClientId) -> bool {
        self.mux.borrow().waits_for(id) > 0
    }

    /// The ids of this client's requests that have no answer yet, as it spelled them.
    pub(super) fn in_flight_of(&self, id: ClientId) -> Vec<Vec<u8>> {
        self.mux.borrow().in_flight_of(id)
    }

    /// How many bytes are held on their way to the server and from it; its clients are counted elsewhere.
    pub(super) fn holds(&self) -> usize {
        let cut = self.cut.try_borrow();
        let cut = cut.map_or(0, |cut| cut.as_ref().map_or(0, |chunk| chunk.line.len()));
        let lanes = self.lanes.try_borrow().map_or(0, |lanes| lanes.len());
        let running = self.running.borrow();
        let mux = self.mux.try_borrow().map_or(0, |mux| mux.holds());
        cut + lanes + mux + running.as_ref().map_or(0, |running| running.holds())
    }

    /// Does what follows from what happened.
    fn settle(&self, house: &House) {
        self.settle_for(house, None, Instant::now());
    }

    /// The same, after something that this client said.
    fn settle_for(&self, house: &House, by: Option<ClientId>, at: Instant) {
        loop {
            let next = self.mux.borrow_mut().poll();
            match next {
                None => break,
                Some(Out::ToServer { lane, line }) => self.tell_server(lane, line, by, at),
                Some(Out::ToClient { client, line }) => self.deliver(house, client, line),
                Some(Out::ToClients { clients, line }) => {
                    self.deliver_to_all(house, &clients, line);
                }
                Some(Out::Dismiss {
                    client,
                    unsent,
                    why,
                }) => {
                    let link = self.members.borrow_mut().remove(&client);
                    if let Some(link) = link {
                        house
                            .log
                            .line(format_args!("client {} goes solo: {why}", client.0));
                        link.go_solo(why, unsent);
                        self.stirred.notify_waiters();
                    }
                }
            }
        }
        let due = self.mux.borrow().due();
        if due != self.due.replace(due) {
            self.stirred.notify_waiters();
        }
        loop {
            let note = self.mux.borrow_mut().poll_note();
            match note {
                None => break,
                Some(note) => {
                    let by_server = matches!(note, Note::Malformed(Side::Server, _));
                    self.printed_text.set(self.printed_text.get() | by_server);
                    house
                        .log
                        .line_within(&self.notes, at, "notes on odd lines", note);
                }
            }
        }
    }
}
