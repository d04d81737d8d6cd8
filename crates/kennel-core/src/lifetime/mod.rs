//! How long a server lives.
//!
//! A server has reasons to live: clients that are attached, and for a while (`linger`) the hope that one
//! comes back. It has reasons to end: nobody came back; the owner is gone and nobody is left; the
//! clients are phantoms that nobody hears or sees; the server itself ended with nobody to want it back;
//! somebody asked. [`Lifetime`] weighs them and gives one [`Verdict`] with its [`Reason`].
//!
//! Two rules shape it. *No orphan* (rule 2): once nobody is attached and linger is set or the owner
//! is gone, the verdict comes in bounded time. *No false reap* (rule 3): a client whose process can be
//! watched holds the server for as long as it lives, quiet or not, and a transient zero is not a zero.
//!
//! What follows from which event in which [`State`] is one table, in `table.rs`.

mod policy;
mod table;
#[cfg(test)]
mod table_tests;
mod verdict;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::time::Moment;

pub use policy::{ClientId, GRACE, MAX_IDLE, Owner, Policy, SHARED_LINGER, SOLO_LINGER, Sight};
pub use table::State;
pub use verdict::{Reason, Verdict};

use table::{Answer, Event, Timer, answer, timers};

/// The life of one server.
///
/// Three kinds of methods:
/// - **what happened**: [`client_attached`](Self::client_attached), [`client_gone`](Self::client_gone),
///   [`traffic`](Self::traffic), [`owner_gone`](Self::owner_gone),
///   [`server_started`](Self::server_started), [`server_exited`](Self::server_exited),
///   [`stop_asked`](Self::stop_asked). May be called in any order; a report that comes twice, or
///   about somebody unknown, changes nothing.
/// - **time went by**: [`tick`](Self::tick).
/// - **what follows**: [`verdict`](Self::verdict), [`deadline`](Self::deadline), and for people
///   [`state`](Self::state) and [`clients`](Self::clients).
///
/// The order of calls: wait for an event or the deadline; hand in *everything* that happened; then
/// `tick`; then ask for the verdict; then for the deadline, which any call may have moved. As only
/// `tick` ends anything by time, a client that arrives at the very moment of the deadline and is
/// handed in first is not cut off.
///
/// `now` may repeat. One that lies before an earlier one counts as that earlier one: here, too,
/// time does not run backwards.
///
/// ```
/// use kennel_core::lifetime::{ClientId, Lifetime, Owner, Policy, Sight};
/// use kennel_core::time::Moment;
/// use std::time::Duration;
///
/// let seconds = |n| Moment::START + Duration::from_secs(n);
/// let mut life = Lifetime::new(Policy::SHARED, Owner::None, seconds(0));
///
/// life.client_attached(ClientId(1), Sight::Seen, seconds(1));
/// assert_eq!(life.deadline(), None); // nothing to wait for: it is provably alive
///
/// life.client_gone(ClientId(1), seconds(100));
/// assert_eq!(life.deadline(), Some(seconds(160)));
///
/// life.tick(seconds(160));
/// let verdict = life.verdict().expect("linger is over");
/// assert_eq!(verdict.reason.to_string(), "no client attached for 60 s");
/// ```
#[derive(Clone, Debug)]
pub struct Lifetime {
    policy: Policy,
    owner: Owner,
    state: State,
    clients: BTreeMap<ClientId, Sight>,
    /// The latest moment handed in.
    now: Moment,
    /// When the last client left; the start, if none came yet. Means nothing while clients are there.
    empty_since: Moment,
    owner_gone_at: Option<Moment>,
    /// When a client was last heard, or came, or left while others stayed.
    sign_of_life: Moment,
    verdict: Option<Verdict>,
}

impl Lifetime {
    /// A life that begins `now`, with a server and with nobody attached: linger runs already. (With no
    /// linger at all, hand in the first client before the first tick.)
    pub fn new(policy: Policy, owner: Owner, now: Moment) -> Lifetime {
        Lifetime {
            policy,
            owner,
            state: State::Idle,
            clients: BTreeMap::new(),
            now,
            empty_since: now,
            owner_gone_at: None,
            sign_of_life: now,
            verdict: None,
        }
    }

    /// The end and its reason, once it is decided. Final.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// When to [`tick`](Self::tick) if nothing else happens before: a tick then gives the verdict.
    /// May be past already. `None`: time alone changes nothing, sleep until something happens.
    pub fn deadline(&self) -> Option<Moment> {
        self.next_timer().map(|running| running.end)
    }

    /// Where it stands, for people.
    pub fn state(&self) -> State {
        self.state
    }

    /// How many clients are attached.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// A client is there. It counts from now on: hand it in when its connection is accepted, not
    /// when it has introduced itself (lesson 30); linger and grace are cancelled.
    ///
    /// A client attached already stays one client. It may become [`Sight::Seen`] this way, once its
    /// process is known; it does not become unseen again.
    pub fn client_attached(&mut self, id: ClientId, sight: Sight, now: Moment) {
        self.advance(now);
        self.sign_of_life = self.now;
        let event = match self.clients.entry(id) {
            Entry::Vacant(place) => {
                place.insert(sight);
                Event::Arrival
            }
            Entry::Occupied(mut known) => {
                let best = sight.max(*known.get());
                known.insert(best);
                Event::Traffic
            }
        };
        self.handle(event);
    }

    /// A client is not there any more: its connection or its process ended. The second report of
    /// the two changes nothing.
    pub fn client_gone(&mut self, id: ClientId, now: Moment) {
        self.advance(now);
        let was_attached = self.clients.remove(&id).is_some();
        let event = match (was_attached, self.clients.is_empty()) {
            (true, true) => {
                self.empty_since = self.now;
                Event::LastDeparture
            }
            (true, false) => {
                // If it was the last one that could be seen, the silence of the others counts from
                // here: the backstop's condition must hold for the whole of `max_idle` (rule 3).
                self.sign_of_life = self.now;
                Event::Departure
            }
            (false, _) => Event::Departure,
        };
        self.handle(event);
    }

    /// A client was heard.
    pub fn traffic(&mut self, id: ClientId, now: Moment) {
        self.advance(now);
        if self.clients.contains_key(&id) {
            self.sign_of_life = self.now;
        }
        self.handle(Event::Traffic);
    }

    /// The owner's process is gone. Ignored with [`Owner::None`].
    pub fn owner_gone(&mut self, now: Moment) {
        self.advance(now);
        match self.owner {
            Owner::None => {}
            Owner::Watched => {
                self.owner_gone_at.get_or_insert(self.now);
                self.handle(Event::OwnerGone);
            }
        }
    }

    /// The server is gone. With nobody attached that is the end; with clients it is not, unless they
    /// all leave before it is back.
    pub fn server_exited(&mut self, now: Moment) {
        self.advance(now);
        self.handle(Event::ServerExited);
    }

    /// The server is there, or there again.
    pub fn server_started(&mut self, now: Moment) {
        self.advance(now);
        self.handle(Event::ServerStarted);
    }

    /// Somebody wants the end, whoever is attached.
    pub fn stop_asked(&mut self, now: Moment) {
        self.advance(now);
        self.handle(Event::StopAsked);
    }

    /// It is `now`, and all that happened before was handed in. May come early, late, or often.
    pub fn tick(&mut self, now: Moment) {
        self.advance(now);
        self.handle(Event::Tick);
    }

    fn advance(&mut self, now: Moment) {
        self.now = self.now.max(now);
    }

    fn handle(&mut self, event: Event) {
        match answer(self.state, event) {
            Answer::Stay => {}
            Answer::Go(state) => self.state = state,
            Answer::End(reason) => self.end(reason),
            Answer::EndIfDue => {
                if let Some(reason) = self.due() {
                    self.end(reason);
                }
            }
        }
    }

    fn end(&mut self, reason: Reason) {
        self.state = State::Ended;
        self.verdict = Some(Verdict {
            reason,
            at: self.now,
        });
    }

    /// Why the life is over by time, if it is.
    fn due(&self) -> Option<Reason> {
        let Running { timer, since, end } = self.next_timer()?;
        let length = self.now - since;
        (end <= self.now).then_some(match timer {
            Timer::Linger => Reason::LingerOver { nobody_for: length },
            Timer::Grace => Reason::OwnerGone { nobody_for: length },
            Timer::Silence => Reason::Silent { silent_for: length },
        })
    }

    /// The timer that ends first.
    fn next_timer(&self) -> Option<Running> {
        timers(self.state)
            .iter()
            .filter_map(|&timer| self.running(timer))
            .min_by_key(|running| running.end)
    }

    /// A timer of this state as it runs; `None` if it is not set, or held, or would end past the
    /// end of time.
    fn running(&self, timer: Timer) -> Option<Running> {
        let (since, length) = match timer {
            Timer::Linger => (self.empty_since, self.policy.linger?),
            Timer::Grace => (self.owner_gone_at?.max(self.empty_since), self.policy.grace),
            // Held: somebody is provably alive (lesson 25).
            Timer::Silence if self.anybody_seen() => return None,
            Timer::Silence => (self.sign_of_life, self.policy.max_idle?),
        };
        let end = since.checked_add(length)?;
        Some(Running { timer, since, end })
    }

    fn anybody_seen(&self) -> bool {
        self.clients.values().any(|&sight| sight == Sight::Seen)
    }
}

struct Running {
    timer: Timer,
    since: Moment,
    end: Moment,
}
