//! Queued lines for a server: one lane for each client, written in turn, so that one client cannot hold up another.

use std::collections::{BTreeMap, VecDeque};

use crate::lifetime::ClientId;
use crate::message::{Message, Owned};
use crate::mux::Lane;
use serde::{Deserialize, Serialize};

/// Maximum bytes of lines that are joined for one write. Less than a pipe holds: written lines cannot be overtaken.
pub const CHUNK: usize = 16 * 1024;
/// Maximum bytes of a lane in a chunk before the next lane's turn.
const LANE_SHARE: usize = 1024;
/// Maximum bytes of queued responses of Kennel itself to the server.
const REPLIES_LIMIT: usize = 1 << 20;
/// Maximum bytes of the front lane in a chunk while other lanes wait: a single client may have filled it.
const FRONT_SHARE: usize = CHUNK / 2;
/// Memory of a queued line besides its bytes.
const LINE_OVERHEAD: usize = 96;

/// The lines that wait for a server.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Lanes {
    #[serde(with = "crate::mux::snapshot::pairs")]
    lanes: BTreeMap<Lane, VecDeque<Line>>,
    /// Memory of the lines that each client sent, in any lane.
    bytes: BTreeMap<ClientId, usize>,
    /// Memory of the lines that no client sent.
    #[serde(default, rename = "own")]
    without_client: usize,
    /// The lane that was written last, the front lane aside.
    last: Option<Lane>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    #[serde(with = "crate::hello::text_of_bytes")]
    bytes: Owned,
    by: Option<ClientId>,
}

impl Lanes {
    /// Queues a line. `by`: the client that sent it, if the lane does not say so.
    pub fn push(&mut self, lane: Lane, bytes: Owned, by: Option<ClientId>) {
        let by = match lane {
            Lane::Of(client) => Some(client),
            Lane::Front | Lane::Own => by,
        };
        match by {
            Some(client) => *self.bytes.entry(client).or_default() += memory_of(&bytes),
            None => self.without_client += memory_of(&bytes),
        }
        self.lanes
            .entry(lane)
            .or_default()
            .push_back(Line { bytes, by });
    }

    /// Memory of all queued lines.
    pub fn len(&self) -> usize {
        self.without_client + self.bytes.values().sum::<usize>()
    }

    /// Whether a line may be queued. Kennel's own responses may not past a limit: a server that sends requests and
    /// never reads must not use up the daemon's memory.
    pub fn has_room(&self, lane: Lane, line: &[u8], by: Option<ClientId>) -> bool {
        let is_ours = by.is_none() && !matches!(lane, Lane::Of(_));
        let is_answer = || matches!(Message::parse(line), Ok(Message::Response(_)));
        self.without_client < REPLIES_LIMIT || !is_ours || !is_answer()
    }

    /// Whether no line is queued.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// All queued lines.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let lines = self.lanes.values().flatten();
        lines.map(|line| &line.bytes[..])
    }

    /// Memory of the queued lines of a client.
    pub fn bytes_of(&self, client: ClientId) -> usize {
        self.bytes.get(&client).copied().unwrap_or_default()
    }

    /// Takes the lines to write next: the front lane, then some of each lane in turn.
    pub fn next_chunk(&mut self) -> Option<Owned> {
        let mut chunk = Owned::default();
        while chunk.len() < CHUNK
            && let Some(lane) = self.next_lane(chunk.len() < FRONT_SHARE)
        {
            if lane != Lane::Front {
                self.last = Some(lane);
            }
            self.take_from(lane, &mut chunk);
        }
        (!chunk.is_empty()).then_some(chunk)
    }

    fn next_lane(&self, front_first: bool) -> Option<Lane> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = |lane| self.lanes.range((Excluded(lane), Unbounded)).next();
        let front = self.lanes.get_key_value(&Lane::Front);
        let turn = front.filter(|_| front_first);
        let turn = turn.or_else(|| self.last.and_then(after));
        let turn = turn.or_else(|| after(Lane::Front));
        turn.or(front).map(|(&lane, _)| lane)
    }

    fn take_from(&mut self, lane: Lane, chunk: &mut Owned) {
        let Some(lines) = self.lanes.get_mut(&lane) else {
            return;
        };
        let end = chunk.len() + LANE_SHARE;
        while chunk.len() < end
            && let Some(Line { mut bytes, by }) = lines.pop_front()
        {
            if let Some(client) = by
                && let Some(waiting) = self.bytes.get_mut(&client)
            {
                // Snapshots of older builds counted fewer bytes for each line.
                *waiting = waiting.saturating_sub(memory_of(&bytes));
                if *waiting == 0 {
                    self.bytes.remove(&client);
                }
            }
            if by.is_none() {
                // Snapshots of older builds did not count these lines.
                self.without_client = self.without_client.saturating_sub(memory_of(&bytes));
            }
            bytes.push(b'\n');
            // A long line is not copied.
            if chunk.is_empty() {
                *chunk = bytes;
            } else {
                chunk.extend_from_slice(&bytes);
            }
        }
        if lines.is_empty() {
            self.lanes.remove(&lane);
        }
    }
}

/// Memory of a queued line.
fn memory_of(line: &[u8]) -> usize {
    line.len() + LINE_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: u64) -> Lane {
        Lane::Of(ClientId(client))
    }

    fn all(lanes: &mut Lanes) -> String {
        let chunks = std::iter::from_fn(|| lanes.next_chunk().map(Vec::from));
        let chunks: Vec<Vec<u8>> = chunks.collect();
        String::from_utf8(chunks.concat()).unwrap()
    }

    #[test]
    fn a_lane_is_written_in_order_and_the_front_before_it() {
        let mut lanes = Lanes::default();
        lanes.push(of(1), b"one".to_vec().into(), None);
        lanes.push(of(1), b"two".to_vec().into(), None);
        lanes.push(Lane::Front, b"first".to_vec().into(), None);
        assert_eq!(all(&mut lanes), "first\none\ntwo\n");
        assert_eq!(lanes.next_chunk(), None);
    }

    #[test]
    fn answers_to_a_server_that_does_not_read_are_counted_and_bounded() {
        let mut lanes = Lanes::default();
        let answer = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let mut count = 0;
        while lanes.has_room(Lane::Own, answer, None) {
            lanes.push(Lane::Own, answer.to_vec().into(), None);
            count += 1;
        }
        assert_eq!(lanes.len(), count * (answer.len() + LINE_OVERHEAD));
        assert!(lanes.len() < REPLIES_LIMIT + answer.len() + LINE_OVERHEAD);
        // Other lines are still accepted.
        let cancel = br#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
        assert!(lanes.has_room(Lane::Own, cancel, None));
        assert!(lanes.has_room(Lane::Own, answer, Some(ClientId(1))));
        assert!(lanes.has_room(of(1), answer, None));
        all(&mut lanes);
        assert_eq!(lanes.len(), 0);
        assert!(lanes.has_room(Lane::Own, answer, None));
    }

    #[test]
    fn a_flood_of_one_lets_the_others_through() {
        let mut lanes = Lanes::default();
        for _ in 0..10_000 {
            lanes.push(of(1), vec![b'x'; 100].into(), None);
        }
        assert_eq!(lanes.bytes_of(ClientId(1)), 10_000 * (100 + LINE_OVERHEAD));
        lanes.next_chunk();
        for client in [2, 3] {
            lanes.push(
                of(client),
                format!("client {client}").into_bytes().into(),
                None,
            );
        }
        let next = String::from_utf8(lanes.next_chunk().unwrap().into()).unwrap();
        assert!(next.contains("client 2\nclient 3\n"), "{next}");
    }

    #[test]
    fn a_line_longer_than_all_bounds_is_written_whole() {
        let mut lanes = Lanes::default();
        lanes.push(of(1), vec![b'x'; CHUNK * 10].into(), None);
        lanes.push(of(2), b"y".to_vec().into(), None);
        assert_eq!(lanes.next_chunk().unwrap().len(), CHUNK * 10 + 1);
        assert_eq!(&lanes.next_chunk().unwrap()[..], b"y\n");
        assert_eq!(lanes.next_chunk(), None);
    }
}
