//! Two muxes that hear the same: one stays where it is, the other is written down and read back again and again,
//! as if its process became another; and lines change hands, where the first one only sees them. What follows must
//! be the same.

use kennel_core::message::{Key, Owned, Scan};
use kennel_core::mux::{Class, ClientId, Mux, MuxPolicy, Output};
use kennel_core::time::Moment;

/// Every so many events one of them moves.
const MOVES: usize = 5;

pub(crate) struct Twins {
    stays: Mux,
    moves: Mux,
    events: usize,
}

impl Twins {
    pub(crate) fn new(class: Class, policy: MuxPolicy) -> Twins {
        Twins {
            stays: Mux::new(class.clone(), policy),
            moves: Mux::new(class, policy),
            events: 0,
        }
    }

    pub(crate) fn join(&mut self, client: ClientId, session: &str) {
        self.both(|mux| mux.join(client, session));
    }

    pub(crate) fn leave(&mut self, client: ClientId, now: Moment) {
        self.both(|mux| mux.leave(client, now));
    }

    pub(crate) fn queued_requests_of(&self, client: ClientId) -> Vec<Key> {
        self.stays.queued_requests_of(client)
    }

    pub(crate) fn handle_client_line(&mut self, client: ClientId, line: &[u8], now: Moment) {
        self.each(
            |mux| {
                mux.handle_client_line(client, line, now);
            },
            |mux| {
                let (line, scan) = handed_over(line);
                mux.handle_owned_client_line(client, line, &scan, now);
            },
        );
    }

    pub(crate) fn handle_server_line(&mut self, line: &[u8], now: Moment) {
        self.each(
            |mux| mux.handle_server_line(line, now),
            |mux| {
                let (line, scan) = handed_over(line);
                mux.handle_owned_server_line(line, &scan, now);
            },
        );
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        let next = self.stays.poll_output();
        assert_eq!(
            next,
            self.moves.poll_output(),
            "the one that moved says otherwise"
        );
        if next.is_none() {
            while let Some(note) = self.stays.poll_note() {
                assert_eq!(Some(note), self.moves.poll_note());
            }
            assert_eq!(self.moves.poll_note(), None);
        }
        next
    }

    pub(crate) fn pending_requests_of(&self, client: ClientId) -> usize {
        let waits = self.stays.pending_requests_of(client);
        assert_eq!(waits, self.moves.pending_requests_of(client));
        waits
    }

    pub(crate) fn in_flight_of(&self, client: ClientId) -> Vec<Vec<u8>> {
        let open = self.stays.in_flight_of(client);
        assert_eq!(open, self.moves.in_flight_of(client));
        open
    }

    fn both(&mut self, happens: impl Fn(&mut Mux)) {
        self.each(&happens, &happens);
    }

    fn each(&mut self, one: impl Fn(&mut Mux), other: impl Fn(&mut Mux)) {
        self.events += 1;
        if self.events.is_multiple_of(MOVES) {
            // All that followed was asked for.
            while self.poll_output().is_some() {}
            self.moves = moved(&self.moves);
        }
        one(&mut self.stays);
        other(&mut self.moves);
        let all = |mux: &Mux| (mux.is_quiet(), mux.ambiguous(), mux.requests());
        assert_eq!(all(&self.stays), all(&self.moves));
    }
}

/// The same line as one that changes hands: behind a little room, and with its first half seen before.
fn handed_over(line: &[u8]) -> (Owned, Scan) {
    let room = line.len() % 3;
    let mut scan = Scan::default();
    scan.scan(&line[..line.len() / 2]);
    let bytes = [&b"##"[..room], line].concat();
    (Owned::with_headroom(bytes, room), scan)
}

/// The same mux after its text.
pub(crate) fn moved(mux: &Mux) -> Mux {
    let text = serde_json::to_string(mux).expect("it has a text");
    let back: Mux = serde_json::from_str(&text).expect("its text is a mux");
    assert_eq!(serde_json::to_string(&back).ok().as_ref(), Some(&text));
    back
}
