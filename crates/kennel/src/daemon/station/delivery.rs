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
use super::super::queue::{Chunk, TOGETHER, queued_bytes};
use super::super::tasks::{first_of, moments};
use super::Station;

/// A client that has this much unread, in bytes, and [does not read](Link::stalls) is disconnected, whatever else the
/// daemon holds. Alone on a server, it holds up the server instead.
const MUCH: usize = 16 << 20;

/// Clients, and what all of them get: one line or several, without the last newline.
pub(super) type Addressed = (Vec<ClientId>, Owned);

/// Puts short lines for the same clients together, as a long batch has them: each client's queue has an entry for each
/// chunk, and writes each by itself.
#[derive(Default)]
pub(super) struct Together(Option<Addressed>);

impl Together {
    /// Adds a line. Returns what came before it, if the two do not go together.
    pub(super) fn add(&mut self, clients: Vec<ClientId>, line: Owned) -> Option<Addressed> {
        if let Some((same, lines)) = &mut self.0
            && *same == clients
            && lines.len() + line.len() < TOGETHER
        {
            lines.push(b'\n');
            lines.extend_from_slice(&line);
            return None;
        }
        self.0.replace((clients, line))
    }

    /// What was added and not returned.
    pub(super) fn take(&mut self) -> Option<Addressed> {
        self.0.take()
    }
}

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

    /// Lines for several clients: they are in memory once.
    pub(super) fn deliver_together(&self, house: &House, lines: Option<Addressed>) {
        let Some((clients, lines)) = lines else {
            return;
        };
        let chunk = Chunk::of_line(lines);
        for client in clients {
            self.deliver_with(house, client, |link| link.to_client.push_chunk(&chunk));
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
        } else if link.is_half_closed() && self.slot.borrow().mux().waits_for(id) == 0 {
            link.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lines_for_the_same_clients_are_one_chunk_and_stay_in_order() {
        let all = vec![ClientId(1), ClientId(2)];
        let some = vec![ClientId(1), ClientId(3)];
        let line = |text: &str| Owned::from(text.as_bytes().to_vec());
        let mut together = Together::default();
        assert_eq!(together.add(all.clone(), line("one")), None);
        assert_eq!(together.add(all.clone(), line("two")), None);
        let before = together.add(some.clone(), line("three"));
        assert_eq!(before, Some((all, line("one\ntwo"))));
        let long = "x".repeat(TOGETHER);
        let before = together.add(some.clone(), line(&long));
        assert_eq!(before, Some((some.clone(), line("three"))));
        assert_eq!(together.take(), Some((some, line(&long))));
        assert_eq!(together.take(), None);
    }
}
