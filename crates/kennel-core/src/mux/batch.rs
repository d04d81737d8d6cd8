//! Batches of a client (protocol 2025-03-26): taken apart, and answered as one array.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Batch, Message, error_reply, reply};
use crate::time::Moment;

use super::said::{From, Said};
use super::{Mux, Note, Out};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Batches {
    open: BTreeMap<u64, Open>,
    next: u64,
    /// How many bytes of answers each client's batches keep until they are complete.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
    /// Maximum bytes of answers that are kept for the batches of one client. Past it, answers become errors.
    #[serde(default = "most_answers")]
    limit: usize,
}

/// The most that [`Batches::limit`] is.
const ANSWERS_LIMIT: usize = 16 << 20;

fn most_answers() -> usize {
    ANSWERS_LIMIT
}

#[derive(Debug, Serialize, Deserialize)]
struct Open {
    client: ClientId,
    /// Requests without their answer, and one more while the batch is read.
    waiting: usize,
    answers: Vec<Vec<u8>>,
    /// Some of its answers were sent before the rest: all others become errors.
    #[serde(default)]
    is_full: bool,
}

impl Default for Batches {
    fn default() -> Batches {
        Batches {
            open: BTreeMap::new(),
            next: 0,
            bytes: BTreeMap::new(),
            limit: ANSWERS_LIMIT,
        }
    }
}

impl Batches {
    /// Whether a client waits for the answers of a batch.
    pub(super) fn is_open_for(&self, client: ClientId) -> bool {
        self.open.values().any(|batch| batch.client == client)
    }

    /// How many bytes of answers are kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    /// Whether an answer of this length is kept for a batch. A first one always is.
    fn has_room(&self, number: u64, length: usize) -> bool {
        let Some(batch) = self.open.get(&number) else {
            return true;
        };
        let before = self.bytes.get(&batch.client).copied().unwrap_or_default();
        !batch.is_full && (before == 0 || before + length <= self.limit)
    }

    /// An error in place of an answer of this length, where that would not be kept. For whoever has not made the answer yet:
    /// many requests may want one that is long.
    pub(super) fn error_instead(
        &self,
        batch: Option<u64>,
        length: usize,
        id: &[u8],
    ) -> Option<Vec<u8>> {
        let is_kept = batch.is_none_or(|number| self.has_room(number, length));
        (!is_kept).then(|| long_batch_answer(id, self.limit))
    }

    /// Forgets those of a client that is gone.
    pub(super) fn leave(&mut self, client: ClientId) {
        self.bytes.remove(&client);
        self.open.retain(|_, batch| batch.client != client);
    }
}

/// While the daemon is short of memory, a batch that is none of its protocol version gets no more errors than this, but one for
/// all: each is longer than the request it is for.
const MOST_ERRORS_IF_SHORT: usize = 64;

impl Mux {
    /// Clients take no line longer than this: the answers to a batch are no longer, as far as that depends on their number.
    pub fn set_max_line(&mut self, bytes: usize) {
        self.batches.limit = ANSWERS_LIMIT.min(bytes / 2);
    }

    pub(super) fn batch_from_client(&mut self, client: ClientId, batch: &Batch<'_>, now: Moment) {
        if !self.class.has_batches() {
            if self.is_short_of_memory && batch.members.len() > MOST_ERRORS_IF_SHORT {
                let message =
                    "kennel: there is no memory for so many errors: send one message a line";
                let error = error_reply(b"null", reply::INVALID_REQUEST, message, None);
                self.say(client, error);
                self.notes.push(Note::NoBatches(client));
                return;
            }
            let message = "this version of the protocol has no batches: send one message a line";
            // Under their ids: an answer without one is nobody's, and they would wait for ever.
            for member in &batch.members {
                if let Message::Request(request) = &member.message
                    && !self.is_asked(client, &request.id.key())
                {
                    let id = request.id.raw();
                    self.say(
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
        let open = Open {
            client,
            waiting: requests.count() + 1,
            answers: Vec::new(),
            is_full: false,
        };
        self.batches.open.insert(number, open);
        for member in &batch.members {
            let from = From {
                client,
                said: Said::member(member, member.whole.bytes().len()),
                batch: Some(number),
                now,
            };
            self.message_from_client(from, &member.message);
        }
        self.one_less(number, None);
    }

    /// An answer for a client, alone or as part of its batch.
    pub(super) fn answer(&mut self, client: ClientId, batch: Option<u64>, line: Vec<u8>) {
        match batch {
            None => self.say(client, line),
            Some(batch) => self.one_less(batch, Some(line)),
        }
    }

    /// A request of a batch has its answer, or will have none.
    pub(super) fn one_less(&mut self, number: u64, answer: Option<Vec<u8>>) {
        let Some(client) = self.batches.open.get(&number).map(|batch| batch.client) else {
            return;
        };
        let limit = self.batches.limit;
        let answer = answer.map(|line| match self.batches.has_room(number, line.len()) {
            true => line,
            false => {
                #[cfg(test)]
                tests::BUILT_IN_VAIN.set(tests::BUILT_IN_VAIN.get() + line.len());
                let id = Message::parse(&line).ok().and_then(|it| it.id());
                long_batch_answer(id.map_or(&b"null"[..], |id| id.raw()), limit)
            }
        });
        let more = answer.as_ref().map_or(0, Vec::len);
        let before = self.batches.bytes.get(&client).copied().unwrap_or_default();
        let batch = self.batches.open.get_mut(&number).expect("it is open");
        // Errors, too, may be more than can be kept, or than one line may have.
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

    /// Sends the answers that a batch has.
    fn send_answers(&mut self, number: u64) {
        let Some(batch) = self.batches.open.get_mut(&number) else {
            return;
        };
        let client = batch.client;
        let answers = std::mem::take(&mut batch.answers);
        let sent: usize = answers.iter().map(Vec::len).sum();
        let bytes = self.batches.bytes.entry(client).or_default();
        // What an older build wrote down was not counted.
        *bytes = bytes.saturating_sub(sent);
        if *bytes == 0 {
            self.batches.bytes.remove(&client);
        }
        if !answers.is_empty() {
            let mut line = vec![b'['];
            line.extend(answers.join(&b','));
            line.push(b']');
            let line = line.into();
            self.out.push_back(Out::ToClient { client, line });
        }
    }
}

/// In place of an answer that is not kept until its batch is complete.
fn long_batch_answer(id: &[u8], limit: usize) -> Vec<u8> {
    let message = format!(
        "the answers of the batches of this session are longer than {limit} bytes: send requests one by one"
    );
    let data = r#"{"reason":"batch_too_long","outcome":"unknown","replayed":false}"#;
    error_reply(id, reply::INTERNAL_ERROR, &message, Some(data))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::mux::{Opening, Policy, opening};

    thread_local! {
        /// Bytes of answers that became errors after they were built.
        pub(super) static BUILT_IN_VAIN: Cell<usize> = const { Cell::new(0) };
    }

    const CLIENT: ClientId = ClientId(1);
    const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
    const WELCOME: &str = r#"{"protocolVersion":"2025-03-26","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}"#;

    fn say(mux: &mut Mux, line: &[u8]) {
        mux.from_client(CLIENT, line, Moment::START);
    }

    /// The server answers what it was asked; what the client heard.
    fn answer_all(mux: &mut Mux, result: &str) -> Vec<Vec<u8>> {
        let mut heard = Vec::new();
        while let Some(out) = mux.poll() {
            match out {
                Out::ToServer { line, .. } => {
                    if let Some(id) = Message::parse(&line).expect("a message").id() {
                        let id = String::from_utf8_lossy(id.raw());
                        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
                        mux.from_server(line.as_bytes(), Moment::START);
                    }
                }
                Out::ToClient { line, .. } => heard.push(line.to_vec()),
                Out::ToClients { .. } | Out::Dismiss { .. } => {}
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
            let mut mux = Mux::new(class, Policy::default());
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
            let in_vain = BUILT_IN_VAIN.get();
            assert!(in_vain < list.len(), "{in_vain} bytes");
        }
    }
}
