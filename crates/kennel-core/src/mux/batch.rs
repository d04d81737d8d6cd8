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
}

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

    /// Forgets those of a client that is gone.
    pub(super) fn leave(&mut self, client: ClientId) {
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
        let Some(batch) = self.batches.open.get_mut(&number) else {
            return;
        };
        batch.answers.extend(answer);
        batch.waiting -= 1;
        if batch.waiting > 0 {
            return;
        }
        let done = self.batches.open.remove(&number).expect("it is open");
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
