//! A server's place in the daemon: its clients, and what is on its way to it. It is there before its process
//! and as long as anything of that is left.

mod carried;
mod delivery;
mod feed;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{ServerSlot, SlotAction, SlotKey};
use kennel_core::hello::{ClientHello, Control};
use kennel_core::lifetime::ClientId;
use kennel_core::message::Key;
use kennel_core::mux::{Class, Note, Out, Policy, Side};
use kennel_core::session::Ending;
use kennel_core::time::Moment;
use kennel_sys::tree::Tree;

use super::client::{Link, admission};
use super::house::{Flag, House};
use super::log::Quota;
use super::memory::BACKLOG;
use super::queue::queued_bytes;
use super::running::Running;
use super::server;
use super::state::TALK;
use super::tasks::{Descriptor, Notify, first_of, moments, others_first};
use crate::printed::Printed;
use crate::shim::lines::{Spoken, max_line};
use crate::shim::width::Width;
use crate::sources::{Look, Sources};
use crate::stopped::StoppedProcess;

pub(super) use carried::Carried;
use delivery::Together;
use feed::Unwritten;

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
    slot: RefCell<ServerSlot>,
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
    members: RefCell<BTreeMap<ClientId, Rc<Link>>>,
    /// What stands at the other end, once it runs.
    pub(super) warden: Cell<Option<u32>>,
    pub(super) pid: Cell<Option<u32>>,
    pub(super) since: Cell<u64>,
    /// It is on its way out: nobody joins it.
    pub(super) closing: Flag,
    /// What is left of its process does not answer, though its stdout is open.
    pub(super) lost: Flag,
    /// The moment that `timer` waits for.
    timeout: Cell<Option<Moment>>,
    /// An earlier moment is to be waited for.
    timer: Notify,
    /// There is something to write.
    news: Notify,
    /// Something was written, somebody came or left, or is waited for.
    pub(super) stirred: Notify,
}

impl Station {
    pub(super) fn new(
        house: &House,
        class: Class,
        hello: Rc<ClientHello>,
        start_at: Instant,
    ) -> Station {
        let policy = Policy {
            cache: hello.spec.cache,
            in_turn: hello.spec.in_turn,
        };
        let mut slot = ServerSlot::new(class.clone(), policy, house.linger, house.now());
        slot.mux_mut().set_max_line(max_line());
        Station {
            slot: RefCell::new(slot),
            class,
            hello,
            start_at,
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
            members: RefCell::default(),
            warden: Cell::new(None),
            pid: Cell::new(None),
            since: Cell::new(super::start::now()),
            closing: Flag::default(),
            lost: Flag::default(),
            timeout: Cell::new(None),
            timer: Notify::default(),
            news: Notify::default(),
            stirred: Notify::default(),
        }
    }

    /// A client that another program let in.
    pub(super) fn has(&self, id: ClientId, link: &Rc<Link>) {
        self.members.borrow_mut().insert(id, Rc::clone(link));
        let mut slot = self.slot.borrow_mut();
        slot.restore_client(id, link.hibernates_after());
    }

    /// What there is one server of at a time.
    pub(super) fn key(&self) -> SlotKey {
        SlotKey::new(&self.class, &self.hello.session)
    }

    /// Its server is to stop: no client joins it any more.
    pub(super) fn close(&self) {
        self.slot.borrow_mut().close();
        self.closing.raise();
    }

    /// Its first process ended. `stdin_closed`: nobody is left who could read its stdin.
    pub(super) fn first_process_ended(&self, house: &House, ending: Ending, stdin_closed: bool) {
        self.slot.borrow_mut().first_process_ended(ending);
        match stdin_closed {
            true => self.lost.raise(),
            false => self.set_timer(house, house.now()),
        }
    }

    /// Its process runs.
    pub(super) fn started(&self) {
        self.slot.borrow_mut().started();
    }

    /// Whether nobody waits for anything, and nothing is on its way to the server.
    pub(super) fn is_quiet(&self) -> bool {
        self.slot.borrow().is_quiet()
    }

    pub(super) fn join(&self, house: &House, id: ClientId, link: &Rc<Link>) {
        self.members.borrow_mut().insert(id, Rc::clone(link));
        let wish = link.hibernates_after();
        self.slot.borrow_mut().join(id, &link.session(), wish);
        self.settle(house);
        self.stirred.notify_waiters();
    }

    pub(super) fn leave(&self, house: &House, id: ClientId) {
        if self.members.borrow_mut().remove(&id).is_some() {
            self.slot.borrow_mut().leave(id, house.now());
            self.settle(house);
            self.stirred.notify_waiters();
        }
    }

    pub(super) fn hear_client(&self, house: &House, id: ClientId, line: Spoken<'_>, at: Instant) {
        self.look_at_sources(house, at);
        let now = house.moment(at);
        let is_short = queued_bytes() >= BACKLOG && house.holds_much();
        let mut slot = self.slot.borrow_mut();
        slot.mux_mut().set_short_of_memory(is_short);
        drop(slot);
        match line {
            Spoken::Seen(line) => {
                let mut slot = self.slot.borrow_mut();
                slot.mux_mut().from_client(id, line, now);
            }
            Spoken::Taken(line, scan) => {
                let mut slot = self.slot.borrow_mut();
                slot.mux_mut().from_client_owned(id, line, &scan, now);
            }
        }
        self.settle_for(house, Some(id), at);
        self.make_way(house);
    }

    /// Does what is due for this server, for ever: `tree` once it runs.
    pub(super) async fn keep_time(
        &self,
        house: &House,
        tree: Option<&Tree>,
    ) -> std::convert::Infallible {
        loop {
            let now = house.now();
            let timeout = self.slot.borrow().next_timeout(house.closed.is_up(), now);
            self.timeout.set(timeout);
            first_of! {
                () = self.timer.notified() => {},
                () = moments::until(timeout.map(|at| house.instant(at))) => {},
            }
            self.advance(house, tree);
            // Whatever the slot wants next: the daemon serves others before it is asked again.
            others_first().await;
        }
    }

    fn advance(&self, house: &House, tree: Option<&Tree>) {
        loop {
            let (closes, now) = (house.closed.is_up(), house.now());
            let action = self.slot.borrow_mut().advance(closes, now);
            match action {
                None => break,
                Some(SlotAction::Close) => self.close(),
                Some(SlotAction::Lose) => {
                    self.lost.raise();
                    break;
                }
                Some(SlotAction::Hibernate) => server::hibernate(house, self),
                Some(SlotAction::CheckStopped) => self.check_stopped(house, tree),
            }
        }
        self.settle(house);
    }

    fn check_stopped(&self, house: &House, tree: Option<&Tree>) {
        // What cannot be looked at is not reported.
        let stopped = tree.and_then(|tree| tree.stopped().unwrap_or_default());
        let pid = stopped.map(|stopped| stopped.pid);
        let is_news = self.slot.borrow_mut().stopped_checked(pid, house.now());
        if let Some(stopped) = stopped.filter(|_| is_news) {
            house.log.line(StoppedProcess::from(stopped).report());
        }
    }

    /// Wakes the timer, if it waits for the wrong moment.
    fn set_timer(&self, house: &House, now: Moment) {
        let slot = self.slot.borrow();
        let timeout = slot.next_timeout(house.closed.is_up(), now);
        let waits_for = self.timeout.get().unwrap_or(Moment::END);
        if timeout.is_some_and(|at| at < waits_for) || slot.timer_is_cancelled() {
            self.timeout.set(timeout);
            self.timer.notify_one();
        }
    }

    pub(super) fn hear_server(&self, house: &House, line: Spoken<'_>, at: Instant) {
        let now = house.moment(at);
        let mut slot = self.slot.borrow_mut();
        if now - slot.last_used() > TALK && !slot.is_quiet() {
            // The question was written down before its answer: that one is worth a line, too.
            house.talked.notify_one();
        }
        slot.server_spoke(now);
        let seen = match line {
            Spoken::Seen(line) => {
                slot.mux_mut().from_server(line, now);
                Some(line)
            }
            Spoken::Taken(line, scan) => {
                slot.mux_mut().from_server_owned(line, &scan, now);
                None
            }
        };
        drop(slot);
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
        let due = self.slot.borrow().is_to_be_replaced();
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
        if changed && self.slot.borrow_mut().outdated() {
            house
                .log
                .line("the server's files changed: it is replaced when nobody waits for it");
        }
    }

    /// Whether another client may join: why not, for people.
    pub(super) fn newcomers(&self) -> Result<(), &'static str> {
        self.slot.borrow().newcomers()
    }

    /// Whether its process has shown that it knows `server/discover`.
    pub(super) fn knows_discover(&self) -> bool {
        self.slot.borrow().mux().knows_discover() == Some(true)
    }

    pub(super) fn requests(&self) -> u64 {
        self.slot.borrow().mux().requests()
    }

    /// Whether its process has answered anything.
    pub(super) fn has_answered(&self) -> bool {
        self.slot.borrow().mux().latency().is_some()
    }

    /// How long its process takes for an answer.
    pub(super) fn latency_us(&self) -> Option<u64> {
        let latency = self.slot.borrow().mux().latency()?;
        u64::try_from(latency.as_micros()).ok()
    }

    pub(super) fn clients(&self) -> usize {
        self.members.borrow().len()
    }

    /// The server exited by itself. One that does so on `server/discover` does not know it.
    pub(super) fn server_exited(&self, house: &House) {
        self.slot.borrow_mut().mux_mut().server_exited();
        self.settle(house);
        self.learn_era(house);
    }

    /// The requests of each client that the server has never heard: those that wait for it, or were not
    /// written to the end.
    pub(super) fn unsent(&self) -> BTreeMap<ClientId, Vec<Key>> {
        let (slot, cut) = (self.slot.borrow(), self.cut.borrow());
        slot.unsent(cut.iter().flat_map(Unwritten::cut_off))
    }

    /// This client will say no more, and waits for its answers.
    pub(super) fn client_eof(&self, house: &House, id: ClientId) {
        let mut slot = self.slot.borrow_mut();
        slot.mux_mut().client_eof(id, house.now());
        drop(slot);
        self.settle(house);
    }

    fn learn_era(&self, house: &House) {
        let known = self.slot.borrow().mux().knows_discover();
        if let Some(modern) = known {
            house.saw_era(modern);
        }
    }

    /// Everyone leaves at once.
    pub(super) fn dismiss_all(&self) -> BTreeMap<ClientId, Rc<Link>> {
        self.close();
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
            self.close();
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
    pub(super) fn is_crowded(&self, house: &House, id: ClientId) -> bool {
        let slot = self.slot.borrow();
        slot.is_crowded(id, || house.holds_too_much())
    }

    /// Whether an answer of this client's is still to come.
    pub(super) fn owes(&self, id: ClientId) -> bool {
        self.slot.borrow().mux().waits_for(id) > 0
    }

    /// The ids of this client's requests that have no answer yet, as it spelled them.
    pub(super) fn in_flight_of(&self, id: ClientId) -> Vec<Vec<u8>> {
        self.slot.borrow().mux().in_flight_of(id)
    }

    /// How many bytes are held on their way to the server and from it; its clients are counted elsewhere.
    pub(super) fn holds(&self) -> usize {
        let cut = self.cut.try_borrow();
        let cut = cut.map_or(0, |cut| cut.as_ref().map_or(0, |chunk| chunk.line.len()));
        let slot = self.slot.try_borrow();
        let slot = slot.map_or(0, |slot| slot.lanes().len() + slot.mux().holds());
        let running = self.running.borrow();
        cut + slot + running.as_ref().map_or(0, |running| running.holds())
    }

    /// Does what follows from what happened.
    fn settle(&self, house: &House) {
        self.settle_for(house, None, Instant::now());
    }

    /// The same, after something that this client said.
    fn settle_for(&self, house: &House, by: Option<ClientId>, at: Instant) {
        let mut together = Together::default();
        loop {
            let next = self.slot.borrow_mut().mux_mut().poll();
            if !matches!(next, Some(Out::ToClients { .. })) {
                self.deliver_together(house, together.take());
            }
            match next {
                None => break,
                Some(Out::ToServer { lane, line }) => {
                    self.tell_server(lane, line, by, house.moment(at));
                }
                Some(Out::ToClient { client, line }) => self.deliver(house, client, line),
                Some(Out::ToClients { clients, line }) => {
                    self.deliver_together(house, together.add(clients, line));
                }
                Some(Out::Dismiss {
                    client,
                    unsent,
                    why,
                }) => {
                    let link = self.members.borrow_mut().remove(&client);
                    let now = house.moment(at);
                    self.slot.borrow_mut().dismiss(client, now);
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
        self.set_timer(house, house.moment(at));
        loop {
            let note = self.slot.borrow_mut().mux_mut().poll_note();
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
