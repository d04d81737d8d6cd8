//! One server slot of a daemon: a server, its clients, and the lines on their way to it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Action, InputLine, Lanes, SlotId, SlotKey};
use crate::engine::stopped::{Due, StoppedCheck};
use crate::engine::survivors::Survivors;
use crate::lifetime::ClientId;
use crate::message::{Key, Owned};
use crate::mux::{Class, Lane, Mux, Policy};
use crate::session::Ending;
use crate::time::Moment;

/// A client that has this much on its way to the server is not read for now. While the daemon is short of memory, no client
/// of a server for which this much waits is.
const FULL: usize = 1 << 20;
/// While the daemon is short of memory, a client that has this much on its way to the server, or in requests without an
/// answer, is not read for now.
const SMALL: usize = 4 << 10;
/// However soon a client wants its server to hibernate: not sooner than this after the last use.
const SOONEST: Duration = Duration::from_millis(10);

/// Decides when a server stops, hibernates or is replaced, and holds the lines that wait for it. What the lines mean is
/// the [`Mux`]'s to say.
#[derive(Debug)]
pub struct ServerSlot {
    id: SlotId,
    key: SlotKey,
    /// When its server may be started.
    start_at: Moment,
    mux: Mux,
    lanes: Lanes,
    /// The clients, and after how much idle time each lets the server hibernate.
    clients: BTreeMap<ClientId, Option<Duration>>,
    /// How long the server outlives its last client; `None`: for ever.
    linger: Option<Duration>,
    /// The longest time that the clients want, if all let it hibernate.
    hibernate_after: Option<Duration>,
    phase: Phase,
    /// Not all of a line that was taken is written.
    writing: bool,
    /// The server's files changed.
    outdated: bool,
    deserted_since: Option<Moment>,
    last_used: Moment,
    stopped: StoppedCheck,
    survivors: Survivors,
}

/// What a newer build needs to know of a slot.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlotSnapshot {
    /// How its lines are distributed.
    pub mux: Mux,
    /// The lines that wait for its server.
    pub lanes: Lanes,
    /// Its server runs.
    pub running: bool,
    /// Some of what was taken from the lanes is not written.
    pub writing: bool,
    /// When its server may be started.
    pub start_at: Moment,
    /// Since when it has no client.
    pub deserted_since: Option<Moment>,
    /// How the first process of its server ended, if it has.
    pub first_process: Option<Ending>,
}

/// How far a slot has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its server is not started yet.
    Waiting,
    /// The driver starts its server.
    Starting,
    Running,
    /// Its server is stopped, or will never start: no client joins it.
    Closing,
}

/// What is to be done with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotAction {
    /// Stop it: its last client has been gone long enough.
    Close,
    /// Tell its clients that it hibernates, and stop it.
    Hibernate,
    /// Treat it as lost, though its stdout is open: what is left of it does not answer.
    Lose,
    /// See whether a process of it is stopped, and call [`ServerSlot::stopped_checked`].
    CheckStopped,
}

impl ServerSlot {
    /// A slot without clients.
    pub(super) fn new(
        id: SlotId,
        key: SlotKey,
        class: Class,
        policy: Policy,
        linger: Option<Duration>,
        now: Moment,
    ) -> ServerSlot {
        ServerSlot {
            id,
            key,
            start_at: now,
            mux: Mux::new(class, policy),
            lanes: Lanes::default(),
            clients: BTreeMap::new(),
            linger,
            hibernate_after: None,
            phase: Phase::Waiting,
            writing: false,
            outdated: false,
            deserted_since: Some(now),
            last_used: now,
            stopped: StoppedCheck::default(),
            survivors: Survivors::default(),
        }
    }

    /// Goes on with what an older build had.
    pub(super) fn restore(
        id: SlotId,
        key: SlotKey,
        snapshot: SlotSnapshot,
        linger: Option<Duration>,
        now: Moment,
    ) -> ServerSlot {
        let class = snapshot.mux.class().clone();
        let mut survivors = Survivors::default();
        if let Some(ending) = snapshot.first_process {
            survivors.first_process_ended(ending);
        }
        ServerSlot {
            survivors,
            start_at: snapshot.start_at,
            mux: snapshot.mux,
            lanes: snapshot.lanes,
            writing: snapshot.writing,
            deserted_since: snapshot.deserted_since,
            phase: match snapshot.running {
                true => Phase::Running,
                false => Phase::Waiting,
            },
            ..ServerSlot::new(id, key, class, Policy::default(), linger, now)
        }
    }

    /// Its number.
    pub fn id(&self) -> SlotId {
        self.id
    }

    /// What there is one server of at a time.
    pub(super) fn key(&self) -> &SlotKey {
        &self.key
    }

    /// When its server may be started.
    pub fn start_at(&self) -> Moment {
        self.start_at
    }

    pub(super) fn set_start_at(&mut self, at: Moment) {
        self.start_at = at;
    }

    /// Its server is not started yet, and is to be.
    pub(super) fn is_waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    pub(super) fn starting(&mut self) {
        self.phase = Phase::Starting;
    }

    /// Whether its server has shown that it knows the modern era, or does not.
    pub(super) fn shown_era(&self) -> Option<bool> {
        self.mux.knows_discover()
    }

    /// Whether its server exited by itself before its first answer, asked for `server/discover`. One that was killed has
    /// shown nothing: a shell says so of its child with a code from 128 on.
    pub(super) fn exited_on_discover(&self, ending: Option<Ending>) -> bool {
        let by_itself = matches!(ending, Some(Ending::Code(code)) if code < 128);
        by_itself && self.mux.is_asked_to_discover()
    }

    /// Its server does not know `server/discover`: those who asked are told so.
    pub(super) fn server_exited(&mut self) {
        self.mux.server_exited();
    }

    /// Whether what its server says to this client still reaches it.
    pub(super) fn serves(&self, client: ClientId) -> bool {
        !self.is_closing() || self.clients.contains_key(&client)
    }

    /// Its clients are told that its server is gone.
    pub(super) fn dismiss_all(&mut self) {
        self.clients.clear();
    }

    /// A line for its server: `None` if it was queued, for others are ahead of it, or the server does not run.
    pub(super) fn write_or_queue(
        &mut self,
        lane: Lane,
        line: Owned,
        by: Option<ClientId>,
        now: Moment,
    ) -> Option<Action> {
        self.last_used = now;
        if self.phase != Phase::Running || self.writing || !self.lanes.is_empty() {
            self.queue(lane, line, by);
            return None;
        }
        Some(Action::ToServer {
            slot: self.id,
            lane,
            line,
            by,
        })
    }

    /// A line for a client, if it is still here.
    pub(super) fn deliver(&self, client: ClientId, line: Owned) -> Option<Action> {
        let action = Action::ToClient { client, line };
        self.serves(client).then_some(action)
    }

    /// What the lines mean.
    pub fn mux(&self) -> &Mux {
        &self.mux
    }

    /// The same, to hand lines in and to poll what follows.
    pub(super) fn mux_mut(&mut self) -> &mut Mux {
        &mut self.mux
    }

    /// The lines that wait for the server.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Bytes held on their way to its server, and of what its clients wait for.
    pub fn held_bytes(&self) -> usize {
        self.lanes.len() + self.mux.holds() + self.mux.keeps_for_all()
    }

    /// How many clients there are.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Since when there is no client.
    pub fn deserted_since(&self) -> Option<Moment> {
        self.deserted_since
    }

    /// When a client last asked something, or was answered.
    pub fn last_used(&self) -> Moment {
        self.last_used
    }

    /// A client joins.
    pub(super) fn join(
        &mut self,
        client: ClientId,
        session: &str,
        hibernate_after: Option<Duration>,
    ) {
        self.mux.join(client, session);
        self.restore_client(client, hibernate_after);
    }

    /// The same for a client that was here in an older build: the mux knows it.
    pub(super) fn restore_client(&mut self, client: ClientId, hibernate_after: Option<Duration>) {
        self.clients.insert(client, hibernate_after);
        self.deserted_since = None;
        self.clients_changed();
    }

    /// A client leaves; `false` if it was none.
    pub(super) fn leave(&mut self, client: ClientId, now: Moment) -> bool {
        let was_here = self.dismiss(client, now);
        if was_here {
            self.mux.leave(client, now);
        }
        was_here
    }

    /// The same for a client that the mux sent away.
    pub(super) fn dismiss(&mut self, client: ClientId, now: Moment) -> bool {
        let was_here = self.clients.remove(&client).is_some();
        if was_here && self.clients.is_empty() {
            self.deserted_since = Some(now);
        }
        self.clients_changed();
        was_here
    }

    fn clients_changed(&mut self) {
        let all: Option<Vec<Duration>> = self.clients.values().copied().collect();
        let longest = all.and_then(|all| all.into_iter().max());
        self.hibernate_after = longest.map(|it| it.max(SOONEST));
    }

    /// The server runs.
    pub(super) fn started(&mut self) {
        if matches!(self.phase, Phase::Waiting | Phase::Starting) {
            self.phase = Phase::Running;
        }
    }

    /// The server is to stop: no client joins it any more.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closing;
        // Nothing of it is timed any more.
        self.stopped = StoppedCheck::default();
        self.survivors = Survivors::default();
    }

    /// Whether it was closed.
    pub fn is_closing(&self) -> bool {
        self.phase == Phase::Closing
    }

    /// A line of a client.
    pub(super) fn client_line(
        &mut self,
        client: ClientId,
        input: InputLine<'_>,
        short_of_memory: bool,
        now: Moment,
    ) {
        self.mux.set_short_of_memory(short_of_memory);
        match input {
            InputLine::Lent(line) => self.mux.from_client(client, line, now),
            InputLine::Moved(line, scan) => self.mux.from_client_owned(client, line, &scan, now),
        }
    }

    /// The server's files changed: it is replaced when nobody waits for it. `true` if that is news.
    pub(super) fn outdated(&mut self) -> bool {
        !std::mem::replace(&mut self.outdated, true)
    }

    /// Whether it is to be replaced now.
    pub(super) fn is_to_be_replaced(&self) -> bool {
        self.outdated && self.is_idle()
    }

    /// The server sent something.
    pub(super) fn server_spoke(&mut self, now: Moment) {
        self.stopped.server_spoke();
        self.survivors.spoke();
        // What it says by itself is of use to nobody in particular.
        if !self.is_quiet() {
            self.last_used = now;
        }
    }

    /// The server's first process ended, and its stdout is still open.
    pub(super) fn first_process_ended(&mut self, ending: Ending) {
        self.survivors.first_process_ended(ending);
    }

    /// Whether nobody waits for anything, and nothing is on its way to the server.
    pub fn is_quiet(&self) -> bool {
        self.mux.is_quiet() && !self.writing && self.lanes.is_empty()
    }

    /// Whether the server runs, nobody waits for it, and it works on nothing.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Running && self.is_quiet() && self.mux.is_idle()
    }

    /// Why no further client may join, for people.
    pub(super) fn newcomers(&self) -> Result<(), &'static str> {
        match self.mux.ambiguous() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Whether a client may join.
    pub(super) fn is_open_for(&self, class: &Class) -> bool {
        !self.is_closing() && self.mux.class() == class
    }

    /// Queues a line for the server; `false` if it was dropped: an answer of Kennel's own to a server that does not read.
    pub(super) fn queue(&mut self, lane: Lane, line: Owned, by: Option<ClientId>) -> bool {
        let has_room = self.lanes.has_room(lane, &line, by);
        if has_room {
            self.lanes.push(lane, line, by);
        }
        has_room
    }

    /// The lines that are to be written next. Until all of them are, call [`set_writing`](Self::set_writing).
    pub(super) fn next_chunk(&mut self) -> Option<Owned> {
        self.lanes.next_chunk()
    }

    /// Whether some of what was taken is not written yet.
    pub(super) fn set_writing(&mut self, writing: bool) {
        self.writing = writing;
    }

    /// Whether a client has said more than the server has taken.
    pub(super) fn is_crowded(
        &self,
        client: ClientId,
        memory_is_short: impl FnOnce() -> bool,
    ) -> bool {
        let waiting = self.lanes.waiting(client) + self.mux.keeps(client);
        let is_crowded = || self.lanes.len() >= FULL || self.exceeds_share(client);
        waiting >= FULL || (memory_is_short() && is_crowded())
    }

    /// Whether a client has more on its way to the server, or in requests without an answer, than it may have while the daemon
    /// is short of memory. Its requests do not count while it is asked something: they may wait for its answer.
    pub(super) fn exceeds_share(&self, client: ClientId) -> bool {
        let sent = self.lanes.waiting(client);
        let all = || sent + self.mux.keeps(client) + self.mux.requests_bytes(client);
        sent > SMALL || (all() > SMALL && !self.mux.owes_an_answer(client))
    }

    /// The requests of each client that the server has never read: those that wait for it, and those of `cut_off`, lines
    /// that were not written to their end.
    pub(super) fn unsent<'a>(
        &self,
        cut_off: impl Iterator<Item = &'a [u8]>,
    ) -> BTreeMap<ClientId, Vec<Key>> {
        let waiting = self.lanes.lines().chain(self.mux.lines_in_turn());
        let waiting = waiting.flat_map(|line| self.mux.askers(line));
        let cut_off = cut_off.flat_map(|line| self.mux.askers(line));
        let mut unsent = BTreeMap::<ClientId, Vec<Key>>::new();
        for (client, id) in waiting.chain(cut_off) {
            unsent.entry(client).or_default().extend(Key::of(&id));
        }
        for client in self.clients.keys() {
            let held = self.mux.held_of(*client);
            unsent.entry(*client).or_default().extend(held);
        }
        unsent
    }

    /// What is due by now; call it until there is nothing, then poll the mux. `daemon_closes`: no client will come any more.
    pub(super) fn advance(&mut self, daemon_closes: bool, now: Moment) -> Option<SlotAction> {
        if self.mux.due().is_some_and(|at| now >= at) {
            self.mux.tick(now);
        }
        if self.is_closing() {
            return None;
        }
        if self.close_at(daemon_closes).is_some_and(|at| now >= at) {
            return Some(SlotAction::Close);
        }
        if self.hibernate_at().is_some_and(|at| now >= at) {
            return Some(SlotAction::Hibernate);
        }
        if self.survivors.advance(self.is_pending(), now) {
            return Some(SlotAction::Lose);
        }
        match self.stopped.advance(self.is_pending(), now) {
            Due::Check => Some(SlotAction::CheckStopped),
            Due::Nothing | Due::Cancelled => None,
        }
    }

    /// When to call [`advance`](Self::advance).
    pub(super) fn next_timeout(&self, daemon_closes: bool, now: Moment) -> Option<Moment> {
        if self.is_closing() {
            return self.mux.due();
        }
        let stopped = match self.is_pending() {
            true => self.stopped.next_timeout().or(Some(now)),
            false => None,
        };
        let survivors = match self.survivors.is_to_be_timed(self.is_pending()) {
            true => Some(now),
            false => self.survivors.next_timeout(),
        };
        let timeouts = [
            self.mux.due(),
            self.close_at(daemon_closes),
            self.hibernate_at(),
            stopped,
            survivors,
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Whether a timer of several seconds, which `next_timeout` gave before, is not needed any more.
    /// The next `advance` cancels it.
    pub fn timer_is_cancelled(&self) -> bool {
        self.stopped.has_long_timer() && !self.is_pending()
    }

    /// The server was checked: `true` if the process that was found stopped is to be reported.
    pub(super) fn stopped_checked(&mut self, pid: Option<u32>, now: Moment) -> bool {
        self.stopped.checked(pid, now)
    }

    fn is_pending(&self) -> bool {
        self.phase == Phase::Running && self.mux.is_pending()
    }

    /// When a server without clients stops.
    fn close_at(&self, daemon_closes: bool) -> Option<Moment> {
        let since = self.deserted_since?;
        // A server that no further client may join waits for nobody.
        let lingers = self.phase == Phase::Running
            && !daemon_closes
            && self.mux.class().is_shared()
            && self.newcomers().is_ok()
            && self.mux.knows_discover() != Some(false);
        match lingers {
            true => Some(since + self.linger?),
            false => Some(since),
        }
    }

    fn hibernate_at(&self) -> Option<Moment> {
        let after = self.hibernate_after?;
        self.is_idle().then(|| self.last_used + after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A driver wakes for a cancelled timer at once: one that nothing cancels any more would keep it awake for good.
    #[test]
    fn a_slot_that_closes_while_a_request_is_pending_has_no_timer_left() {
        let mut now = Moment::START;
        let client = ClientId(1);
        let class = Class::private();
        let key = SlotKey::new(&class, "session");
        let mut slot = ServerSlot::new(SlotId(1), key, class, Policy::default(), None, now);
        slot.join(client, "session", None);
        slot.started();
        let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
        slot.mux_mut().from_client(client, &call[..], now);
        for _ in 0..3 {
            now = now + SECOND;
            assert_eq!(slot.advance(false, now), None);
        }
        assert!(slot.next_timeout(false, now).is_some_and(|at| at > now));
        assert!(slot.leave(client, now));
        assert_eq!(slot.advance(false, now), Some(SlotAction::Close));
        slot.close();
        assert_eq!(slot.advance(false, now), None);
        assert!(!slot.timer_is_cancelled());
        assert_eq!(slot.next_timeout(false, now), None);
    }
}
