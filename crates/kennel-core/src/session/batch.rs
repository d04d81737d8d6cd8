//! Batches (protocol 2025-03-26): each message is handled separately, and those that pass are joined again. A batch
//! whose messages all pass unchanged passes unchanged itself.

use std::ops::Range;

use crate::message::{Member, splice};

/// A range of a line and its replacement.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) place: Range<usize>,
    pub(super) new: Vec<u8>,
}

impl Edit {
    /// Applies the edit to the line.
    pub(super) fn of_line(&self, line: &[u8]) -> Vec<u8> {
        splice(line, &[(self.place.clone(), &self.new)])
    }

    /// Applies the edit to one message of a batch. The range is relative to the whole line.
    pub(super) fn of_member(&self, member: &Member<'_>) -> Vec<u8> {
        let start = member.whole.range().start;
        let place = self.place.start - start..self.place.end - start;
        splice(member.whole.bytes(), &[(place, &self.new)])
    }
}

/// Joins messages to an array. `None`: there are none.
pub(super) fn join<M: AsRef<[u8]>>(members: impl IntoIterator<Item = M>) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    for member in members {
        joined.push(if joined.is_empty() { b'[' } else { b',' });
        joined.extend_from_slice(member.as_ref());
    }
    if joined.is_empty() {
        return None;
    }
    joined.push(b']');
    Some(joined)
}
