//! How much the daemon holds for its clients and servers, and what it does when that is too much.

use std::cell::Cell;
use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::ServerSlot;
use kennel_core::hello::{ClientHello, Text};
use kennel_core::lifetime::ClientId;
use kennel_sys::memory::{give_back_free, return_large};

use super::client::ClientConn;
use super::daemon_state::DaemonState;
use super::queue::queued_bytes;
use crate::shim::lines::{SHORT, max_line};

/// What a daemon may hold beside lines of the greatest length, in bytes. Little: each long line is in large pages, and
/// takes up to 2 MB more than it has.
const BESIDE_LINES: usize = 4 << 20;
/// A client that has at least this much unread has a backlog, in bytes: more than sockets and pipes take at once.
pub(super) const BACKLOG: usize = 256 * 1024;
/// A client with a backlog that takes none of it for this long does not read. Long enough for an app that is busy; and
/// for no longer can a client that does not read hold up the others.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// A line that is no longer than this is taken though the daemon holds too much, within [`MODEST_LINES`].
pub(super) const MODEST: usize = 256 * 1024;
/// What modest lines may take, all together, while the daemon holds too much; more for those to and from servers
/// that have taken all that was said to them. A line of a client that finds no room waits for it: others end, or stall and are
/// dropped.
const MODEST_LINES: usize = 2 << 20;
/// What no connection is refused for, in bytes: half a line, what waits for a server, and what waits for the client. While
/// the daemon holds too much, no more is read of a client at once.
pub(super) const SMALL: usize = SHORT;
/// A line of which nothing came for this long is dropped before others, if the daemon holds too much.
pub(super) const IDLE: Duration = Duration::from_secs(1);
/// Maximum number of connections that have not said who they are. More than come at once: shims say it at once.
const UNADMITTED: usize = 256;
/// Maximum bytes of a line that is malformed, a batch, or odd in another way: all of it is read several times at once, and
/// nobody else is served meanwhile. 4 MiB take less than 0.1 s.
pub(super) const MAX_ODD_LINE: usize = 4 << 20;
/// What a variable, or the name of one, takes up beside its bytes.
const EACH_VARIABLE: usize = 96;
/// What a connection takes up beside its lines and its wish: its tasks, and what the allocator adds.
const EACH_CLIENT: usize = 16 << 10;
/// With so many connections, memory of lines is returned to the system at once. For fewer it is faster to keep it.
const MANY: usize = 64;
/// When to look again, where it is not known how long a client has not read, or what others do about their memory.
pub(super) const SOON: Duration = Duration::from_millis(100);
/// What is known of the memory that is held counts for this long: in that time little is added.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What is known of the memory that is held.
#[derive(Default)]
pub(super) struct Memory {
    is_short: Cell<bool>,
    looked: Cell<Option<Instant>>,
    /// When memory that was free was given back to the system, if much is held.
    gave_back: Cell<Option<Instant>>,
}

impl Memory {
    /// Whether too much was held when it was last looked at. Then little is read of each client, and what its server takes
    /// of it or it takes itself comes first.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.get()
    }

    /// Gives memory back to the system that is free between what is held, now and then while much is held, and once when it
    /// is not any more: lines of all lengths leave gaps that the next ones do not fit into.
    fn give_back(&self, holds_much: bool) {
        let is_due = match self.gave_back.get() {
            Some(before) => !holds_much || before.elapsed() >= SOON,
            None => holds_much,
        };
        if is_due {
            give_back_free();
            self.gave_back.set(holds_much.then(Instant::now));
        }
    }
}

/// Whether a server has taken all that was said to it.
#[derive(Clone, Copy)]
enum ServerPace {
    /// A line of its own is read: its client waits for that.
    Answers,
    UpToDate,
    /// Lines wait for it: it is busy, or does not read. Its clients must not take the room of others.
    Behind,
}

impl DaemonState {
    /// Whether another client can be kept beside the others, and what it wants to run.
    pub(super) fn has_room_for_wish(&self, wish: &ClientHello) -> bool {
        let clients = self.clients.borrow();
        let admitted = clients.values().filter(|link| link.is_admitted());
        let kept: usize = admitted.map(|link| link.wish_bytes() + EACH_CLIENT).sum();
        // A server keeps what the client wanted that it was started for, though that one left.
        let servers = self.servers.borrow();
        let orphaned = servers
            .values()
            .filter(|it| Rc::strong_count(&it.hello) == 1);
        let kept = kept + orphaned.map(|it| wish_bytes(&it.hello)).sum::<usize>();
        kept + wish_bytes(wish) + EACH_CLIENT <= clients_limit()
    }

    /// The same hello, which shares the first one's environment if its own is equal: much to keep for each client.
    pub(super) fn with_one_environment(&self, mut hello: ClientHello) -> ClientHello {
        let first = self.first_hello.borrow();
        if let Some(first) = first.as_ref().filter(|first| first.env == hello.env) {
            hello.env = Arc::clone(&first.env);
        }
        hello
    }

    /// Whether [too much](Self::holds_too_much) is held, by what was known at most [`LOOK_EVERY`] before.
    pub(super) fn is_short_at(&self, at: Instant) -> bool {
        let looked = self.memory.looked.get();
        if looked.is_none_or(|looked| at.saturating_duration_since(looked) >= LOOK_EVERY) {
            self.memory.looked.set(Some(at));
            self.holds_too_much();
        }
        self.memory.is_short()
    }

    /// Somebody came. The lines of many leave gaps in the memory that nothing fits into.
    pub(super) fn return_memory_of_many(&self) {
        if self.clients.borrow().len() == MANY {
            return_large();
        }
    }

    /// Bytes held of lines that clients have not ended.
    fn half_said(&self) -> usize {
        let clients = self.clients.borrow();
        clients.values().map(|link| link.half_said()).sum()
    }

    /// Bytes held for all clients and servers together: half lines, and lines on their way.
    fn held_bytes(&self) -> usize {
        let half_said = self.half_said();
        let servers = self.held_for_servers();
        half_said + queued_bytes() + servers
    }

    /// Bytes that an upgrade would write down of lines and environments: a line that waits in several queues counts in each.
    pub(super) fn carried_bytes(&self) -> usize {
        let clients = self.clients.borrow();
        // Environments as well: each client's is written down, though several have one.
        let of = |link: &Rc<ClientConn>| {
            link.half_length() + link.to_client.len() + link.environment_bytes()
        };
        let clients: usize = clients.values().map(of).sum();
        clients + self.held_for_servers()
    }

    /// Bytes held on their way to servers and from them; those of clients' queues aside.
    fn held_for_servers(&self) -> usize {
        let slots: usize = self
            .engine
            .borrow()
            .slots()
            .map(ServerSlot::held_bytes)
            .sum();
        let servers = self.servers.borrow();
        slots + servers.values().map(|it| it.holds()).sum::<usize>()
    }

    /// Whether so much is held that long lines which are still being read are refused. Not asked for each line.
    pub(super) fn holds_too_much(&self) -> bool {
        self.excess() > 0
    }

    /// How many bytes are held that are too much.
    fn excess(&self) -> usize {
        let held = self.held_bytes();
        self.memory.give_back(held > beside(max_line()));
        let excess = held.saturating_sub(beside(max_line().saturating_mul(2)));
        self.memory.is_short.set(excess > 0);
        excess
    }

    /// Whether so much is held that lines which are still being read wait, unless they are [small](SMALL). What each
    /// connection may have in any case does not count: else many that have just that would leave nothing for the others.
    fn is_full(&self, server: ServerPace) -> bool {
        let in_any_case = self.clients.borrow().len() * 3 * SMALL;
        let are_few = || self.half_said() <= MODEST_LINES + in_any_case;
        let lines = match server {
            ServerPace::Behind => MODEST_LINES,
            // Those that were half lines may wait for a server by now: they must not take the room of the next ones.
            ServerPace::UpToDate if are_few() => 4 * MODEST_LINES,
            ServerPace::UpToDate => 2 * MODEST_LINES,
            ServerPace::Answers => 6 * MODEST_LINES,
        };
        self.excess() > lines + in_any_case
    }

    /// Whether anything waits for the server of a client.
    fn server_of(&self, client: ClientId) -> ServerPace {
        let engine = self.engine.borrow();
        let slot = engine.slot_of(client).and_then(|slot| engine.slot(slot));
        match slot.is_some_and(|slot| !slot.lanes().is_empty()) {
            true => ServerPace::Behind,
            false => ServerPace::UpToDate,
        }
    }

    /// Sees to it that not [too much](Self::holds_too_much) is held, by dropping half lines: first those of connections
    /// that have not said who they are, then those that [stall](ClientConn::half_line_stalls). A modest line of `reader` has
    /// room beyond that; for it the oldest half lines of others are dropped, if they are older than [`IDLE`]. `false`: the line that `reader` is saying, or a server, must be dropped, or wait.
    pub(super) fn makes_room(&self, reader: Option<ClientId>) -> bool {
        if !self.holds_too_much() {
            return true;
        }
        // Those whose unread lines are Kennel's own have no server that would see it.
        self.drop_stalled();
        for link in self.half_lines_to_drop(reader) {
            link.drop_half_line(self);
            if !self.holds_too_much() {
                return true;
            }
        }
        let clients = self.clients.borrow();
        let Some(link) = reader.and_then(|reader| clients.get(&reader)) else {
            return false;
        };
        if !link.is_modest() {
            return false;
        }
        let server = reader.map_or(ServerPace::Behind, |reader| self.server_of(reader));
        if !self.is_full(server) {
            return true;
        }
        let others = clients.iter().filter(|(id, _)| Some(**id) != reader);
        let ages = others.map(|(_, link)| (link.half_line_age(), link));
        let mut old: Vec<_> = ages.filter(|(age, _)| *age >= IDLE).collect();
        old.sort_by_key(|(age, _)| Reverse(*age));
        old.iter().any(|(_, link)| {
            link.drop_half_line(self);
            !self.is_full(server)
        })
    }

    /// The same for a line of which a server has said so many bytes.
    pub(super) fn makes_room_for_server(&self, length: usize) -> bool {
        self.makes_room(None) || (length <= MODEST && !self.is_full(ServerPace::Answers))
    }

    /// Clients with a half line that is dropped before the reader's own, those that miss it least first.
    fn half_lines_to_drop(&self, reader: Option<ClientId>) -> Vec<Rc<ClientConn>> {
        let clients = self.clients.borrow();
        let mut dropped: Vec<_> = clients
            .iter()
            .filter(|(id, link)| Some(**id) != reader && !link.left.is_up())
            .filter(|(_, link)| link.half_said() > SMALL)
            .map(|(_, link)| (link.is_admitted(), Reverse(link.is_silent_for()), link))
            .filter(|(is_admitted, _, link)| !is_admitted || link.half_line_stalls())
            .collect();
        dropped.sort_by_key(|(is_admitted, silent, _)| (*is_admitted, *silent));
        let links = dropped.into_iter().map(|(_, _, link)| Rc::clone(link));
        links.collect()
    }

    /// A connection came. If too many have not said who they are, the first of them is turned away.
    pub(super) fn bound_unadmitted(&self) {
        let clients = self.clients.borrow();
        let unadmitted = || {
            clients
                .values()
                .filter(|it| !it.is_admitted() && !it.left.is_up())
        };
        if unadmitted().count() > UNADMITTED
            && let Some(first) = unadmitted().next()
        {
            first.turn_away(self);
        }
    }

    /// Whether so much is held that nothing is read from a server whose clients have a backlog. There is room for one
    /// more line of the greatest length before [`holds_too_much`](Self::holds_too_much).
    pub(super) fn holds_much(&self) -> bool {
        self.held_bytes() > beside(max_line())
    }

    /// The same for a server with a client that has this much unread. When too much is held, less is a backlog.
    pub(super) fn holds_much_with(&self, unread: usize) -> bool {
        match unread >= BACKLOG {
            true => self.holds_much(),
            false => unread >= SMALL && self.holds_too_much(),
        }
    }

    /// Whether a client is leaving that did not read: its memory is free in a moment.
    pub(super) fn frees_memory_soon(&self) -> bool {
        let clients = self.clients.borrow();
        let mut leaving = clients.values().filter(|link| link.left.is_up());
        leaving.any(|link| link.to_client.len() >= SMALL)
    }

    /// Disconnects the clients that do not read, those with the most unread first, until the rest is not
    /// [much](Self::holds_much). Returns when to look again, if nothing is written meanwhile.
    pub(super) fn drop_stalled(&self) -> Instant {
        let now = Instant::now();
        let backlog = if self.holds_too_much() {
            SMALL
        } else {
            BACKLOG
        };
        let clients = self.clients.borrow();
        let mut backlogs = Vec::new();
        for (id, link) in clients.iter() {
            let unread = link.to_client.len();
            if unread < backlog {
                continue;
            }
            if link.left.is_up() {
                // Its memory is free in a moment.
                return now + SOON;
            }
            backlogs.push((unread, *id, link));
        }
        backlogs.sort_by_key(|(unread, id, _)| (Reverse(*unread), *id));
        let mut excess = self.held_bytes().saturating_sub(beside(max_line()));
        let mut look_again = now + PATIENCE;
        for (unread, id, link) in backlogs {
            if !link.stalls() {
                let left = PATIENCE.saturating_sub(link.to_client.stands_still_for());
                look_again = look_again.min(now + left.max(SOON));
            } else if excess > 0 {
                self.drop_unread(id, link);
                excess = excess.saturating_sub(unread);
                look_again = now + SOON;
            }
        }
        look_again
    }

    /// Disconnects a client that does not read, and says so in the log.
    pub(super) fn drop_unread(&self, id: ClientId, link: &ClientConn) {
        let unread = link.to_client.len();
        let client = id.0;
        self.log.line(format_args!(
            "client {client} does not read: {unread} bytes wait for it, and it has taken none for {}s",
            PATIENCE.as_secs()
        ));
        link.left.raise();
    }
}

/// What may be held where lines take this much. Without overflow: `--max-line` may be any number.
fn beside(lines: usize) -> usize {
    lines.saturating_add(BESIDE_LINES)
}

/// Maximum bytes of all clients together, beside their lines: their environments and commands, which are kept to start
/// servers with, and their connections. Those of 500 sessions with an environment of their own at least, and of 2,000 where long lines are allowed.
/// Further sessions have a server each.
fn clients_limit() -> usize {
    max_line().saturating_mul(2).clamp(16 << 20, 64 << 20)
}

/// How many bytes are kept of what a client wants to run, and for it alone: an environment that several have is one.
pub(super) fn wish_bytes(wish: &ClientHello) -> usize {
    let text = |text: &Text| text.as_bytes().len() + EACH_VARIABLE;
    let is_shared = Arc::strong_count(&wish.env) > 1;
    let own = wish.env.iter().filter(|_| !is_shared);
    let variables = own.flat_map(|(name, value)| [name, value]);
    let key = wish.key.iter();
    let names = key.flat_map(|key| key.names.iter().chain(key.env_key.iter().flatten()));
    variables
        .chain(names)
        .chain(&wish.spec.command)
        .map(text)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_max_line_is_no_small_one() {
        assert_eq!(beside(usize::MAX), usize::MAX);
        assert_eq!(beside(0), BESIDE_LINES);
    }
}
