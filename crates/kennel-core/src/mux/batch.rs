//! Batches of a client (protocol 2025-03-26): taken apart, and answered as one array.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Batch, Message, error_reply, reply};
use crate::time::Moment;

use super::said::{From, Said};
use super::{Mux, Note, Out};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Batches {
    open: BTreeMap<u64, Open>,
    next: u64,
    /// How many bytes of answers each client's batches keep until they are complete.
    #[serde(default)]
    bytes: BTreeMap<ClientId, usize>,
}

/// Maximum bytes of answers that are kept for the batches of one client. Past it, answers become errors.
const ANSWERS_LIMIT: usize = 16 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Open {
    client: ClientId,
    /// Requests without their answer, and one more while the batch is read.
    waiting: usize,
    answers: Vec<Vec<u8>>,
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

    /// Whether no more answers are kept for a client's batches. A first one always is.
    fn is_full(&self, client: ClientId, more: usize) -> bool {
        let before = self.bytes.get(&client).copied().unwrap_or_default();
        before > 0 && before + more > ANSWERS_LIMIT
    }

    /// Forgets those of a client that is gone.
    pub(super) fn leave(&mut self, client: ClientId) {
        self.bytes.remove(&client);
        self.open.retain(|_, batch| batch.client != client);
    }
}

impl Mux {
    pub(super) fn batch_from_client(&mut self, client: ClientId, batch: &Batch<'_>, now: Moment) {
        if !self.class.has_batches() {
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
        };
        self.batches.open.insert(number, open);
        for member in &batch.members {
            let from = From {
                client,
                said: Said::member(member),
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
        let answer = answer.map(|line| match self.batches.is_full(client, line.len()) {
            true => long_batch_answer(&line),
            false => line,
        });
        let more = answer.as_ref().map_or(0, Vec::len);
        *self.batches.bytes.entry(client).or_default() += more;
        let batch = self.batches.open.get_mut(&number).expect("it is open");
        batch.answers.extend(answer);
        batch.waiting -= 1;
        if batch.waiting > 0 {
            return;
        }
        let done = self.batches.open.remove(&number).expect("it is open");
        let sent: usize = done.answers.iter().map(Vec::len).sum();
        let bytes = self.batches.bytes.entry(client).or_default();
        // What an older build wrote down was not counted.
        *bytes = bytes.saturating_sub(sent);
        if *bytes == 0 {
            self.batches.bytes.remove(&client);
        }
        if !done.answers.is_empty() {
            let mut line = vec![b'['];
            line.extend(done.answers.join(&b','));
            line.push(b']');
            let client = done.client;
            let line = line.into();
            self.out.push_back(Out::ToClient { client, line });
        }
    }
}

/// In place of an answer that is not kept until its batch is complete.
fn long_batch_answer(line: &[u8]) -> Vec<u8> {
    let message = format!(
        "the answers of the batches of this session are longer than {ANSWERS_LIMIT} bytes: send requests one by one"
    );
    let data = r#"{"reason":"batch_too_long","outcome":"unknown","replayed":false}"#;
    let message_of = Message::parse(line).ok();
    let id = message_of.and_then(|it| it.id());
    let id = id.map_or(&b"null"[..], |id| id.raw());
    error_reply(id, reply::INTERNAL_ERROR, &message, Some(data))
}
