//! Moves a long line to its recipient instead of copying it, and edits its ids in place.

use std::borrow::Cow;

use crate::lifetime::ClientId;
use crate::message::{Edit, Line, Malformed, Message, Owned, Scan, one_line, splice};
use crate::time::Moment;

use super::from_client::ClientLine;
use super::raw_message::{self, RawMessage};
use super::{Lane, Mux, Output};

/// The line that is being handled, and the actions that need it.
#[derive(Debug)]
pub(super) struct MovedLine {
    /// Address and length of the line: a message at another address is another line.
    place: (usize, usize),
    /// Indexes of the actions, and the edits for each.
    wanted: Vec<(usize, Vec<Edit>)>,
}

impl MovedLine {
    fn new(line: &[u8]) -> MovedLine {
        MovedLine {
            place: place_of(line),
            wanted: Vec::new(),
        }
    }
}

fn place_of(line: &[u8]) -> (usize, usize) {
    (line.as_ptr().addr(), line.len())
}

impl Mux {
    /// [`handle_client_line`](Self::handle_client_line) with a line that can be moved. `scan` contains the result of scanning a
    /// prefix of it. Returns a line that is not handled.
    pub fn handle_owned_client_line(
        &mut self,
        client: ClientId,
        line: Owned,
        scan: &Scan,
        now: Moment,
    ) -> Option<Owned> {
        self.moved_line = Some(MovedLine::new(&line));
        match self.try_client_line(client, Line::scanned(&line, scan), now) {
            ClientLine::Handled => {
                self.fill_moved_line(line);
                None
            }
            ClientLine::Split => self.handle_split_client_line(client, line, scan, now),
            ClientLine::StartsLegacySession => {
                self.moved_line = None;
                Some(line)
            }
        }
    }

    /// Handles a line of a client that some servers would read as several lines. Returns a line that is not handled.
    pub(super) fn handle_split_client_line(
        &mut self,
        client: ClientId,
        line: Owned,
        scan: &Scan,
        now: Moment,
    ) -> Option<Owned> {
        match one_line(line) {
            Ok(line) => self.handle_owned_client_line(client, line, &Scan::default(), now),
            Err(line) => {
                self.moved_line = None;
                let line = outlined(&line, scan);
                self.handle_parsed_client_line(client, &line, Err(Malformed::Newline), now);
                None
            }
        }
    }

    /// [`handle_server_line`](Self::handle_server_line) with a line that can be moved. `scan` contains the result of scanning a
    /// prefix of it.
    pub fn handle_owned_server_line(&mut self, line: Owned, scan: &Scan, now: Moment) {
        self.moved_line = Some(MovedLine::new(&line));
        match self.try_server_line(Line::scanned(&line, scan), now) {
            false => self.fill_moved_line(line),
            true => self.handle_split_server_line(line, scan, now),
        }
    }

    /// Handles a line of the server that some apps would read as several lines.
    pub(super) fn handle_split_server_line(&mut self, line: Owned, scan: &Scan, now: Moment) {
        match one_line(line) {
            Ok(line) => self.handle_owned_server_line(line, &Scan::default(), now),
            Err(line) => {
                self.moved_line = None;
                let line = outlined(&line, scan);
                self.malformed_from_server(&line, Malformed::Newline, now);
            }
        }
    }

    /// Sends a message with these edits to the server.
    pub(super) fn send_edited_to_server(
        &mut self,
        lane: Lane,
        raw: &RawMessage<'_>,
        edits: &[raw_message::PartEdit<'_>],
    ) {
        let line = Owned::default();
        match self.can_move_line(raw, edits) {
            true => self.out.push_back(Output::ToServer { lane, line }),
            false => self.send_to_server(lane, raw.with(edits)),
        }
    }

    /// Sends a message with these edits to a client.
    pub(super) fn send_edited(
        &mut self,
        client: ClientId,
        raw: &RawMessage<'_>,
        edits: &[raw_message::PartEdit<'_>],
    ) {
        let line = Owned::default();
        match self.clients.contains_key(&client) && self.can_move_line(raw, edits) {
            true => self.out.push_back(Output::ToClient { client, line }),
            false => self.send_to_client(client, raw.with(edits)),
        }
    }

    /// Sends a message to several clients as one line.
    pub(super) fn send_as_one_line(&mut self, clients: Vec<ClientId>, raw: &RawMessage<'_>) {
        let line = match self.can_move_line(raw, &[]) {
            true => Owned::default(),
            false => raw.with(&[]).into(),
        };
        self.out.push_back(Output::ToClients { clients, line });
    }

    /// Whether the next action can get the line itself; then it is filled in later.
    fn can_move_line(&mut self, raw: &RawMessage<'_>, edits: &[raw_message::PartEdit<'_>]) -> bool {
        let is_it = |moved: &&mut MovedLine| moved.place == place_of(raw.bytes());
        let Some(moved) = self.moved_line.as_mut().filter(is_it) else {
            return false;
        };
        let edits = raw.places(edits).into_iter();
        let edits = edits.map(|(place, new)| (place, new.to_vec()));
        moved.wanted.push((self.out.len(), edits.collect()));
        true
    }

    fn fill_moved_line(&mut self, mut line: Owned) {
        let Some(MovedLine { mut wanted, .. }) = self.moved_line.take() else {
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
            Output::ToServer { line, .. }
            | Output::ToClient { line, .. }
            | Output::ToClients { line, .. },
        ) = self.out.get_mut(place)
        {
            *line = with;
        }
    }
}

/// A short line with the same id and kind as this one, for building the error response without parsing the long line
/// again. The line itself, if it is neither a request nor a response.
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
