//! Owned lines that are forwarded. Long lines are edited in place instead of being copied.

use std::fmt;
use std::ops::{Deref, Range};

/// A range of a line and its replacement.
pub(crate) type Edit = (Range<usize>, Vec<u8>);

/// An owned line, without its newline, perhaps with unused bytes in front of it.
///
/// ```
/// use kennel_core::message::Owned;
///
/// let mut line = Owned::with_headroom(b"....{\"id\":7}".to_vec(), 4);
/// line.splice(vec![(6..7, b"123".to_vec())]);
/// assert_eq!(&line[..], b"{\"id\":123}");
/// ```
#[derive(Clone, Default)]
pub struct Owned {
    bytes: Vec<u8>,
    /// Start of the line.
    start: usize,
}

impl Owned {
    /// A line behind this many unused bytes.
    pub fn with_headroom(bytes: Vec<u8>, room: usize) -> Owned {
        let start = room.min(bytes.len());
        Owned { bytes, start }
    }

    /// Replaces ranges, which must be in order and not overlap. For each, the shorter of the two sides is moved.
    pub fn splice(&mut self, edits: Vec<Edit>) {
        // The last first, so that earlier positions stay valid.
        for (place, new) in edits.into_iter().rev() {
            let added = new.len().checked_sub(place.len());
            let is_near_the_start = place.start < self.len() - place.end;
            match added {
                Some(added) if is_near_the_start && added <= self.start => {
                    let head = self.start..self.start + place.start;
                    self.start -= added;
                    self.bytes.copy_within(head, self.start);
                    let place = self.start + place.start;
                    self.bytes[place..place + new.len()].copy_from_slice(&new);
                }
                None if is_near_the_start => {
                    let head = self.start..self.start + place.start;
                    self.start += place.len() - new.len();
                    self.bytes.copy_within(head, self.start);
                    let place = self.start + place.start;
                    self.bytes[place..place + new.len()].copy_from_slice(&new);
                }
                _ => {
                    let place = self.start + place.start..self.start + place.end;
                    self.bytes.splice(place, new);
                }
            }
        }
    }

    /// Capacity of its buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns its buffer for reuse.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
    }

    /// Appends a byte.
    pub fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
    }
}

impl Deref for Owned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl From<Vec<u8>> for Owned {
    fn from(bytes: Vec<u8>) -> Owned {
        Owned { bytes, start: 0 }
    }
}

impl From<Owned> for Vec<u8> {
    fn from(mut line: Owned) -> Vec<u8> {
        line.bytes.drain(..line.start);
        line.bytes
    }
}

impl PartialEq for Owned {
    fn eq(&self, other: &Owned) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Owned {}

impl PartialEq<[u8]> for Owned {
    fn eq(&self, other: &[u8]) -> bool {
        self[..] == *other
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::splice;
    use super::*;

    proptest! {
        #[test]
        fn a_line_that_is_edited_in_place_is_the_same_as_a_new_one(
            line in prop::collection::vec(b'a'..=b'z', 0..40),
            room in 0usize..8,
            cuts in prop::collection::btree_set(0usize..40, 0..6),
            news in prop::collection::vec(prop::collection::vec(b'0'..=b'9', 0..12), 3),
        ) {
            let cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= line.len()).collect();
            let places = cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]);
            let edits: Vec<Edit> = places.zip(news).collect();
            let bytes = [&vec![b'.'; room][..], &line].concat();
            let mut owned = Owned::with_headroom(bytes, room);
            let borrowed: Vec<_> = edits.iter().map(|(place, new)| (place.clone(), &new[..])).collect();
            let expected = splice(&line, &borrowed);
            owned.splice(edits.clone());
            prop_assert_eq!(&owned[..], &expected[..]);
            owned.push(b'!');
            prop_assert_eq!(Vec::from(owned), [&expected[..], b"!"].concat());
        }
    }
}
