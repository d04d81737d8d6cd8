//! What is on its way to a server: a lane for each client, written in turns, so that the flood of one does
//! not hold up another.

use std::collections::{BTreeMap, VecDeque};

use crate::lifetime::ClientId;
use crate::message::{Message, Owned};
use crate::mux::Lane;
use serde::{Deserialize, Serialize};

/// Lines are put together up to this, to be written at once. Less than a pipe holds: what is written cannot
/// be overtaken any more.
pub const CHUNK: usize = 16 * 1024;
/// What one lane may add to a chunk before it is the next one's turn.
const TURN: usize = 1024;
/// What may wait of Kennel's own answers to the server.
const ANSWERS: usize = 1 << 20;
/// What the front may have of a chunk while others wait: it is for all, and may be the flood of one.
const FRONT: usize = CHUNK / 2;
/// Memory that a line takes beside its bytes: its place in the lane, and what the allocator adds.
const EACH_LINE: usize = 96;

/// The lines that wait for a server.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Lanes {
    #[serde(with = "by_lane")]
    lanes: BTreeMap<Lane, VecDeque<Line>>,
    /// How much memory that takes which each client has said, in whatever lane it is.
    bytes: BTreeMap<ClientId, usize>,
    /// The same of what no client has said.
    #[serde(default)]
    own: usize,
    /// Whose turn it was last, the front aside.
    last: Option<Lane>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    #[serde(with = "crate::hello::text_of_bytes")]
    bytes: Owned,
    by: Option<ClientId>,
}

impl Lanes {
    /// Adds a line; `by` is who said it, if it is in a lane that is not one client's.
    pub fn push(&mut self, lane: Lane, bytes: Owned, by: Option<ClientId>) {
        let by = match lane {
            Lane::Of(client) => Some(client),
            Lane::Front | Lane::Own => by,
        };
        match by {
            Some(client) => *self.bytes.entry(client).or_default() += memory_of(&bytes),
            None => self.own += memory_of(&bytes),
        }
        self.lanes
            .entry(lane)
            .or_default()
            .push_back(Line { bytes, by });
    }

    /// How many bytes of memory the lines take that wait, all lanes together.
    pub fn len(&self) -> usize {
        self.own + self.bytes.values().sum::<usize>()
    }

    /// Whether this line may wait, too. What Kennel itself answers to a server that asks and never reads may not once much
    /// of it does: nobody else must pay for that.
    pub fn has_room(&self, lane: Lane, line: &[u8], by: Option<ClientId>) -> bool {
        let is_ours = by.is_none() && !matches!(lane, Lane::Of(_));
        let is_answer = || matches!(Message::parse(line), Ok(Message::Response(_)));
        self.own < ANSWERS || !is_ours || !is_answer()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// All that waits.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let lines = self.lanes.values().flatten();
        lines.map(|line| &line.bytes[..])
    }

    /// The same of one client's lines.
    pub fn waiting(&self, client: ClientId) -> usize {
        self.bytes.get(&client).copied().unwrap_or_default()
    }

    /// What is to be written next: what is at the front, then some of each lane in turn.
    pub fn next_chunk(&mut self) -> Option<Owned> {
        let mut chunk = Owned::default();
        while chunk.len() < CHUNK
            && let Some(lane) = self.next_lane(chunk.len() < FRONT)
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
        let end = chunk.len() + TURN;
        while chunk.len() < end
            && let Some(Line { mut bytes, by }) = lines.pop_front()
        {
            if let Some(client) = by
                && let Some(waiting) = self.bytes.get_mut(&client)
            {
                // An older build counted less for each.
                *waiting = waiting.saturating_sub(memory_of(&bytes));
                if *waiting == 0 {
                    self.bytes.remove(&client);
                }
            }
            if by.is_none() {
                // What an older build wrote down was not counted.
                self.own = self.own.saturating_sub(memory_of(&bytes));
            }
            bytes.push(b'\n');
            // A long one is not copied.
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

/// How much memory a line takes while it waits.
fn memory_of(line: &[u8]) -> usize {
    line.len() + EACH_LINE
}

/// The lanes as a list: no text has lanes for keys.
mod by_lane {
    use std::collections::{BTreeMap, VecDeque};

    use crate::mux::Lane;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Line;

    type Lanes = BTreeMap<Lane, VecDeque<Line>>;

    pub(super) fn serialize<S: Serializer>(lanes: &Lanes, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(lanes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Lanes, D::Error> {
        let lanes = Vec::<(Lane, VecDeque<Line>)>::deserialize(from)?;
        Ok(lanes.into_iter().collect())
    }
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
        assert_eq!(lanes.len(), count * (answer.len() + EACH_LINE));
        assert!(lanes.len() < ANSWERS + answer.len() + EACH_LINE);
        // Others are not held up, nor is what the server must hear.
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
        assert_eq!(lanes.waiting(ClientId(1)), 10_000 * (100 + EACH_LINE));
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
