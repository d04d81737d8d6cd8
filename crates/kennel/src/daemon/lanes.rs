//! What is on its way to a server: a lane for each client, written in turns, so that the flood of one does
//! not hold up another.

use std::collections::{BTreeMap, VecDeque};

use kennel_core::mux::Lane;

/// Lines are put together up to this, to be written at once. Less than a pipe holds: what is written cannot
/// be overtaken any more.
const CHUNK: usize = 16 * 1024;
/// What one lane may add to a chunk before it is the next one's turn.
const TURN: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<Lane, Waiting>,
    /// Whose turn it was last.
    last: Option<Lane>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Lanes {
    pub(super) fn push(&mut self, lane: Lane, line: Vec<u8>) {
        let waiting = self.lanes.entry(lane).or_default();
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
    }

    /// How many bytes wait in a lane.
    pub(super) fn waiting(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).map_or(0, |waiting| waiting.bytes)
    }

    /// What is to be written next: all that is at the front, then some of each lane in turn.
    pub(super) fn next_chunk(&mut self) -> Option<Vec<u8>> {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK
            && let Some(lane) = self.next_lane()
        {
            self.last = Some(lane);
            self.take_from(lane, &mut chunk);
        }
        (!chunk.is_empty()).then_some(chunk)
    }

    fn next_lane(&self) -> Option<Lane> {
        let after_last = |last| {
            let rest = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
            self.lanes.range(rest).next()
        };
        let front = self.lanes.get_key_value(&Lane::Front);
        let turn = front.or_else(|| self.last.and_then(after_last));
        turn.or_else(|| self.lanes.first_key_value())
            .map(|(&lane, _)| lane)
    }

    fn take_from(&mut self, lane: Lane, chunk: &mut Vec<u8>) {
        let Some(waiting) = self.lanes.get_mut(&lane) else {
            return;
        };
        let end = chunk.len() + TURN;
        while chunk.len() < end
            && let Some(mut line) = waiting.lines.pop_front()
        {
            waiting.bytes -= line.len();
            line.push(b'\n');
            // A long one is not copied.
            if chunk.is_empty() {
                *chunk = line;
            } else {
                chunk.append(&mut line);
            }
        }
        if waiting.lines.is_empty() {
            self.lanes.remove(&lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use kennel_core::lifetime::ClientId;

    use super::*;

    fn of(client: u64) -> Lane {
        Lane::Of(ClientId(client))
    }

    fn all(lanes: &mut Lanes) -> String {
        let chunks: Vec<Vec<u8>> = std::iter::from_fn(|| lanes.next_chunk()).collect();
        String::from_utf8(chunks.concat()).unwrap()
    }

    #[test]
    fn a_lane_is_written_in_order_and_the_front_before_it() {
        let mut lanes = Lanes::default();
        lanes.push(of(1), b"one".to_vec());
        lanes.push(of(1), b"two".to_vec());
        lanes.push(Lane::Front, b"first".to_vec());
        assert_eq!(all(&mut lanes), "first\none\ntwo\n");
        assert_eq!(lanes.next_chunk(), None);
    }

    #[test]
    fn a_flood_of_one_lets_the_others_through() {
        let mut lanes = Lanes::default();
        for _ in 0..10_000 {
            lanes.push(of(1), vec![b'x'; 100]);
        }
        assert_eq!(lanes.waiting(of(1)), 1_000_000);
        lanes.next_chunk();
        for client in [2, 3] {
            lanes.push(of(client), format!("client {client}").into_bytes());
        }
        let next = String::from_utf8(lanes.next_chunk().unwrap()).unwrap();
        assert!(next.contains("client 2\nclient 3\n"), "{next}");
    }

    #[test]
    fn a_line_longer_than_all_bounds_is_written_whole() {
        let mut lanes = Lanes::default();
        lanes.push(of(1), vec![b'x'; CHUNK * 10]);
        lanes.push(of(2), b"y".to_vec());
        assert_eq!(lanes.next_chunk().unwrap().len(), CHUNK * 10 + 1);
        assert_eq!(lanes.next_chunk().unwrap(), b"y\n");
        assert_eq!(lanes.next_chunk(), None);
    }
}
