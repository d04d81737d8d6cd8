//! A long line that changes hands: whoever gets it gets these very bytes, with other ids in them. A copy would take
//! longer than all the rest.

use std::borrow::Cow;

use crate::lifetime::ClientId;
use crate::message::{Edit, Line, Malformed, Message, Owned, Scan, one_line, splice};
use crate::time::Moment;

use super::said::{self, Said};
use super::{Lane, Mux, Out};

/// The line that is being looked at, and which of the things to do want it.
#[derive(Debug)]
pub(super) struct Lent {
    /// Where it stands: what is said from other memory is another line, though it be the same text.
    place: (usize, usize),
    /// By their places among the things to do, and with what edits.
    wanted: Vec<(usize, Vec<Edit>)>,
}

impl Lent {
    fn new(line: &[u8]) -> Lent {
        Lent {
            place: place_of(line),
            wanted: Vec::new(),
        }
    }
}

fn place_of(line: &[u8]) -> (usize, usize) {
    (line.as_ptr().addr(), line.len())
}

impl Mux {
    /// [`from_client`](Self::from_client) with a line that nobody else needs; `scan` has seen its beginning, or all.
    pub fn from_client_owned(&mut self, client: ClientId, line: Owned, scan: &Scan, now: Moment) {
        self.lent = Some(Lent::new(&line));
        match self.is_split_from_client(client, Line::scanned(&line, scan), now) {
            false => self.hand_over(line),
            true => self.hear_client_as_one(client, line, scan, now),
        }
    }

    /// A line of a client that some servers would read as several.
    pub(super) fn hear_client_as_one(
        &mut self,
        client: ClientId,
        line: Owned,
        scan: &Scan,
        now: Moment,
    ) {
        match one_line(line) {
            Ok(line) => self.from_client_owned(client, line, &Scan::default(), now),
            Err(line) => {
                self.lent = None;
                let line = outlined(&line, scan);
                self.hear_client(client, &line, Err(Malformed::Newline), now);
            }
        }
    }

    /// [`from_server`](Self::from_server) with a line that nobody else needs; `scan` has seen its beginning, or all.
    pub fn from_server_owned(&mut self, line: Owned, scan: &Scan, now: Moment) {
        self.lent = Some(Lent::new(&line));
        match self.is_split_from_server(Line::scanned(&line, scan), now) {
            false => self.hand_over(line),
            true => self.hear_server_as_one(line, scan, now),
        }
    }

    /// A line of the server that some apps would read as several.
    pub(super) fn hear_server_as_one(&mut self, line: Owned, scan: &Scan, now: Moment) {
        match one_line(line) {
            Ok(line) => self.from_server_owned(line, &Scan::default(), now),
            Err(line) => {
                self.lent = None;
                let line = outlined(&line, scan);
                self.malformed_from_server(&line, Malformed::Newline, now);
            }
        }
    }

    /// What was said, for the server, with these edits.
    pub(super) fn tell_server_with(
        &mut self,
        lane: Lane,
        said: &Said<'_>,
        edits: &[said::Edit<'_>],
    ) {
        let line = Owned::default();
        match self.lends(said, edits) {
            true => self.out.push_back(Out::ToServer { lane, line }),
            false => self.tell_server(lane, said.with(edits)),
        }
    }

    /// What was said, for a client, with these edits.
    pub(super) fn say_with(&mut self, client: ClientId, said: &Said<'_>, edits: &[said::Edit<'_>]) {
        let line = Owned::default();
        match self.clients.contains_key(&client) && self.lends(said, edits) {
            true => self.out.push_back(Out::ToClient { client, line }),
            false => self.say(client, said.with(edits)),
        }
    }

    /// What was said, for several clients, as one line.
    pub(super) fn say_to_all_of(&mut self, clients: Vec<ClientId>, said: &Said<'_>) {
        let line = match self.lends(said, &[]) {
            true => Owned::default(),
            false => said.with(&[]).into(),
        };
        self.out.push_back(Out::ToClients { clients, line });
    }

    /// Whether the next thing to do gets the line later.
    fn lends(&mut self, said: &Said<'_>, edits: &[said::Edit<'_>]) -> bool {
        let is_it = |lent: &&mut Lent| lent.place == place_of(said.bytes());
        let Some(lent) = self.lent.as_mut().filter(is_it) else {
            return false;
        };
        let edits = said.places(edits).into_iter();
        let edits = edits.map(|(place, new)| (place, new.to_vec()));
        lent.wanted.push((self.out.len(), edits.collect()));
        true
    }

    fn hand_over(&mut self, mut line: Owned) {
        let Some(Lent { mut wanted, .. }) = self.lent.take() else {
            return;
        };
        let last = wanted.pop();
        for (place, edits) in wanted {
            let borrowed = edits.iter().map(|(place, new)| (place.clone(), &new[..]));
            let copy = splice(&line, &borrowed.collect::<Vec<_>>());
            self.fill(place, copy.into());
        }
        if let Some((place, edits)) = last {
            line.splice(edits);
            self.fill(place, line);
        }
    }

    fn fill(&mut self, place: usize, with: Owned) {
        if let Some(
            Out::ToServer { line, .. } | Out::ToClient { line, .. } | Out::ToClients { line, .. },
        ) = self.out.get_mut(place)
        {
            *line = with;
        }
    }
}

/// A short line with the same id that asks or answers as this one does, for whoever is told that it is refused: nobody reads
/// a long line once more for that. The line itself, if it is neither.
fn outlined<'a>(line: &'a [u8], scan: &Scan) -> Cow<'a, [u8]> {
    let instead = |id: &[u8], rest: &[u8]| Cow::Owned([b"{\"id\":", id, rest].concat());
    match Message::parse(Line::scanned(line, scan)) {
        Ok(Message::Request(request)) => instead(request.id.raw(), b",\"method\":\"\"}"),
        Ok(Message::Response(response)) => {
            let id = response.id.map(|id| instead(id.raw(), b",\"result\":0}"));
            id.unwrap_or(Cow::Borrowed(b"{}"))
        }
        Ok(Message::Notification(_)) => Cow::Borrowed(b"{\"method\":\"\"}"),
        Ok(Message::Batch(_)) | Err(_) => Cow::Borrowed(line),
    }
}
