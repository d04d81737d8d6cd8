//! A server slot of a daemon: a server, its clients, and the lines queued for it.

mod snapshot;

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Action, InputLine, Lanes, MIN_PER_CONNECTION, SlotId, SlotKey};
use crate::engine::silence::{DueAction, SilenceTimer};
use crate::lifetime::ClientId;
use crate::message::{Key, Owned};
use crate::mux::{Class, Lane, Mux, MuxPolicy};
use crate::session::ServerExit;
use crate::time::Moment;

pub use snapshot::{SlotSnapshot, SlotState};

/// Maximum bytes queued for a server by one client that is read. While memory is short, also the maximum of all clients
/// together.
const QUEUE_LIMIT: usize = 1 << 20;
/// Minimum idle time before a server hibernates.
const MIN_HIBERNATE_AFTER: Duration = Duration::from_millis(10);

/// Decides when a server stops, hibernates or is replaced, and queues the lines for it. The [`Mux`] decides what the
/// lines mean.
#[derive(Debug)]
pub struct ServerSlot {
    id: SlotId,
    key: SlotKey,
    /// When its server may start.
    start_at: Moment,
    mux: Mux,
    lanes: Lanes,
    /// The clients. For each, how long the server must be idle before it hibernates.
    clients: BTreeMap<ClientId, Option<Duration>>,
    /// Whether the clients changed since the last [`take_clients_changed`](Self::take_clients_changed).
    clients_changed: bool,
    /// How long the server outlives its last client. `None`: for ever.
    linger: Option<Duration>,
    /// The longest idle time that a client asked for, if all allow hibernation.
    hibernate_after: Option<Duration>,
    phase: Phase,
    /// A line that was taken is not written completely.
    writing: bool,
    /// The server's files changed.
    outdated: bool,
    empty_since: Option<Moment>,
    last_used: Moment,
    silence: SilenceTimer,
}

/// The phase of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its server is not started yet.
    Waiting,
    /// The driver starts its server.
    Starting,
    Running,
    /// Its server is stopped, or will never start. No client joins it.
    Closing,
}

/// An action for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotAction {
    /// Stop the server: it had no client for long enough.
    Close,
    /// Tell the clients that the server hibernates, and stop it.
    Hibernate,
    /// Treat the server as lost though its stdout is open: the remaining processes do not answer.
    DeclareLost,
    /// Check whether a process of the server is stopped, and call [`ServerSlot::handle_stopped_check`].
    CheckStopped,
}

impl ServerSlot {
    /// Creates a slot without clients.
    pub(super) fn new(
        id: SlotId,
        key: SlotKey,
        class: Class,
        policy: MuxPolicy,
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
            clients_changed: false,
            linger,
            hibernate_after: None,
            phase: Phase::Waiting,
            writing: false,
            outdated: false,
            empty_since: Some(now),
            last_used: now,
            silence: SilenceTimer::default(),
        }
    }

    /// Its number.
    pub fn id(&self) -> SlotId {
        self.id
    }

    /// The key of the server: only one server with this key may run.
    pub(super) fn key(&self) -> &SlotKey {
        &self.key
    }

    /// When its server may start.
    pub(super) fn start_at(&self) -> Moment {
        self.start_at
    }

    pub(super) fn set_start_at(&mut self, at: Moment) {
        self.start_at = at;
    }

    /// Whether its server waits to be started.
    pub(super) fn is_waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    pub(super) fn starting(&mut self) {
        self.phase = Phase::Starting;
    }

    /// Whether its server has shown that it is modern, or that it is not.
    pub(super) fn shown_era(&self) -> Option<bool> {
        self.mux.knows_discover()
    }

    /// Whether its server exited by itself before its first response, while `server/discover` was pending. A killed
    /// server proves nothing; a shell reports a kill as an exit code of 128 or more.
    pub(super) fn exited_on_discover(&self, ending: Option<ServerExit>) -> bool {
        let exited_by_itself = matches!(ending, Some(ServerExit::Code(code)) if code < 128);
        exited_by_itself && self.mux.is_asked_to_discover()
    }

    /// Answers the pending `server/discover` requests: the server does not know the method.
    pub(super) fn server_exited(&mut self) {
        self.mux.handle_server_exit();
    }

    /// Whether this client still gets messages of the server.
    pub(super) fn serves(&self, client: ClientId) -> bool {
        !self.is_closing() || self.clients.contains_key(&client)
    }

    /// Removes all clients.
    pub(super) fn dismiss_all(&mut self) {
        self.clients.clear();
    }

    /// Returns the action that writes a line. `None`: it was queued, because the server does not run or other lines are
    /// ahead.
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

    /// Returns the action that sends a line to a client, if it is still attached.
    pub(super) fn deliver(&self, client: ClientId, line: Owned) -> Option<Action> {
        let action = Action::ToClient { client, line };
        self.serves(client).then_some(action)
    }

    /// The mux.
    pub fn mux(&self) -> &Mux {
        &self.mux
    }

    /// The mux, to pass in lines and poll outputs.
    pub(super) fn mux_mut(&mut self) -> &mut Mux {
        &mut self.mux
    }

    /// The lines queued for the server.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Bytes stored for its server and its clients.
    pub fn held_bytes(&self) -> usize {
        let mux = &self.mux;
        self.lanes.len() + mux.stored_bytes() + mux.kept_bytes() + mux.queued_bytes_of_all()
    }

    /// Since when it has no clients.
    pub(super) fn empty_since(&self) -> Option<Moment> {
        self.empty_since
    }

    /// Number of clients.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// When a client last sent a request or got a response.
    pub fn last_used(&self) -> Moment {
        self.last_used
    }

    /// Adds a client.
    pub(super) fn join(
        &mut self,
        client: ClientId,
        session: &str,
        hibernate_after: Option<Duration>,
    ) {
        self.mux.join(client, session);
        self.restore_client(client, hibernate_after);
    }

    /// Adds a client that the restored mux knows already.
    pub(super) fn restore_client(&mut self, client: ClientId, hibernate_after: Option<Duration>) {
        self.clients.insert(client, hibernate_after);
        self.empty_since = None;
        self.clients_changed();
    }

    /// Removes a client. Returns `false` if it was not attached.
    pub(super) fn leave(&mut self, client: ClientId, now: Moment) -> bool {
        let was_here = self.dismiss(client, now);
        if was_here {
            self.mux.leave(client, now);
        }
        was_here
    }

    /// Removes a client that the mux dismissed.
    pub(super) fn dismiss(&mut self, client: ClientId, now: Moment) -> bool {
        let was_here = self.clients.remove(&client).is_some();
        if was_here && self.clients.is_empty() {
            self.empty_since = Some(now);
        }
        self.clients_changed();
        was_here
    }

    fn clients_changed(&mut self) {
        let all: Option<Vec<Duration>> = self.clients.values().copied().collect();
        let longest = all.and_then(|all| all.into_iter().max());
        self.hibernate_after = longest.map(|it| it.max(MIN_HIBERNATE_AFTER));
        self.clients_changed = true;
    }

    /// Whether the clients changed since the last call.
    pub(super) fn take_clients_changed(&mut self) -> bool {
        std::mem::take(&mut self.clients_changed)
    }

    /// Records that the server runs.
    pub(super) fn started(&mut self) {
        if matches!(self.phase, Phase::Waiting | Phase::Starting) {
            self.phase = Phase::Running;
        }
    }

    /// Records that the server stops. No client joins it any more.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closing;
        // No timer is needed any more.
        self.silence = SilenceTimer::default();
    }

    /// Whether it was closed.
    pub fn is_closing(&self) -> bool {
        self.phase == Phase::Closing
    }

    /// Handles a line of a client. Returns a line that starts a legacy session, if the server is modern and has not
    /// shown yet that it is: that line is for another slot.
    pub(super) fn handle_client_line<'a>(
        &mut self,
        client: ClientId,
        input: InputLine<'a>,
        short_of_memory: bool,
        now: Moment,
    ) -> Option<InputLine<'a>> {
        self.mux.set_short_of_memory(short_of_memory);
        match input {
            InputLine::Lent(line) => {
                let is_handled = self.mux.handle_client_line(client, line, now);
                (!is_handled).then_some(InputLine::Lent(line))
            }
            InputLine::Moved(line, scan) => {
                let line = self
                    .mux
                    .handle_owned_client_line(client, line, &scan, now)?;
                // Its separators may have been replaced: the scan is of another line.
                Some(InputLine::Moved(line, Box::default()))
            }
        }
    }

    /// Records that the server's files changed. Returns `false` if this was known.
    pub(super) fn mark_outdated(&mut self) -> bool {
        !std::mem::replace(&mut self.outdated, true)
    }

    /// Whether to replace the server now.
    pub(super) fn must_be_replaced(&self) -> bool {
        self.outdated && self.is_idle()
    }

    /// Records output of the server.
    pub(super) fn handle_server_output(&mut self, now: Moment) {
        self.silence.handle_output();
        // Unrequested messages do not count as use.
        if !self.is_quiet() {
            self.last_used = now;
        }
    }

    /// Records the exit of the server's first process while its stdout is open.
    pub(super) fn handle_first_process_exit(&mut self, ending: ServerExit) {
        self.silence.handle_first_process_exit(ending);
    }

    /// Whether no request is pending and no line is queued.
    pub fn is_quiet(&self) -> bool {
        self.mux.is_quiet() && !self.writing && self.lanes.is_empty()
    }

    /// Whether the server runs, and no request, queued line or task keeps it busy.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Running && self.is_quiet() && self.mux.is_idle()
    }

    /// Whether another client may join; `Err`: the reason, for people.
    pub(super) fn may_join(&self) -> Result<(), &'static str> {
        match self.mux.ambiguous() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Whether the slot has this class and is not closing.
    pub(super) fn is_open_for(&self, class: &Class) -> bool {
        !self.is_closing() && self.mux.class() == class
    }

    /// Queues a line for the server. Returns `false` if it was dropped: a response of Kennel itself to a server that
    /// does not read.
    pub(super) fn queue(&mut self, lane: Lane, line: Owned, by: Option<ClientId>) -> bool {
        let has_room = self.lanes.has_room(lane, &line, by);
        if has_room {
            self.lanes.push(lane, line, by);
        }
        has_room
    }

    /// Takes the lines to write next. Until all are written, call [`set_writing`](Self::set_writing).
    pub(super) fn next_chunk(&mut self) -> Option<Owned> {
        self.lanes.next_chunk()
    }

    /// Sets whether some taken lines are not written yet.
    pub(super) fn set_writing(&mut self, writing: bool) {
        self.writing = writing;
    }

    /// Whether the queue of the client is too long to read more of its lines.
    pub(super) fn is_over_queue_limit(
        &self,
        client: ClientId,
        memory_is_short: impl FnOnce() -> bool,
    ) -> bool {
        let waiting = self.lanes.bytes_of(client) + self.mux.queued_bytes(client);
        let is_crowded = || self.lanes.len() >= QUEUE_LIMIT || self.is_over_memory_share(client);
        waiting >= QUEUE_LIMIT || (memory_is_short() && is_crowded())
    }

    /// Whether a client has more bytes queued, or in requests without a response, than it may while memory is short.
    /// Its requests do not count while a server request waits for it: they may depend on its response.
    pub(super) fn is_over_memory_share(&self, client: ClientId) -> bool {
        let sent = self.lanes.bytes_of(client);
        let all = || sent + self.mux.queued_bytes(client) + self.mux.requests_bytes(client);
        sent > MIN_PER_CONNECTION
            || (all() > MIN_PER_CONNECTION && !self.mux.has_server_request(client))
    }

    /// The requests of each client that the server has not received: queued ones, and those of `cut_off`, lines that
    /// were not written completely.
    pub(super) fn unsent<'a>(
        &self,
        cut_off: impl Iterator<Item = &'a [u8]>,
    ) -> BTreeMap<ClientId, Vec<Key>> {
        let waiting = self.lanes.lines().chain(self.mux.queued_call_lines());
        let waiting = waiting.flat_map(|line| self.mux.waiters_of_line(line));
        let cut_off = cut_off.flat_map(|line| self.mux.waiters_of_line(line));
        let mut unsent = BTreeMap::<ClientId, Vec<Key>>::new();
        for (client, id) in waiting.chain(cut_off) {
            unsent.entry(client).or_default().extend(Key::of(&id));
        }
        for client in self.clients.keys() {
            let held = self.mux.queued_requests_of(*client);
            unsent.entry(*client).or_default().extend(held);
        }
        unsent
    }

    /// Returns the next due action, until `None`; then poll the mux. `daemon_closes`: no client will attach any more.
    pub(super) fn advance(&mut self, daemon_closes: bool, now: Moment) -> Option<SlotAction> {
        if self.mux.next_timeout().is_some_and(|at| now >= at) {
            self.mux.advance(now);
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
        match self.silence.advance(self.is_pending(), now) {
            DueAction::CheckStopped => Some(SlotAction::CheckStopped),
            DueAction::Lost => Some(SlotAction::DeclareLost),
            DueAction::Nothing | DueAction::TimerCancelled => None,
        }
    }

    /// When to call [`advance`](Self::advance).
    pub(super) fn next_timeout(&self, daemon_closes: bool, now: Moment) -> Option<Moment> {
        if self.is_closing() {
            return self.mux.next_timeout();
        }
        let silence = self
            .is_pending()
            .then(|| self.silence.next_timeout().unwrap_or(now));
        let timeouts = [
            self.mux.next_timeout(),
            self.close_at(daemon_closes),
            self.hibernate_at(),
            silence,
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Whether a long timer that `next_timeout` returned before is not needed any more. The next `advance` cancels it.
    pub fn timer_is_cancelled(&self) -> bool {
        self.silence.has_long_timer() && !self.is_pending()
    }

    /// Handles the result of a check for stopped processes. Returns whether to report the stopped process.
    pub(super) fn handle_stopped_check(&mut self, pid: Option<u32>, now: Moment) -> bool {
        self.silence.handle_check(pid, now)
    }

    fn is_pending(&self) -> bool {
        self.phase == Phase::Running && self.mux.is_pending()
    }

    /// When the server stops because it has no clients.
    fn close_at(&self, daemon_closes: bool) -> Option<Moment> {
        let since = self.empty_since?;
        // A server that no client may join does not linger.
        let lingers = self.phase == Phase::Running
            && !daemon_closes
            && self.mux.class().is_shared()
            && self.may_join().is_ok()
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

    /// A driver wakes at once for a cancelled timer: a timer that is never cleared would keep it awake.
    #[test]
    fn a_slot_that_closes_while_a_request_is_pending_has_no_timer_left() {
        let mut now = Moment::START;
        let client = ClientId(1);
        let class = Class::private();
        let key = SlotKey::new(&class, "session");
        let mut slot = ServerSlot::new(SlotId(1), key, class, MuxPolicy::default(), None, now);
        slot.join(client, "session", None);
        slot.started();
        let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
        slot.mux_mut().handle_client_line(client, &call[..], now);
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
