//! How much the daemon holds for its clients and servers, and what it does when that is too much.

use std::time::{Duration, Instant};

use kennel_core::lifetime::ClientId;

use super::client::Link;
use super::house::House;
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
/// When to look again, where it is not known how long a client has not read.
const SOON: Duration = Duration::from_millis(100);

impl House {
    /// Bytes held for all clients and servers together: half lines, and lines on their way.
    fn held_bytes(&self) -> usize {
        let clients = self.clients.borrow();
        let half_said: usize = clients.values().map(|link| link.half_said()).sum();
        let servers: usize = self.pool.all().iter().map(|station| station.holds()).sum();
        half_said + queued_bytes() + servers
    }

    /// Whether so much is held that long lines which are still being read are refused. Asked for long lines only.
    pub(super) fn holds_too_much(&self) -> bool {
        self.held_bytes() > beside(max_line().saturating_mul(2))
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
        backlogs.sort_by_key(|(unread, id, _)| (std::cmp::Reverse(*unread), *id));
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
    pub(super) fn drop_unread(&self, id: ClientId, link: &Link) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_max_line_is_no_small_one() {
        assert_eq!(beside(usize::MAX), usize::MAX);
        assert_eq!(beside(0), BESIDE_LINES);
    }
}
