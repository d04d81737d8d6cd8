//! Batches (protocol 2025-03-26): taken apart to be judged member by member, put together again from
//! the members that pass. A batch all of whose members pass untouched passes untouched itself.

use std::ops::Range;

use crate::message::{Member, splice};

/// Other bytes for some place of a line.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) place: Range<usize>,
    pub(super) new: Vec<u8>,
}

impl Edit {
    /// The whole line with the edit.
    pub(super) fn of_line(&self, line: &[u8]) -> Vec<u8> {
        splice(line, &[(self.place.clone(), &self.new)])
    }

    /// The one member with the edit, whose place is in the whole line.
    pub(super) fn of_member(&self, member: &Member<'_>) -> Vec<u8> {
        let start = member.whole.range().start;
        let place = self.place.start - start..self.place.end - start;
        splice(member.whole.bytes(), &[(place, &self.new)])
    }
}

/// An array of these members. `None`: there are none.
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
