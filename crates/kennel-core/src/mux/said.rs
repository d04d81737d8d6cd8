//! One message as it was said, and the same with other bytes in some places.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Member, Part, splice};
use crate::time::Moment;

use super::snapshot::bytes;

/// The bytes of one message: a whole line, or its part of a batch. Places are those in the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'a> {
    bytes: &'a [u8],
    start: usize,
    /// How many bytes the whole line has.
    line_length: usize,
}

/// Other bytes for one place of the line.
pub(super) type Edit<'e> = (Part<'e>, &'e [u8]);

impl<'a> Said<'a> {
    pub(super) fn line(line: &'a [u8]) -> Said<'a> {
        Said {
            bytes: line,
            start: 0,
            line_length: line.len(),
        }
    }

    /// A part of a batch that has this many bytes.
    pub(super) fn member(member: &Member<'a>, line_length: usize) -> Said<'a> {
        Said {
            bytes: member.whole.bytes(),
            start: member.whole.range().start,
            line_length,
        }
    }

    /// How many bytes the whole line has: a batch may be long though each of its messages is short.
    pub(super) fn line_length(&self) -> usize {
        self.line_length
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The message with these edits, none of which overlap. Every other byte is as it was (rule 11).
    pub(super) fn with(&self, edits: &[Edit<'_>]) -> Vec<u8> {
        match edits {
            // As most have: no list is made for it.
            [(place, new)] => splice(self.bytes, &[(self.place(place), *new)]),
            _ => splice(self.bytes, &self.places(edits)),
        }
    }

    /// The same, to be done later: in order.
    pub(super) fn places<'e>(&self, edits: &[Edit<'e>]) -> Vec<(Range<usize>, &'e [u8])> {
        let mut places: Vec<_> = edits
            .iter()
            .map(|(place, new)| (self.place(place), *new))
            .collect();
        places.sort_by_key(|(place, _)| place.start);
        places
    }

    /// Where a part of the line is in this message.
    pub(super) fn place(&self, part: &Part<'_>) -> Range<usize> {
        let Range { start, end } = part.range();
        start - self.start..end - self.start
    }
}

/// What a client said, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct From<'a> {
    pub(super) client: ClientId,
    pub(super) said: Said<'a>,
    /// The batch it is part of.
    pub(super) batch: Option<u64>,
    pub(super) now: Moment,
}

/// A message kept to be said again under other ids.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    #[serde(with = "bytes")]
    line: Vec<u8>,
    id: Range<usize>,
}

impl Kept {
    pub(super) fn new(said: &Said<'_>, id: &Part<'_>) -> Kept {
        Kept {
            line: said.bytes.to_vec(),
            id: said.place(id),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub(super) fn under(&self, id: &[u8]) -> Vec<u8> {
        splice(&self.line, &[(self.id.clone(), id)])
    }
}
