//! Decides what a daemon does when it holds much memory: which clients it reads, which half lines it drops, and which
//! clients it disconnects.
//!
//! A driver counts the bytes that it holds, tells [`MemoryWatch`] now and then, and hands in [`MemoryUse`] when there is
//! something to decide. A *half line* is what was read of a line that has not ended.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::SlotId;
use crate::hello::{ClientHello, Text};
use crate::lifetime::ClientId;
use crate::time::Moment;

/// Bytes that a daemon may hold in addition to lines of the maximum length. It is small, because each long line is in
/// large pages, and takes up to 2 MB more than its length.
const BASE_LIMIT: usize = 4 << 20;
/// Guaranteed bytes of each connection: of a half line, of lines for a server, and of lines for the client. While memory
/// is short, a client is not read beyond this.
pub const MIN_PER_CONNECTION: usize = 4 << 10;
/// A client with this many unread bytes has a backlog: more than sockets and pipes take at once.
pub const BACKLOG: usize = 256 << 10;
/// A client with a backlog that reads none of it for this long is stalled. Long enough for a busy app, and short enough
/// that a client that does not read cannot hold up the others for long.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of which a client with a backlog must take this many within [`STALL_TIMEOUT`], if it takes so little that no room for
/// more is seen. 16 KB a second are more, though a shim takes 64 KiB at once.
pub const MIN_READ_BYTES: usize = 32 << 10;
/// A server is held up for this long in a row by a client that takes its backlog slowly, while the others wait. Less than
/// the minute after which many apps give a request up.
const MAX_HOLD_UP: Duration = Duration::from_secs(40);
/// Interval for checks that no event triggers: whether a client has read, and whether memory is free.
pub const RECHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A client with this many unread bytes is not read: it must read first.
pub const FULL_QUEUE: usize = 1 << 20;
/// A stalled client with more unread bytes is disconnected, even if memory is not short.
const MAX_UNREAD: usize = 16 << 20;
/// Half lines up to this length are read while memory is short, within [`MEDIUM_LINES`].
const MEDIUM_LINE: usize = 256 << 10;
/// Bytes that medium half lines may take together while memory is short; more for those to and from servers that have taken
/// all that was sent to them. A client's line without room waits: others end, or stall and are dropped.
const MEDIUM_LINES: usize = 2 << 20;
/// A half line without new bytes for this long is dropped before others.
pub const IDLE: Duration = Duration::from_secs(1);
/// Maximum number of connections that have not sent their first line. Shims send it at once.
const MAX_UNADMITTED: usize = 256;
/// Allocator overhead of a variable, its name or another text, in bytes.
const TEXT_OVERHEAD: usize = 96;
/// Bytes of a connection besides its lines and its hello, with the allocator's overhead.
const CLIENT_OVERHEAD: usize = 16 << 10;
/// How long a count of the held bytes is valid: few bytes are added in that time.
const COUNT_EVERY: Duration = Duration::from_millis(1);

/// Maximum bytes of lines that a daemon holds before memory is short.
fn limit(max_line: usize) -> usize {
    much_memory(max_line.saturating_mul(2))
}

/// Bytes of lines from which on much memory is held: there is still room for one more line of the maximum length.
fn much_memory(max_line: usize) -> usize {
    // Without overflow: `--max-line` may be any number.
    max_line.saturating_add(BASE_LIMIT)
}

/// Whether memory is short, as of the last count.
#[derive(Debug)]
pub struct MemoryWatch {
    max_line: usize,
    is_short: bool,
    counted_at: Option<Moment>,
    /// When free memory was last returned to the system, if the daemon holds much.
    returned_at: Option<Moment>,
}

impl MemoryWatch {
    /// The memory use of a daemon without clients, where lines may have `max_line` bytes.
    pub fn new(max_line: usize) -> MemoryWatch {
        MemoryWatch {
            max_line,
            is_short: false,
            counted_at: None,
            returned_at: None,
        }
    }

    /// Whether memory was short at the last count. Then little is read of each client, and output goes before input.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether the held bytes are to be counted anew.
    pub fn is_due(&self, now: Moment) -> bool {
        self.counted_at.is_none_or(|at| now - at >= COUNT_EVERY)
    }

    /// The daemon holds this many bytes. `true`: return free memory to the system, now and then while much is held, and
    /// once when it is not any more. Lines of all lengths leave gaps that the next ones do not fit into.
    pub fn counted(&mut self, held: usize, now: Moment) -> bool {
        self.counted_at = Some(now);
        self.is_short = held > limit(self.max_line);
        let holds_much = self.holds_much(held);
        let is_due = match self.returned_at {
            Some(before) => !holds_much || now - before >= RECHECK_INTERVAL,
            None => holds_much,
        };
        if is_due {
            self.returned_at = holds_much.then_some(now);
        }
        is_due
    }

    /// Whether the daemon holds so much that it does not read a server while a client of that server has a backlog.
    pub fn holds_much(&self, held: usize) -> bool {
        held > much_memory(self.max_line)
    }

    /// Why a server is not read now. `unread`: the unread bytes of each of its clients; `total_bytes`: the bytes just counted. While
    /// memory is short, fewer unread bytes are a backlog.
    pub fn server_throttle(&self, unread: &[usize], held: usize) -> Option<ServerThrottle> {
        let most = unread.iter().copied().max().unwrap_or(0);
        let holds_up_memory = match most >= BACKLOG {
            true => self.holds_much(held),
            false => most >= MIN_PER_CONNECTION && self.is_short,
        };
        match *unread {
            _ if holds_up_memory => Some(ServerThrottle::Memory),
            [only] if only >= FULL_QUEUE => Some(ServerThrottle::OnlyClient),
            _ => None,
        }
    }

    /// Whether a client is not read because of its own unread bytes.
    pub fn stops_client(&self, unread: usize) -> bool {
        unread >= FULL_QUEUE || self.exceeds_small(unread)
    }

    /// Whether memory is short, and a client has more unread than it may have then.
    pub fn exceeds_small(&self, unread: usize) -> bool {
        self.is_short && unread > MIN_PER_CONNECTION
    }
}

/// Why a server is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerThrottle {
    /// Its only client has enough to read.
    OnlyClient,
    /// A client has a backlog, and the daemon holds much: clients that do not read are disconnected.
    Memory,
}

/// Measures for how long a server has been held up by clients with a backlog. It goes on until the server was read for
/// [`STALL_TIMEOUT`]: a server that is read little by little serves the others as slowly.
#[derive(Debug, Default)]
pub struct HoldUpTimer(Option<(Moment, Moment)>);

impl HoldUpTimer {
    /// The server is held up now, or was until now.
    pub fn record(&mut self, now: Moment) {
        let since = self.0.filter(|(_, last)| now - *last < STALL_TIMEOUT);
        self.0 = Some((since.map_or(now, |(since, _)| since), now));
    }

    /// Whether the server was held up for too long: then a client with a backlog is disconnected if others wait.
    pub fn is_too_long(&self) -> bool {
        self.0
            .is_some_and(|(since, last)| last - since >= MAX_HOLD_UP)
    }
}

/// The memory that a daemon holds for one client.
#[derive(Debug, Clone, Copy)]
pub struct ClientMemory {
    /// The client.
    pub client: ClientId,
    /// The server slot where it is.
    pub slot: Option<SlotId>,
    /// Its first line was accepted.
    pub is_admitted: bool,
    /// It is being disconnected: its memory is free in a moment.
    pub is_leaving: bool,
    /// Length of its half line.
    pub half_line: usize,
    /// Bytes of memory that the half line takes.
    pub half_line_memory: usize,
    /// Since when its half line is longer than [`MIN_PER_CONNECTION`].
    pub half_line_since: Option<Moment>,
    /// Since when its half line is not read on, for lack of memory.
    pub waits_since: Option<Moment>,
    /// When bytes last came from it.
    pub last_read: Moment,
    /// Bytes queued for it.
    pub unread: usize,
    /// When it last read some of them, or when the first of them was queued.
    pub unread_since: Option<Moment>,
    /// Others have the same server, which has been [held up](HoldUpTimer) for too long.
    pub holds_up_others: bool,
}

impl ClientMemory {
    /// Whether it is admitted, and its half line is short enough to be read while memory is short.
    pub fn has_medium_line(&self) -> bool {
        self.is_admitted && self.half_line_memory <= MEDIUM_LINE
    }

    /// Whether its half line has stopped, or comes slowly: none of it for [`IDLE`], or less than [`MEDIUM_LINE`] in each such
    /// time.
    fn half_line_is_stalled(&self, now: Moment) -> bool {
        let times = u32::try_from(self.half_line / MEDIUM_LINE).unwrap_or(u32::MAX);
        let time = IDLE.saturating_mul(times.saturating_add(2));
        let is_slow = self.half_line_age(now) > time;
        self.waits_since.is_none() && (now - self.last_read >= IDLE || is_slow)
    }

    /// How long its half line has waited for memory, or has been read.
    fn half_line_age(&self, now: Moment) -> Duration {
        let since = self.waits_since.or(self.half_line_since);
        since.map_or(Duration::ZERO, |since| now - since)
    }

    fn unread_for(&self, now: Moment) -> Duration {
        self.unread_since
            .map_or(Duration::ZERO, |since| now - since)
    }
}

/// Whether a client's unread bytes exceed `MAX_UNREAD`. Then it is disconnected if it [is stalled](is_stalled), even
/// if memory is not short. The only client of a server is not: it holds up the server instead.
pub fn has_much_unread(unread: usize) -> bool {
    unread > MAX_UNREAD
}

/// Whether a client that has read none of its unread bytes since then counts as not reading.
pub fn is_stalled(since: Option<Moment>, now: Moment) -> bool {
    since.is_some_and(|since| now - since >= STALL_TIMEOUT)
}

/// Whose line needs room.
#[derive(Debug, Clone, Copy)]
pub enum Reader {
    /// A client's half line.
    Client {
        /// Whose.
        client: ClientId,
        /// Lines wait for its server: the server is busy, or does not read. Its clients must not take the room of others.
        server_has_queue: bool,
    },
    /// A server's half line of this length: its client waits for that.
    Server(usize),
}

/// The decision about a half line that is longer than [`MIN_PER_CONNECTION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfLine {
    /// It is read on.
    Read,
    /// It is not read before this moment.
    WaitUntil(Moment),
    /// It is dropped: the rest of it is skipped.
    Drop,
}

/// Clients that are disconnected because they do not read, or because they read so slowly that others wait too long.
#[derive(Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The clients, those with the most unread bytes first.
    pub clients: Vec<ClientId>,
    /// When to check again if nothing is written before.
    pub check_again: Moment,
}

/// The memory that a daemon holds.
#[derive(Debug)]
pub struct MemoryUse {
    /// Maximum bytes of a line.
    pub max_line: usize,
    /// In the order of their numbers.
    pub clients: Vec<ClientMemory>,
    /// Bytes held besides half lines of clients.
    pub elsewhere: usize,
}

impl MemoryUse {
    /// All held bytes.
    pub fn total_bytes(&self) -> usize {
        self.half_lines() + self.elsewhere
    }

    fn half_lines(&self) -> usize {
        self.clients.iter().map(|it| it.half_line_memory).sum()
    }

    /// How many bytes are held beyond the limit.
    fn excess(&self) -> usize {
        self.total_bytes().saturating_sub(limit(self.max_line))
    }

    /// Whether there is room for the reader's half line. Makes room by dropping half lines of others: first those of
    /// clients that are not admitted, then those that stall. A medium line has some room beyond the limit; for it, half
    /// lines of others are dropped that are older than [`IDLE`], if the clients of their server have as much in half lines as
    /// those of the reader's: the largest server first, the oldest line first. A line does not stall if the system has more
    /// of it that the daemon may read and had no time for (`has_input`, asked last). `drop_half_line` returns how many
    /// bytes of memory are free by that.
    pub fn make_room(
        &mut self,
        reader: Reader,
        now: Moment,
        has_input: impl Fn(ClientId) -> bool,
        mut drop_half_line: impl FnMut(ClientId) -> usize,
    ) -> bool {
        if self.excess() == 0 {
            return true;
        }
        let mut drop = |all: &mut MemoryUse, index: usize| {
            let it = &mut all.clients[index];
            let freed = drop_half_line(it.client);
            it.half_line_memory = it.half_line_memory.saturating_sub(freed);
        };
        let its = match reader {
            Reader::Client { client, .. } => self.clients.iter().position(|it| it.client == client),
            Reader::Server(_) => None,
        };
        for index in self.dropped_first(its, now) {
            let it = &self.clients[index];
            if it.is_admitted && has_input(it.client) {
                continue;
            }
            drop(self, index);
            if self.excess() == 0 {
                return true;
            }
        }
        let is_medium = match reader {
            Reader::Client { .. } => its.is_some_and(|its| self.clients[its].has_medium_line()),
            Reader::Server(length) => length <= MEDIUM_LINE,
        };
        if !is_medium {
            return false;
        }
        if !self.is_full_for(reader) {
            return true;
        }
        if matches!(reader, Reader::Server(_)) {
            return false;
        }
        let dropped = its.map(|its| self.dropped_for_medium(its, now));
        dropped.into_iter().flatten().any(|index| {
            drop(self, index);
            !self.is_full_for(reader)
        })
    }

    /// Half lines that are dropped before the reader's own, those that are missed least first.
    fn dropped_first(&self, reader: Option<usize>, now: Moment) -> Vec<usize> {
        let others = self.clients.iter().enumerate();
        let others = others.filter(|(index, it)| Some(*index) != reader && !it.is_leaving);
        let mut dropped: Vec<_> = others
            .filter(|(_, it)| it.half_line_memory > MIN_PER_CONNECTION)
            .filter(|(_, it)| !it.is_admitted || it.half_line_is_stalled(now))
            .map(|(index, it)| (it.is_admitted, it.last_read, index))
            .collect();
        dropped.sort();
        dropped.into_iter().map(|(_, _, index)| index).collect()
    }

    /// Half lines that are dropped for a medium line, those that are missed least first. Many clients of one server do not
    /// take the room of another server's few: a server is charged for what all its clients hold.
    fn dropped_for_medium(&self, reader: usize, now: Moment) -> Vec<usize> {
        let mut of_slots = BTreeMap::new();
        for it in &self.clients {
            *of_slots.entry(it.slot).or_insert(0) += it.half_line_memory;
        }
        let charge = |it: &ClientMemory| match it.slot {
            None => it.half_line_memory,
            slot => of_slots[&slot],
        };
        let least = charge(&self.clients[reader]);
        let others = self.clients.iter().enumerate();
        let mut dropped: Vec<_> = others
            .filter(|(index, it)| *index != reader && it.half_line_memory > MIN_PER_CONNECTION)
            .map(|(index, it)| (charge(it), it.half_line_age(now), index))
            .filter(|(charge, age, _)| *charge >= least && *age >= IDLE)
            .collect();
        dropped.sort_by_key(|&(charge, age, index)| (Reverse(charge), Reverse(age), index));
        dropped.into_iter().map(|(_, _, index)| index).collect()
    }

    /// Whether a medium line would exceed the limit. The minimum of each connection does not count: otherwise many
    /// connections that hold only their minimum would leave no room for the others.
    fn is_full_for(&self, reader: Reader) -> bool {
        let in_any_case = self.clients.len() * 3 * MIN_PER_CONNECTION;
        let are_few = || self.half_lines() <= MEDIUM_LINES + in_any_case;
        let lines = match reader {
            Reader::Server(_) => 6 * MEDIUM_LINES,
            Reader::Client {
                server_has_queue: true,
                ..
            } => MEDIUM_LINES,
            // Those that were half lines may wait for a server by now: they must not take the room of the next ones.
            Reader::Client { .. } if are_few() => 4 * MEDIUM_LINES,
            Reader::Client { .. } => 2 * MEDIUM_LINES,
        };
        self.excess() > lines + in_any_case
    }

    /// Decides about the half line of a client that has waited for memory since `since`.
    pub fn half_line(&self, client: ClientId, since: Moment, now: Moment) -> HalfLine {
        let is_medium = |it: &ClientMemory| it.client == client && it.has_medium_line();
        // A client that is leaving did not read: its memory is free in a moment.
        let frees = |it: &ClientMemory| it.is_leaving && it.unread >= MIN_PER_CONNECTION;
        let waits = self.clients.iter().any(|it| is_medium(it) || frees(it));
        match waits && now - since < STALL_TIMEOUT {
            true => HalfLine::WaitUntil(now + RECHECK_INTERVAL),
            false => HalfLine::Drop,
        }
    }

    /// The clients to disconnect because they do not read, or hold up others for too long, until memory use is below the
    /// limit. `can_write`: whether a client would take output now. It is called last, because a daemon that was stopped
    /// itself may have missed that clients read.
    pub fn stalled(&self, now: Moment, can_write: impl Fn(ClientId) -> bool) -> Stalled {
        let backlog = match self.excess() > 0 {
            true => MIN_PER_CONNECTION,
            false => BACKLOG,
        };
        let mut check_again = now + STALL_TIMEOUT;
        let mut clients = Vec::new();
        let mut backlogs: Vec<&ClientMemory> = self.clients.iter().collect();
        backlogs.retain(|it| it.unread >= backlog);
        if backlogs.iter().any(|it| it.is_leaving) {
            // Its memory is free in a moment.
            let check_again = now + RECHECK_INTERVAL;
            return Stalled {
                clients,
                check_again,
            };
        }
        backlogs.sort_by_key(|it| (Reverse(it.unread), it.client));
        let mut excess = self
            .total_bytes()
            .saturating_sub(much_memory(self.max_line));
        for it in backlogs {
            let is_stalled = is_stalled(it.unread_since, now) && !can_write(it.client);
            if !is_stalled && !it.holds_up_others {
                let left = STALL_TIMEOUT.saturating_sub(it.unread_for(now));
                check_again = check_again.min(now + left.max(RECHECK_INTERVAL));
            } else if excess > 0 {
                clients.push(it.client);
                excess = excess.saturating_sub(it.unread);
                check_again = now + RECHECK_INTERVAL;
            }
        }
        Stalled {
            clients,
            check_again,
        }
    }
}

/// The connection to refuse if too many have not sent their first line: the oldest of them.
pub fn excess_unadmitted(mut unadmitted: impl Iterator<Item = ClientId>) -> Option<ClientId> {
    let first = unadmitted.next()?;
    (unadmitted.count() >= MAX_UNADMITTED).then_some(first)
}

/// Whether another client can be kept beside the others: its hello takes `hello` bytes, those of `clients` others `kept`
/// bytes. The limit is that of 500 sessions with an own environment at least, and of 2,000 where long lines are allowed;
/// further sessions have a server each.
pub fn has_room_for_hello(hello: usize, kept: usize, clients: usize, max_line: usize) -> bool {
    let limit = max_line.saturating_mul(2).clamp(16 << 20, 64 << 20);
    kept + hello + (clients + 1) * CLIENT_OVERHEAD <= limit
}

/// Bytes that a hello takes for its client alone: equal environments of several clients are stored once.
pub fn hello_bytes(hello: &ClientHello) -> usize {
    let is_shared = Arc::strong_count(&hello.env) > 1;
    let variables = hello.env.iter().filter(|_| !is_shared);
    let variables = variables.flat_map(|(name, value)| [name, value]);
    let texts = variables.chain(other_texts(hello));
    texts
        .map(|text| text.as_bytes().len() + TEXT_OVERHEAD)
        .sum()
}

/// Bytes of all texts in a hello that can be long. Its environment counts, though several clients may have the same.
pub fn text_bytes(hello: &ClientHello) -> usize {
    let variables = hello.env.iter().flat_map(|(name, value)| [name, value]);
    let texts = variables.chain(other_texts(hello));
    texts.map(|text| text.as_bytes().len()).sum()
}

/// The texts of a hello that can be long, its environment aside.
fn other_texts(hello: &ClientHello) -> impl Iterator<Item = &Text> {
    let key = hello.key.iter();
    let names = key.flat_map(|key| key.names.iter().chain(key.env_key.iter().flatten()));
    names.chain(&hello.spec.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_max_line_does_not_overflow() {
        assert_eq!(limit(usize::MAX), usize::MAX);
        assert_eq!(much_memory(0), BASE_LIMIT);
    }
}
