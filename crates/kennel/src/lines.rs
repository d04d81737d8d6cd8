//! Bytes in, lines out; and lines waiting to be written.

pub(crate) mod buffer_pool;
mod inbox;
mod outbox;
#[cfg(test)]
mod tests;
mod too_long;

pub(crate) use inbox::Inbox;
pub(crate) use outbox::Outbox;
#[cfg(feature = "fuzzing")]
pub(crate) use too_long::set_any_max_line;
pub(crate) use too_long::{SkippedLines, TooLong, max_line, set_max_line, set_max_odd_line};

use crate::size::{DEFAULT_MAX_LINE, LEAST_MAX_LINE};

/// There is room for this much at least whenever something is read.
pub(crate) const CHUNK: usize = 64 * 1024;
/// What is read at once where something may come along with it.
pub(crate) const SHORT: usize = 4096;
/// What a buffer may keep for the next time: what a 32 MB line needed is given back.
const KEPT: usize = 2 * CHUNK;
/// A line that is as long as this and has not ended gets [`AMPLE`] room at once: nothing is used of that before it
/// is filled, and it is not moved from place to place.
const LONG: usize = 4 * CHUNK;
const AMPLE: usize = 64 << 20;
/// By this much a longer one grows.
const MORE: usize = 16 << 20;

/// The sizes of an inbox. The fuzz target for lines has small ones, so that few bytes reach what needs megabytes here.
pub(crate) trait Sizes: Default {
    const CHUNK: usize;
    const SHORT: usize;
    const KEPT: usize;
    const LONG: usize;
    const AMPLE: usize;
    const MORE: usize;
    const LEAST_MAX_LINE: usize;
}

/// The sizes of the program.
#[derive(Debug, Default)]
pub(crate) struct ProgramSizes;

impl Sizes for ProgramSizes {
    const CHUNK: usize = CHUNK;
    const SHORT: usize = SHORT;
    const KEPT: usize = KEPT;
    const LONG: usize = LONG;
    const AMPLE: usize = AMPLE;
    const MORE: usize = MORE;
    const LEAST_MAX_LINE: usize = LEAST_MAX_LINE;
}

/// What such room is in, where the system has large pages.
const LARGE_PAGE: usize = 2 << 20;

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
        buffer_pool::keep(bytes);
    }
}
