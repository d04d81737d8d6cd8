//! How long a server lives.
//!
//! Attached clients keep a server alive, and after the last one left, the time (`linger`) in which one may come back.
//! It ends if no client came back; if the owner is gone and no client is left; if its clients are silent and cannot be
//! watched; if the server exited without clients; or if a person stopped it. [`Lifetime`] weighs these and gives one
//! [`Verdict`] with its [`Reason`].
//!
//! Two rules shape it. *No orphan* (rule 2): without clients, if linger is set or the owner is gone, the verdict comes
//! in bounded time. *No false reap* (rule 3): a client whose process can be watched keeps the server alive as long as
//! it lives, silent or not, and a momentary count of zero is not the end.
//!
//! `table.rs` defines the response to each event in each [`State`].

mod policy;
mod table;
#[cfg(test)]
mod table_tests;
mod verdict;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::time::Moment;

pub use policy::{
    ClientId, DEDICATED_LINGER, GRACE, Liveness, MAX_IDLE, Owner, Policy, SHARED_LINGER,
};
pub use table::State;
pub use verdict::{Reason, Verdict};

use table::{Event, Response, Timer, respond, timers};

/// The life of one server.
///
/// Three kinds of methods:
/// - **events**: [`handle_client_attached`](Self::handle_client_attached),
///   [`handle_client_gone`](Self::handle_client_gone), [`handle_traffic`](Self::handle_traffic),
///   [`handle_owner_gone`](Self::handle_owner_gone), [`handle_server_started`](Self::handle_server_started),
///   [`handle_server_exited`](Self::handle_server_exited), [`handle_stop`](Self::handle_stop), in any order. Duplicate
///   events and events of unknown clients change nothing.
/// - **time**: [`advance`](Self::advance).
/// - **queries**: [`verdict`](Self::verdict), [`next_timeout`](Self::next_timeout), and for people
///   [`state`](Self::state) and [`clients`](Self::clients).
///
/// The order of calls: wait for an event or the timeout; pass in *all* events; then `advance`; then ask for the
/// verdict; then for the timeout, which any call may have changed. Only `advance` ends a lifetime by time, so a client
/// that arrives at the very moment of the timeout and is passed in first is not cut off.
///
/// `now` may repeat. A `now` before an earlier one counts as that earlier one.
///
/// ```
/// use kennel_core::lifetime::{ClientId, Lifetime, Owner, Policy, Liveness};
/// use kennel_core::time::Moment;
/// use std::time::Duration;
///
/// let seconds = |n| Moment::START + Duration::from_secs(n);
/// let mut life = Lifetime::new(Policy::SHARED, Owner::None, seconds(0));
///
/// life.handle_client_attached(ClientId(1), Liveness::Watchable, seconds(1));
/// assert_eq!(life.next_timeout(), None); // nothing to wait for: it is provably alive
///
/// life.handle_client_gone(ClientId(1), seconds(100));
/// assert_eq!(life.next_timeout(), Some(seconds(160)));
///
/// life.advance(seconds(160));
/// let verdict = life.verdict().expect("linger is over");
/// assert_eq!(verdict.reason.to_string(), "no client attached for 60 s");
/// ```
#[derive(Clone, Debug)]
pub struct Lifetime {
    policy: Policy,
    owner: Owner,
    state: State,
    clients: BTreeMap<ClientId, Liveness>,
    /// The latest time passed in.
    now: Moment,
    /// When the last client left, or the start. Meaningless while clients are attached.
    empty_since: Moment,
    owner_gone_at: Option<Moment>,
    /// When a client last arrived or sent something, or left while others stayed.
    last_activity: Moment,
    verdict: Option<Verdict>,
}

impl Lifetime {
    /// Starts a lifetime with a server and without clients: linger runs already. (Without linger, pass in the first
    /// client before the first `advance`.)
    pub fn new(policy: Policy, owner: Owner, now: Moment) -> Lifetime {
        Lifetime {
            policy,
            owner,
            state: State::Idle,
            clients: BTreeMap::new(),
            now,
            empty_since: now,
            owner_gone_at: None,
            last_activity: now,
            verdict: None,
        }
    }

    /// The end and its reason, once decided. It does not change.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// When to call [`advance`](Self::advance): it then gives the verdict. May be in the past. `None`: time alone
    /// changes nothing.
    pub fn next_timeout(&self) -> Option<Moment> {
        self.next_timer().map(|running| running.end)
    }

    /// The state, for people.
    pub fn state(&self) -> State {
        self.state
    }

    /// Number of attached clients.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Handles a new client. Pass it in when its connection is accepted, not when its hello arrives (lesson 30): linger
    /// and grace are cancelled.
    ///
    /// An attached client stays one client. It can become [`Liveness::Watchable`] this way once its process is known,
    /// but not unwatchable again.
    pub fn handle_client_attached(&mut self, id: ClientId, liveness: Liveness, now: Moment) {
        self.set_now(now);
        self.last_activity = self.now;
        let event = match self.clients.entry(id) {
            Entry::Vacant(place) => {
                place.insert(liveness);
                Event::Arrival
            }
            Entry::Occupied(mut known) => {
                let best = liveness.max(*known.get());
                known.insert(best);
                Event::Traffic
            }
        };
        self.apply(event);
    }

    /// Handles the end of a client's connection or process. The second of the two reports has no effect.
    pub fn handle_client_gone(&mut self, id: ClientId, now: Moment) {
        self.set_now(now);
        let was_attached = self.clients.remove(&id).is_some();
        let event = match (was_attached, self.clients.is_empty()) {
            (true, true) => {
                self.empty_since = self.now;
                Event::LastDeparture
            }
            (true, false) => {
                // If it was the last client that could be watched, the silence of the others counts from now: the
                // condition must hold for all of `max_idle` (rule 3).
                self.last_activity = self.now;
                Event::Departure
            }
            (false, _) => Event::Departure,
        };
        self.apply(event);
    }

    /// Handles bytes of a client.
    pub fn handle_traffic(&mut self, id: ClientId, now: Moment) {
        self.set_now(now);
        if self.clients.contains_key(&id) {
            self.last_activity = self.now;
        }
        self.apply(Event::Traffic);
    }

    /// Handles the exit of the owner. Ignored with [`Owner::None`].
    pub fn handle_owner_gone(&mut self, now: Moment) {
        self.set_now(now);
        match self.owner {
            Owner::None => {}
            Owner::Watched => {
                self.owner_gone_at.get_or_insert(self.now);
                self.apply(Event::OwnerGone);
            }
        }
    }

    /// Handles the exit of the server. Without clients that is the end; with clients only if all leave before it is
    /// started again.
    pub fn handle_server_exited(&mut self, now: Moment) {
        self.set_now(now);
        self.apply(Event::ServerExited);
    }

    /// Handles the start of the server, the first or a later one.
    pub fn handle_server_started(&mut self, now: Moment) {
        self.set_now(now);
        self.apply(Event::ServerStarted);
    }

    /// Handles a request to stop, whatever clients are attached.
    pub fn handle_stop(&mut self, now: Moment) {
        self.set_now(now);
        self.apply(Event::StopRequested);
    }

    /// Ends the lifetime if a timer is over. All earlier events must have been passed in. May be called early, late or
    /// often.
    pub fn advance(&mut self, now: Moment) {
        self.set_now(now);
        self.apply(Event::Advance);
    }

    fn set_now(&mut self, now: Moment) {
        self.now = self.now.max(now);
    }

    fn apply(&mut self, event: Event) {
        match respond(self.state, event) {
            Response::Stay => {}
            Response::ChangeTo(state) => self.state = state,
            Response::End(reason) => self.end(reason),
            Response::EndIfDue => {
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

    /// The reason why the lifetime is over by time, if it is.
    fn due(&self) -> Option<Reason> {
        let Running { timer, since, end } = self.next_timer()?;
        let length = self.now - since;
        (end <= self.now).then_some(match timer {
            Timer::Linger => Reason::LingerOver {
                without_clients_for: length,
            },
            Timer::Grace => Reason::OwnerGone {
                without_clients_for: length,
            },
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

    /// A timer of this state as it runs. `None`: it is not set, is held, or would end past the end of time.
    fn running(&self, timer: Timer) -> Option<Running> {
        let (since, length) = match timer {
            Timer::Linger => (self.empty_since, self.policy.linger?),
            Timer::Grace => (self.owner_gone_at?.max(self.empty_since), self.policy.grace),
            // Held: a client is certainly alive (lesson 25).
            Timer::Silence if self.any_watchable() => return None,
            Timer::Silence => (self.last_activity, self.policy.max_idle?),
        };
        let end = since.checked_add(length)?;
        Some(Running { timer, since, end })
    }

    fn any_watchable(&self) -> bool {
        self.clients
            .values()
            .any(|&liveness| liveness == Liveness::Watchable)
    }
}

struct Running {
    timer: Timer,
    since: Moment,
    end: Moment,
}
