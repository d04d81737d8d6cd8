//! Splits input into lines, and queues lines to be written.

pub(crate) mod buffer_pool;
mod inbox;
mod outbox;
#[cfg(test)]
mod tests;
mod too_long;

pub(crate) use inbox::{Inbox, retain_nothing};
pub(crate) use outbox::Outbox;
#[cfg(feature = "fuzzing")]
pub(crate) use too_long::set_any_max_line;
pub(crate) use too_long::{SkippedLines, TooLong, max_line, set_max_line, set_max_odd_line};

use crate::size::{DEFAULT_MAX_LINE, MIN_MAX_LINE};

/// Minimum free bytes in a buffer before each read.
pub(crate) const CHUNK: usize = 64 * 1024;
/// Bytes of a small read: the first one from a socket, which may pass descriptors.
pub(crate) const SMALL_READ: usize = 4096;
/// Maximum capacity in bytes that a buffer keeps between two lines: the memory of a 32 MB line is freed.
const MAX_RETAINED: usize = 2 * CHUNK;
/// An incomplete line of this many bytes gets a buffer of [`LARGE_BUFFER`] bytes at once: its pages use no memory before they
/// are filled, and the line is not copied each time it grows.
const LARGE_LINE: usize = 4 * CHUNK;
/// Capacity in bytes of the buffer of a large line.
const LARGE_BUFFER: usize = 64 << 20;
/// Bytes by which the buffer of an even longer line grows.
const GROWTH_STEP: usize = 16 << 20;

/// The buffer sizes of an inbox. The fuzz target for lines has small ones, so that a few bytes reach states that need
/// megabytes here.
pub(crate) trait InboxSizes: Default {
    const CHUNK: usize;
    const SMALL_READ: usize;
    const MAX_RETAINED: usize;
    const LARGE_LINE: usize;
    const LARGE_BUFFER: usize;
    const GROWTH_STEP: usize;
    const MIN_MAX_LINE: usize;
}

/// The sizes of the program.
#[derive(Debug, Default)]
pub(crate) struct ProgramSizes;

impl InboxSizes for ProgramSizes {
    const CHUNK: usize = CHUNK;
    const SMALL_READ: usize = SMALL_READ;
    const MAX_RETAINED: usize = MAX_RETAINED;
    const LARGE_LINE: usize = LARGE_LINE;
    const LARGE_BUFFER: usize = LARGE_BUFFER;
    const GROWTH_STEP: usize = GROWTH_STEP;
    const MIN_MAX_LINE: usize = MIN_MAX_LINE;
}

/// Bytes of a large page, which large buffers use where the system has them.
const LARGE_PAGE: usize = 2 << 20;

/// Bytes of memory that a line of this length uses in a buffer of this capacity.
pub(crate) fn memory_of(length: usize, capacity: usize) -> usize {
    match capacity >= LARGE_BUFFER {
        true => length.next_multiple_of(LARGE_PAGE),
        false => length,
    }
}

/// Frees the buffer of a line, or pools it if it is a large one.
pub(crate) fn release_buffer(bytes: Vec<u8>) {
    if bytes.capacity() == LARGE_BUFFER {
        buffer_pool::put(bytes);
    }
}
