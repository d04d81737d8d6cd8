//! A message as received, and the same message with edits.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::hello::text_of_bytes;
use crate::lifetime::ClientId;
use crate::message::{Member, Part, splice};
use crate::time::Moment;

/// The bytes of one message: a whole line, or one element of a batch. Positions are relative to the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawMessage<'a> {
    bytes: &'a [u8],
    start: usize,
    /// Length of the whole line.
    line_length: usize,
}

/// A part of the line and its replacement.
pub(super) type PartEdit<'e> = (Part<'e>, &'e [u8]);

impl<'a> RawMessage<'a> {
    pub(super) fn line(line: &'a [u8]) -> RawMessage<'a> {
        RawMessage {
            bytes: line,
            start: 0,
            line_length: line.len(),
        }
    }

    /// An element of a batch whose line has this many bytes.
    pub(super) fn member(member: &Member<'a>, line_length: usize) -> RawMessage<'a> {
        RawMessage {
            bytes: member.whole.bytes(),
            start: member.whole.range().start,
            line_length,
        }
    }

    /// Length of the whole line: a batch may be long though each of its messages is short.
    pub(super) fn line_length(&self) -> usize {
        self.line_length
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the message with these edits, which must not overlap. All other bytes stay (rule 11).
    pub(super) fn with(&self, edits: &[PartEdit<'_>]) -> Vec<u8> {
        match edits {
            // The usual case: needs no allocation for a list.
            [(place, new)] => splice(self.bytes, &[(self.place(place), *new)]),
            _ => splice(self.bytes, &self.places(edits)),
        }
    }

    /// The edits with positions in this message, sorted.
    pub(super) fn places<'e>(&self, edits: &[PartEdit<'e>]) -> Vec<(Range<usize>, &'e [u8])> {
        let mut places: Vec<_> = edits
            .iter()
            .map(|(place, new)| (self.place(place), *new))
            .collect();
        places.sort_by_key(|(place, _)| place.start);
        places
    }

    /// The position of a part within this message.
    pub(super) fn place(&self, part: &Part<'_>) -> Range<usize> {
        let Range { start, end } = part.range();
        start - self.start..end - self.start
    }
}

/// A message of a client, with its sender, batch and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientMessage<'a> {
    pub(super) client: ClientId,
    pub(super) raw: RawMessage<'a>,
    /// The batch that it belongs to.
    pub(super) batch: Option<u64>,
    pub(super) now: Moment,
}

/// A stored message that can be sent again with another id.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeptMessage {
    #[serde(with = "text_of_bytes")]
    line: Vec<u8>,
    id: Range<usize>,
}

impl KeptMessage {
    pub(super) fn new(raw: &RawMessage<'_>, id: &Part<'_>) -> KeptMessage {
        KeptMessage {
            line: raw.bytes.to_vec(),
            id: raw.place(id),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub(super) fn with_id(&self, id: &[u8]) -> Vec<u8> {
        splice(&self.line, &[(self.id.clone(), id)])
    }
}
