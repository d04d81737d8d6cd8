//! Bytes in, lines out; and lines waiting to be written.

mod inbox;
mod outbox;
#[cfg(test)]
mod tests;
mod too_long;

pub(crate) use inbox::Inbox;
pub(crate) use outbox::Outbox;
pub(crate) use too_long::{TooLong, max_line, set_max_line, set_max_odd_line};

use std::cell::Cell;

use crate::size::{DEFAULT_MAX_LINE, LEAST_MAX_LINE};

use super::spare;

/// There is room for this much at least whenever something is read.
pub(crate) const CHUNK: usize = 64 * 1024;
/// What is read at once where something may come along with it.
pub(crate) const SHORT: usize = 4096;
/// What a buffer may keep for the next time: what a 32 MB line needed is given back.
const KEPT: usize = 2 * CHUNK;
/// What all buffers of this thread may keep together, if they are many. None is asked to keep less than [`SHORT`].
const KEPT_TOGETHER: usize = 4 << 20;
/// A line that is as long as this and has not ended gets [`AMPLE`] room at once: nothing is used of that before it
/// is filled, and it is not moved from place to place.
const LONG: usize = 4 * CHUNK;
const AMPLE: usize = 64 << 20;
/// By this much a longer one grows.
const MORE: usize = 16 << 20;

/// What such room is in, where the system has large pages.
const LARGE_PAGE: usize = 2 << 20;

thread_local! {
    /// What a buffer may keep, as many as there are.
    static KEPT_BY_EACH: Cell<usize> = const { Cell::new(KEPT) };
}

/// Says how many buffers there are: the more, the less each of them keeps.
pub(crate) fn share_among(buffers: usize) {
    let each = KEPT_TOGETHER / buffers.max(1);
    KEPT_BY_EACH.set(each.clamp(SHORT, KEPT));
}

/// How much memory a line takes up of which so many bytes are there.
pub(crate) fn memory_of(length: usize, capacity: usize) -> usize {
    match capacity >= AMPLE {
        true => length.next_multiple_of(LARGE_PAGE),
        false => length,
    }
}

/// Memory that a line does not need any more. What was ample may be of use to the next one.
pub(crate) fn give_back(bytes: Vec<u8>) {
    if bytes.capacity() == AMPLE {
        spare::keep(bytes);
    }
}
