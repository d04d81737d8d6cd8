//! How much the daemon holds for its clients and servers, and what it does when that is too much.

use std::cmp::Reverse;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::ServerSlot;
use kennel_core::hello::{ClientHello, Text};
use kennel_core::lifetime::ClientId;

use super::client::ClientConn;
use super::daemon_state::DaemonState;
use super::queue::queued_bytes;
use crate::shim::lines::max_line;

/// What a daemon may hold beside lines of the greatest length, in bytes. Little: each long line is in large pages, and
/// takes up to 2 MB more than it has.
const BESIDE_LINES: usize = 4 << 20;
/// A client that has at least this much unread has a backlog, in bytes: more than sockets and pipes take at once.
pub(super) const BACKLOG: usize = 256 * 1024;
/// A client with a backlog that takes none of it for this long does not read. Long enough for an app that is busy; and
/// for no longer can a client that does not read hold up the others.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// A line that is no longer than this is taken whatever else the daemon holds, unless half lines alone are too much.
pub(super) const MODEST: usize = 256 * 1024;
/// What no connection is refused for, in bytes: half a line, or what waits for a server.
pub(super) const SMALL: usize = 16 * 1024;
/// A line of which nothing came for this long is dropped before others, if the daemon holds too much.
const IDLE: Duration = Duration::from_secs(1);
/// Maximum number of connections that have not said who they are. More than come at once: shims say it at once.
const UNADMITTED: usize = 256;
/// Maximum bytes of a line that is malformed, a batch, or odd in another way: all of it is read several times at once, and
/// nobody else is served meanwhile. 4 MiB take less than 0.1 s.
pub(super) const MAX_ODD_LINE: usize = 4 << 20;
/// What a variable, or the name of one, takes up beside its bytes.
const EACH_VARIABLE: usize = 96;
/// When to look again, where it is not known how long a client has not read.
const SOON: Duration = Duration::from_millis(100);

impl DaemonState {
    /// Whether what a client wants to run can be kept beside that of the others.
    pub(super) fn has_room_for_wish(&self, wish: &ClientHello) -> bool {
        let clients = self.clients.borrow();
        let kept: usize = clients.values().map(|link| link.wish_bytes()).sum();
        kept + wish_bytes(wish) <= wishes_limit()
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

    /// Bytes that an upgrade would write down of lines: one that waits in several queues counts in each.
    pub(super) fn carried_bytes(&self) -> usize {
        let clients = self.clients.borrow();
        let of = |link: &Rc<ClientConn>| link.half_length() + link.to_client.len();
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

    /// Whether so much is held that long lines which are still being read are refused. Asked for long lines only.
    pub(super) fn holds_too_much(&self) -> bool {
        self.held_bytes() > beside(max_line().saturating_mul(2))
    }

    /// Sees to it that not [too much](Self::holds_too_much) is held, by dropping half lines: first those of connections
    /// that have not said who they are, then those of which nothing has come for [`IDLE`]. `false`: the line that
    /// `reader` is saying, or a server, must be dropped.
    pub(super) fn makes_room(&self, reader: Option<ClientId>) -> bool {
        if !self.holds_too_much() {
            return true;
        }
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
        let is_modest = link.is_admitted() && link.half_said() <= MODEST;
        is_modest && self.half_said() <= beside(max_line())
    }

    /// Clients with a half line that is dropped before the reader's own, those that miss it least first.
    fn half_lines_to_drop(&self, reader: Option<ClientId>) -> Vec<Rc<ClientConn>> {
        let clients = self.clients.borrow();
        let mut dropped: Vec<_> = clients
            .iter()
            .filter(|(id, link)| Some(**id) != reader && !link.left.is_up())
            .filter(|(_, link)| link.half_said() > SMALL)
            .map(|(_, link)| (link.is_admitted(), Reverse(link.is_silent_for()), link))
            .filter(|(is_admitted, silent, _)| !is_admitted || silent.0 >= IDLE)
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

    /// Disconnects the clients that do not read, those with the most unread first, until the rest is not
    /// [much](Self::holds_much). Returns when to look again, if nothing is written meanwhile.
    pub(super) fn drop_stalled(&self) -> Instant {
        let now = Instant::now();
        let clients = self.clients.borrow();
        let mut backlogs = Vec::new();
        for (id, link) in clients.iter() {
            let unread = link.to_client.len();
            if unread < BACKLOG {
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

/// Maximum bytes of the environments and commands of all clients together: they are kept to start servers with. Those of 800
/// ordinary sessions at least, and of 3,000 where long lines are allowed.
fn wishes_limit() -> usize {
    max_line().saturating_mul(2).clamp(16 << 20, 64 << 20)
}

/// How many bytes are kept of what a client wants to run.
pub(super) fn wish_bytes(wish: &ClientHello) -> usize {
    let text = |text: &Text| text.as_bytes().len() + EACH_VARIABLE;
    let variables = wish.env.iter().flat_map(|(name, value)| [name, value]);
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
