//! Who asked what, and what has been answered (rule 4).

use std::collections::BTreeMap;

use kennel_core::message::{Key, Message, Outcome, Response, repaired, with_finite_numbers};

/// The requests of one side.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rows: BTreeMap<Key, Row>,
}

#[derive(Debug, Default)]
struct Row {
    /// Not answered yet.
    open: usize,
    /// Of these, cancelled where it cannot be told from outside which came first.
    doubtful: usize,
}

impl Ledger {
    pub(crate) fn asked(&mut self, key: Key) {
        self.rows.entry(key).or_default().open += 1;
    }

    /// Whether anybody waited for it.
    pub(crate) fn answered(&mut self, key: &Key) -> bool {
        let Some(row) = self.rows.get_mut(key).filter(|row| row.open > 0) else {
            return false;
        };
        row.open -= 1;
        row.doubtful = row.doubtful.min(row.open);
        true
    }

    /// It will not be answered.
    pub(crate) fn cancelled(&mut self, key: &Key) {
        assert!(
            self.answered(key),
            "{key} is in flight, and nobody asked it"
        );
    }

    /// It may be answered, or not. An id may be spelled otherwise: `"1"` for `1`.
    pub(crate) fn perhaps_cancelled(&mut self, key: &Key) {
        let number = key.as_number();
        let is_meant = |it: &Key| it == key || (number.is_some() && it.as_number() == number);
        for (_, row) in self.rows.iter_mut().filter(|(it, _)| is_meant(it)) {
            row.doubtful = row.open.min(row.doubtful + 1);
        }
    }

    pub(crate) fn is_open(&self, key: &Key) -> bool {
        self.rows.get(key).is_some_and(|row| row.open > 0)
    }

    /// Everyone who waits for certain.
    pub(crate) fn waiting(&self) -> Vec<&Key> {
        let waits = |(_, row): &(&Key, &Row)| row.open > row.doubtful;
        self.rows.iter().filter(waits).map(|(key, _)| key).collect()
    }
}

/// The messages of a line: itself, or its members.
pub(crate) fn messages<'m, 'a>(message: &'m Message<'a>) -> Vec<&'m Message<'a>> {
    match message {
        Message::Batch(batch) => batch.members.iter().map(|it| &it.message).collect(),
        alone => vec![alone],
    }
}

/// A line that was handed out, which is one.
#[track_caller]
pub(crate) fn well_formed(line: &[u8]) -> Message<'_> {
    let shown = || String::from_utf8_lossy(line);
    Message::parse(line).unwrap_or_else(|why| panic!("{why}: {}", shown()))
}

/// Whether this answers what was meant as a request and is none.
pub(crate) fn is_refusal(response: &Response<'_>) -> bool {
    let Outcome::Error(error) = response.outcome else {
        return false;
    };
    let error: serde_json::Value = serde_json::from_slice(error.bytes()).unwrap_or_default();
    matches!(error["code"].as_i64(), Some(-32700 | -32600))
}

/// A line as it is read: repaired, if that makes it a message.
pub(crate) fn as_read(line: &[u8]) -> Vec<u8> {
    let repaired = Message::parse(line)
        .err()
        .and_then(|why| repaired(line, why));
    repaired.unwrap_or_else(|| line.to_vec())
}

/// A line of a dedicated server as an app may read it: with `NaN` and `Infinity`, unless it is a batch.
pub(crate) fn as_app_reads(line: &[u8]) -> Vec<u8> {
    let why = Message::parse(line).err();
    let finite = why.and_then(|why| with_finite_numbers(line, why));
    let is_batch =
        |line: &Vec<u8>| matches!(Message::parse(line.as_slice()), Ok(Message::Batch(_)));
    finite
        .filter(|line| !is_batch(line))
        .unwrap_or_else(|| line.to_vec())
}
