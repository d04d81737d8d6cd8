//! What the server says, on its way to the clients. The server is not read while its clients have a backlog and the daemon
//! holds much: so all that read are served, as fast as the slowest of them, and memory is bounded. Only a client that does
//! not read at all is disconnected.

use std::rc::Rc;
use std::time::Instant;

use kennel_core::lifetime::ClientId;
use kennel_core::message::Owned;

use super::super::client::Link;
use super::super::house::House;
use super::super::memory::BACKLOG;
use super::super::queue::{Chunk, queued_bytes};
use super::super::tasks::{first_of, moments};
use super::Station;

/// A client that has this much unread, in bytes, and [does not read](Link::stalls) is disconnected, whatever else the
/// daemon holds. Alone on a server, it holds up the server instead.
const MUCH: usize = 16 << 20;

/// Why the server is not read for now.
enum Hold {
    /// Its only client has enough to read.
    Alone,
    /// The daemon holds much; until when to wait for clients to read.
    Memory(Instant),
}

impl Station {
    /// Waits until the server may be read.
    pub(in crate::daemon) async fn may_speak(&self, house: &House) {
        while let Some(hold) = self.hold(house) {
            let until = match hold {
                Hold::Alone => None,
                Hold::Memory(until) => Some(until),
            };
            first_of! {
                () = house.drained.notified() => {},
                () = self.stirred.notified() => {},
                () = moments::until(until) => {},
            }
        }
    }

    fn hold(&self, house: &House) -> Option<Hold> {
        if queued_bytes() < BACKLOG {
            return None;
        }
        let (alone, backlog) = {
            let members = self.members.borrow();
            let alone = members.len() == 1 && members.values().all(|it| it.to_client.is_full());
            let has_backlog = |link: &Rc<Link>| link.to_client.len() >= BACKLOG;
            (alone, members.values().any(has_backlog))
        };
        match backlog && house.holds_much() {
            true => Some(Hold::Memory(house.drop_stalled())),
            false => alone.then_some(Hold::Alone),
        }
    }

    pub(super) fn deliver(&self, house: &House, id: ClientId, line: Owned) {
        self.deliver_with(house, id, |link| link.to_client.push_line(line));
    }

    /// One line for several clients: it is in memory once.
    pub(super) fn deliver_to_all(&self, house: &House, clients: &[ClientId], line: Owned) {
        let chunk = Chunk::of_line(line);
        for client in clients {
            self.deliver_with(house, *client, |link| link.to_client.push_chunk(&chunk));
        }
    }

    fn deliver_with(&self, house: &House, id: ClientId, push: impl FnOnce(&Link)) {
        let members = self.members.borrow();
        let Some(link) = members.get(&id) else {
            return;
        };
        push(link);
        let is_shared = members.len() > 1;
        if is_shared && link.to_client.len() > MUCH && link.stalls() && !link.left.is_up() {
            house.drop_unread(id, link);
        } else if link.is_half_closed() && self.mux.borrow().waits_for(id) == 0 {
            link.finish();
        }
    }
}
