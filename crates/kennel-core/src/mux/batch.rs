//! Batches of clients (protocol 2025-03-26): split, and answered with one array.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Batch, Message, error_reply, reply};
use crate::time::Moment;

use super::raw_message::{ClientMessage, RawMessage};
use super::{Mux, Note, Output};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Batches {
    open: BTreeMap<u64, OpenBatch>,
    next: u64,
    /// Bytes of the stored responses of each client's incomplete batches.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
    /// Maximum bytes of stored responses for one client. Past it, responses become errors.
    #[serde(default = "default_limit")]
    limit: usize,
}

/// Maximum of [`Batches::limit`].
const RESPONSES_LIMIT: usize = 16 << 20;

fn default_limit() -> usize {
    RESPONSES_LIMIT
}

#[derive(Debug, Serialize, Deserialize)]
struct OpenBatch {
    client: ClientId,
    /// Requests without a response, plus one while the batch is being read.
    waiting: usize,
    answers: Vec<Vec<u8>>,
    /// Whether some responses were sent early: all others become errors.
    #[serde(default)]
    is_full: bool,
}

impl Default for Batches {
    fn default() -> Batches {
        Batches {
            open: BTreeMap::new(),
            next: 0,
            bytes: BTreeMap::new(),
            limit: RESPONSES_LIMIT,
        }
    }
}

impl Batches {
    /// Whether a client has an incomplete batch.
    pub(super) fn is_open_for(&self, client: ClientId) -> bool {
        self.open.values().any(|batch| batch.client == client)
    }

    /// Bytes of stored responses.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    /// Whether a response of this length can be stored for a batch. The first always can.
    fn has_room(&self, number: u64, length: usize) -> bool {
        let Some(batch) = self.open.get(&number) else {
            return true;
        };
        let before = self.bytes.get(&batch.client).copied().unwrap_or_default();
        !batch.is_full && (before == 0 || before + length <= self.limit)
    }

    /// An error in place of a response of this length, if that cannot be stored. Called before the response is built:
    /// many requests may want a long one.
    pub(super) fn error_instead(
        &self,
        batch: Option<u64>,
        length: usize,
        id: &[u8],
    ) -> Option<Vec<u8>> {
        let is_kept = batch.is_none_or(|number| self.has_room(number, length));
        (!is_kept).then(|| long_batch_answer(id, self.limit))
    }

    /// Removes the batches of a client that is gone.
    pub(super) fn leave(&mut self, client: ClientId) {
        self.bytes.remove(&client);
        self.open.retain(|_, batch| batch.client != client);
    }
}

/// Maximum number of errors for a refused batch while the daemon is short of memory. A longer batch gets one error
/// for all: each error is longer than its request.
const MAX_ERRORS_IF_SHORT: usize = 64;

impl Mux {
    /// Sets the maximum line length of clients. Joined responses of a batch stay within half of it.
    pub fn set_max_line(&mut self, bytes: usize) {
        self.batches.limit = RESPONSES_LIMIT.min(bytes / 2);
    }

    pub(super) fn batch_from_client(&mut self, client: ClientId, batch: &Batch<'_>, now: Moment) {
        if !self.class.has_batches() {
            if self.is_short_of_memory && batch.members.len() > MAX_ERRORS_IF_SHORT {
                let message =
                    "kennel: out of memory for the errors of this batch; send one message per line";
                let error = error_reply(b"null", reply::INVALID_REQUEST, message, None);
                self.send_to_client(client, error);
                self.notes.push(Note::NoBatches(client));
                return;
            }
            let message = "this protocol version has no batches; send one message per line";
            // With their ids: a response without an id belongs to no request, and these would wait for ever.
            for member in &batch.members {
                if let Message::Request(request) = &member.message
                    && !self.is_asked(client, &request.id.key())
                {
                    let id = request.id.raw();
                    self.send_to_client(
                        client,
                        error_reply(id, reply::INVALID_REQUEST, message, None),
                    );
                }
            }
            self.notes.push(Note::NoBatches(client));
            return;
        }
        let number = self.batches.next;
        self.batches.next += 1;
        let is_request = |message: &Message<'_>| matches!(message, Message::Request(_));
        let requests = batch.members.iter().filter(|it| is_request(&it.message));
        let open = OpenBatch {
            client,
            waiting: requests.count() + 1,
            answers: Vec::new(),
            is_full: false,
        };
        self.batches.open.insert(number, open);
        for member in &batch.members {
            let from = ClientMessage {
                client,
                raw: RawMessage::member(member, member.whole.bytes().len()),
                batch: Some(number),
                now,
            };
            self.message_from_client(from, &member.message);
        }
        self.batch_request_done(number, None);
    }

    /// Sends a response to a client, or stores it for its batch.
    pub(super) fn answer(&mut self, client: ClientId, batch: Option<u64>, line: Vec<u8>) {
        match batch {
            None => self.send_to_client(client, line),
            Some(batch) => self.batch_request_done(batch, Some(line)),
        }
    }

    /// Records that a request of a batch has its response, or gets none.
    pub(super) fn batch_request_done(&mut self, number: u64, answer: Option<Vec<u8>>) {
        let Some(client) = self.batches.open.get(&number).map(|batch| batch.client) else {
            return;
        };
        let limit = self.batches.limit;
        let answer = answer.map(|line| match self.batches.has_room(number, line.len()) {
            true => line,
            false => {
                #[cfg(test)]
                tests::DISCARDED_BYTES.set(tests::DISCARDED_BYTES.get() + line.len());
                let id = Message::parse(&line).ok().and_then(|it| it.id());
                long_batch_answer(id.map_or(&b"null"[..], |id| id.raw()), limit)
            }
        });
        let more = answer.as_ref().map_or(0, Vec::len);
        let before = self.batches.bytes.get(&client).copied().unwrap_or_default();
        let batch = self.batches.open.get_mut(&number).expect("it is open");
        // Errors, too, may exceed the limit.
        if before + more > limit && !batch.answers.is_empty() {
            batch.is_full = true;
            self.send_answers(number);
        }
        *self.batches.bytes.entry(client).or_default() += more;
        let batch = self.batches.open.get_mut(&number).expect("it is open");
        batch.answers.extend(answer);
        batch.waiting -= 1;
        if batch.waiting == 0 {
            self.send_answers(number);
            self.batches.open.remove(&number);
        }
    }

    /// Sends the stored responses of a batch.
    fn send_answers(&mut self, number: u64) {
        let Some(batch) = self.batches.open.get_mut(&number) else {
            return;
        };
        let client = batch.client;
        let answers = std::mem::take(&mut batch.answers);
        let sent: usize = answers.iter().map(Vec::len).sum();
        let bytes = self.batches.bytes.entry(client).or_default();
        // Snapshots of older builds have no counts.
        *bytes = bytes.saturating_sub(sent);
        if *bytes == 0 {
            self.batches.bytes.remove(&client);
        }
        if !answers.is_empty() {
            let mut line = vec![b'['];
            line.extend(answers.join(&b','));
            line.push(b']');
            let line = line.into();
            self.out.push_back(Output::ToClient { client, line });
        }
    }
}

/// The error in place of a response that cannot be stored until its batch is complete.
fn long_batch_answer(id: &[u8], limit: usize) -> Vec<u8> {
    let message = format!(
        "the responses to this session's batches exceed {limit} bytes; send requests one by one"
    );
    let data = r#"{"reason":"batch_too_long","outcome":"unknown","replayed":false}"#;
    error_reply(id, reply::INTERNAL_ERROR, &message, Some(data))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::mux::{MuxPolicy, Opening, opening};

    thread_local! {
        /// Bytes of responses that were built and then replaced by errors.
        pub(super) static DISCARDED_BYTES: Cell<usize> = const { Cell::new(0) };
    }

    const CLIENT: ClientId = ClientId(1);
    const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
    const WELCOME: &str = r#"{"protocolVersion":"2025-03-26","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}"#;

    fn say(mux: &mut Mux, line: &[u8]) {
        mux.handle_client_line(CLIENT, line, Moment::START);
    }

    /// Answers all requests as the server, and returns the lines that the client got.
    fn answer_all(mux: &mut Mux, result: &str) -> Vec<Vec<u8>> {
        let mut heard = Vec::new();
        while let Some(out) = mux.poll_output() {
            match out {
                Output::ToServer { line, .. } => {
                    if let Some(id) = Message::parse(&line).expect("a message").id() {
                        let id = String::from_utf8_lossy(id.raw());
                        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
                        mux.handle_server_line(line.as_bytes(), Moment::START);
                    }
                }
                Output::ToClient { line, .. } => heard.push(line.to_vec()),
                Output::ToClients { .. } | Output::Dismiss { .. } => {}
            }
        }
        heard
    }

    #[test]
    fn a_long_list_is_not_built_for_each_request_of_a_batch_that_is_full() {
        let list = format!(r#"{{"tools":["{}"]}}"#, "x".repeat(1 << 20));
        for is_kept in [true, false] {
            let message = Message::parse(INITIALIZE).expect("a message");
            let Opening::Legacy(class) = opening(&message) else {
                panic!("it opens a class");
            };
            let mut mux = Mux::new(class, MuxPolicy::default());
            mux.join(CLIENT, "session");
            say(&mut mux, INITIALIZE);
            answer_all(&mut mux, WELCOME);
            say(
                &mut mux,
                br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            );
            if is_kept {
                let first = br#"{"jsonrpc":"2.0","id":"w","method":"tools/list"}"#;
                say(&mut mux, first);
                answer_all(&mut mux, &list);
            }
            let request = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#);
            let requests: Vec<String> = (0..100).map(request).collect();
            say(&mut mux, format!("[{}]", requests.join(",")).as_bytes());
            let heard = answer_all(&mut mux, &list).concat();
            let heard = String::from_utf8_lossy(&heard);
            assert_eq!(heard.matches("batch_too_long").count(), 85);
            let discarded = DISCARDED_BYTES.get();
            assert!(discarded < list.len(), "{discarded} bytes");
        }
    }
}
