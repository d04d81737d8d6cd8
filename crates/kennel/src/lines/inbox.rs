//! Splits input into lines.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use kennel_core::engine::daemon::InputLine;
use kennel_core::message::{Line, Message, Owned, Scan, newline};
use kennel_sys::io::{Handle, Input, Stream};
use kennel_sys::memory;

use super::buffer_pool;
use super::too_long::{SkipReason, SkippedLine, SkippedLines, is_too_odd, max_odd_line};
use super::{InboxSizes, ProgramSizes, SMALL_READ, TooLong, max_line, memory_of};

/// Bytes of headroom before a long line, so that a longer id can be spliced in without moving the whole line.
const HEADROOM: usize = 64;

/// Splits the bytes that are read into lines.
#[derive(Debug, Default)]
pub(crate) struct Inbox<S = ProgramSizes> {
    pub(crate) bytes: Vec<u8>,
    /// Start of the line that was taken last.
    last: usize,
    /// End of the lines that were taken.
    taken: usize,
    /// No newline is between `taken` and here: these bytes are not searched again.
    searched: usize,
    /// Bytes of headroom.
    headroom: usize,
    /// Scan of a line that needs several reads.
    scan: Option<Box<Scan>>,
    /// The scanned line was taken.
    scan_is_stale: bool,
    /// A line that is too long; the rest of it is skipped.
    skipped: Option<Box<SkippedLine>>,
    /// SkippedLine lines that have ended and are not reported yet.
    too_long: Vec<TooLong>,
    sizes: PhantomData<S>,
}

impl Inbox {
    /// An inbox that has read these bytes already.
    pub(crate) fn with(bytes: Vec<u8>) -> Inbox {
        Inbox {
            bytes,
            ..Inbox::default()
        }
    }

    /// Restores the bytes that another build had read, and the lines that it was skipping.
    pub(crate) fn restored(bytes: Vec<u8>, skipped: SkippedLines) -> Inbox {
        let SkippedLines { unfinished, ended } = skipped;
        Inbox {
            skipped: unfinished,
            too_long: ended,
            ..Inbox::with(bytes)
        }
    }

    /// The state for a newer build: the bytes that were not taken, and the lines that are being skipped.
    pub(crate) fn snapshot(&self) -> (&[u8], SkippedLines) {
        let Inbox {
            bytes,
            taken,
            skipped,
            too_long,
            // The newer build searches and scans the bytes again.
            last: _,
            searched: _,
            headroom: _,
            scan: _,
            scan_is_stale: _,
            sizes: _,
        } = self;
        let skipped = SkippedLines {
            unfinished: skipped.clone(),
            ended: too_long.clone(),
        };
        (&bytes[*taken..], skipped)
    }

    /// Reads once, as much as fits in the buffer.
    pub(crate) fn read(&mut self, from: &impl Input) -> io::Result<usize> {
        let read = from.read_into_spare(self.read_buffer());
        self.pool_if_empty();
        read
    }

    /// Reads once, at most [`SMALL_READ`] bytes.
    pub(crate) fn read_small(&mut self, from: &impl Input) -> io::Result<usize> {
        let mut bytes = [0; SMALL_READ];
        let count = from.read_once(&mut bytes)?;
        self.bytes.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Reads from a socket, at most `most` bytes, with all handles passed with them.
    pub(crate) fn receive_with(
        &mut self,
        from: &Stream,
        most: usize,
        along: &mut Vec<Handle>,
    ) -> io::Result<usize> {
        // Most lines are short, and the buffer must be cleared before this read: cleared pages use memory.
        let first = self.receive_some(from, SMALL_READ.min(most), along)?;
        if first < SMALL_READ || first == most {
            return Ok(first);
        }
        // The next read returns the error again.
        let more = self.receive_some(from, most - first, along);
        Ok(first + more.unwrap_or_default())
    }

    fn receive_some(
        &mut self,
        from: &Stream,
        most: usize,
        along: &mut Vec<Handle>,
    ) -> io::Result<usize> {
        let bytes = self.read_buffer();
        let length = bytes.len();
        bytes.resize(length + most, 0);
        let received = from.receive_with(&mut bytes[length..], along);
        bytes.truncate(length + received.as_ref().map_or(0, |count| *count));
        self.pool_if_empty();
        received
    }
}

impl<S: InboxSizes> Inbox<S> {
    /// The bytes of the incomplete line.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// The buffer to append the next read to, with at least [`CHUNK`] bytes of spare capacity. The spare bytes are not
    /// cleared: unused ones cost neither time nor memory.
    pub(crate) fn read_buffer(&mut self) -> &mut Vec<u8> {
        if self.len() >= S::LARGE_LINE && self.bytes.capacity() < S::LARGE_BUFFER {
            self.use_large_buffer();
        }
        if !self.grow() {
            // A lack of memory for this line must not end the session.
            self.skip_line();
            self.bytes.reserve(S::CHUNK);
        }
        &mut self.bytes
    }

    /// Reserves at least [`CHUNK`] bytes; `false` if there is no memory for them.
    fn grow(&mut self) -> bool {
        if self.bytes.capacity() == 0 {
            self.bytes = THREAD_BUFFER.take();
        }
        let room = self.bytes.capacity() - self.bytes.len();
        if room >= S::CHUNK {
            return true;
        }
        let more = match self.bytes.len() {
            length if length >= S::LARGE_LINE => S::GROWTH_STEP,
            length if length >= S::SMALL_READ && self.reserve_large_line() => return true,
            _ => S::CHUNK,
        };
        let has_more = self.bytes.try_reserve_exact(more).is_ok();
        has_more || self.bytes.try_reserve_exact(S::CHUNK).is_ok()
    }

    /// Reserves the bytes of a [`LARGE_LINE`] in one step: many steps would fragment the memory. Copies only the used bytes:
    /// the rest uses no memory.
    fn reserve_large_line(&mut self) -> bool {
        let mut larger = Vec::new();
        let is_reserved = larger.try_reserve_exact(S::LARGE_LINE + S::CHUNK).is_ok();
        if is_reserved {
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        is_reserved
    }

    /// Drops the incomplete line as too long, and skips the rest of it when it arrives. Does nothing while a complete line
    /// waits to be taken: that line has ended, and the line after it must not be skipped instead.
    pub(crate) fn skip_line(&mut self) {
        self.skip_line_for(SkipReason::NoRoom);
    }

    /// Like [`skip_line`](Self::skip_line), for a client among many while memory is short: stores little of the line.
    pub(crate) fn skip_line_in_shortage(&mut self) {
        self.skip_line();
        if let Some(skipped) = &mut self.skipped {
            skipped.limit_elements();
        }
    }

    fn skip_line_for(&mut self, why: SkipReason) {
        if newline(&self.bytes[self.searched..]).is_some() {
            return;
        }
        let read = &self.bytes[self.taken..];
        match &mut self.skipped {
            Some(skipped) => skipped.feed(read),
            None => {
                let scan = self.scan.as_deref().filter(|_| !self.scan_is_stale);
                self.skipped = Some(Box::new(SkippedLine::new(read, scan, why)));
            }
        }
        self.bytes = Vec::new();
        (self.last, self.taken, self.searched, self.headroom) = (0, 0, 0, 0);
        (self.scan, self.scan_is_stale) = (None, false);
    }

    /// Whether the rest of an over-long line is still being skipped.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipped.is_some()
    }

    /// Takes the next line that was too long, once it has ended or, if `at_once`, once its id is known. Call it after all
    /// other complete lines are taken: more lines may follow.
    pub(crate) fn next_too_long(&mut self, at_once: bool) -> Option<TooLong> {
        if !self.too_long.is_empty() {
            return Some(self.too_long.remove(0));
        }
        let skipped = self.skipped.as_mut().filter(|_| at_once)?;
        skipped.report_early()
    }

    /// Skips the bytes read of a line that is too long; `true` once it has ended and needs no report.
    fn skip(&mut self) -> bool {
        let Some(skipped) = &mut self.skipped else {
            return true;
        };
        let read = &self.bytes[self.taken..];
        let Some(offset) = newline(read) else {
            skipped.feed(read);
            self.bytes.clear();
            (self.last, self.taken, self.searched, self.headroom) = (0, 0, 0, 0);
            self.shrink_buffer();
            return false;
        };
        skipped.feed(&read[..offset]);
        self.taken += offset + 1;
        (self.last, self.searched) = (self.taken, self.taken);
        self.finish_skipping()
    }

    /// Ends the skipped line; `true` if it needs no report.
    fn finish_skipping(&mut self) -> bool {
        let ended = self.skipped.take().and_then(|skipped| skipped.finish());
        let is_reported = ended.is_none();
        self.too_long.extend(ended);
        is_reported
    }

    /// Skips a complete line that is too long; `true` if it needs no report.
    fn skip_whole_line(&mut self, end: usize, why: SkipReason) -> bool {
        let scan = self.scan.take();
        let skipped = SkippedLine::new(&self.bytes[self.taken..end], scan.as_deref(), why);
        self.skipped = Some(Box::new(skipped));
        self.taken = end + 1;
        (self.last, self.searched) = (self.taken, self.taken);
        self.finish_skipping()
    }

    /// Moves the incomplete line to a buffer of [`LARGE_BUFFER`] bytes, if there is memory for it.
    fn use_large_buffer(&mut self) {
        let mut buffer = buffer_pool::take().unwrap_or_default();
        if buffer.capacity() < S::LARGE_BUFFER {
            if buffer.try_reserve_exact(S::LARGE_BUFFER).is_err() {
                return;
            }
            memory::in_large_pages(buffer.spare_capacity_mut());
        }
        buffer.resize(HEADROOM, 0);
        buffer.extend_from_slice(&self.bytes[self.taken..]);
        self.searched = self.searched - self.taken + HEADROOM;
        (self.last, self.taken, self.headroom) = (HEADROOM, HEADROOM, HEADROOM);
        self.bytes = buffer;
    }

    /// The next whole line, without its newline.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        self.next_message().map(|line| line.bytes())
    }

    /// The next whole line, with its scan if it was scanned.
    pub(crate) fn next_message(&mut self) -> Option<Line<'_>> {
        if std::mem::take(&mut self.scan_is_stale) {
            self.scan = None;
        }
        if self.skipped.is_some() && !self.skip() {
            return None;
        }
        loop {
            let Some(offset) = newline(&self.bytes[self.searched..]) else {
                self.searched = self.bytes.len();
                self.compact();
                self.scan_unfinished();
                return None;
            };
            let end = self.searched + offset;
            let length = end - self.taken;
            let is_short = length <= S::MIN_MAX_LINE || length <= max_line();
            let is_odd = length > S::MIN_MAX_LINE && self.is_too_odd_up_to(end);
            if is_short && !is_odd {
                self.last = std::mem::replace(&mut self.taken, end + 1);
                self.searched = end + 1;
                self.scan_is_stale = true;
                return Some(self.last_message());
            }
            let why = match is_short {
                true => SkipReason::Odd(max_odd_line()),
                false => SkipReason::Limit(max_line()),
            };
            if !self.skip_whole_line(end, why) {
                return None;
            }
        }
    }

    /// Scans the incomplete line, unless it is short, while its bytes are in the CPU cache; skips it if it is too long.
    fn scan_unfinished(&mut self) {
        if self.len() >= S::CHUNK {
            let scan = self.scan.get_or_insert_default();
            scan.scan(&self.bytes[self.taken..]);
        }
        if self.len() <= S::MIN_MAX_LINE {
            return;
        }
        if self.len() > max_line() {
            self.skip_line_for(SkipReason::Limit(max_line()));
        } else if is_too_odd(self.len(), self.scan.as_deref()) {
            self.skip_line_for(SkipReason::Odd(max_odd_line()));
        }
    }

    /// Whether the line that ends at `end` is [odd](SkipReason::Odd) and too long for that.
    fn is_too_odd_up_to(&mut self, end: usize) -> bool {
        let length = end - self.taken;
        if length <= max_odd_line() {
            return false;
        }
        let scan = self.scan.get_or_insert_default();
        scan.scan(&self.bytes[self.taken..end]);
        is_too_odd(length, Some(scan))
    }

    /// Like [`next_message`](Self::next_message), but moves a long line out if it is alone in the inbox.
    pub(crate) fn next_input(&mut self) -> Option<InputLine<'_>> {
        self.next_message()?;
        if self.last_is_long_and_alone() {
            let mut all = std::mem::take(self);
            self.too_long = std::mem::take(&mut all.too_long);
            all.bytes.pop();
            let scan = all.scan.unwrap_or_default();
            return Some(InputLine::Moved(
                Owned::with_headroom(all.bytes, all.headroom),
                scan,
            ));
        }
        Some(InputLine::Lent(self.last_message()))
    }

    fn last_message(&self) -> Line<'_> {
        let line = &self.bytes[self.last..self.taken - 1];
        match &self.scan {
            Some(scan) => Line::scanned(line, scan),
            None => Line::from(line),
        }
    }

    /// The line that was taken last, with its newline.
    pub(crate) fn last(&self) -> &[u8] {
        &self.bytes[self.last..self.taken]
    }

    /// Moves the buffer of the last taken line out, and returns it with the start of the line. Only for a long line that
    /// is alone in the inbox.
    pub(crate) fn take_last(&mut self) -> Option<(Vec<u8>, usize)> {
        if !self.last_is_long_and_alone() {
            return None;
        }
        let Inbox {
            bytes,
            headroom,
            too_long,
            ..
        } = std::mem::take(self);
        self.too_long = too_long;
        Some((bytes, headroom))
    }

    fn last_is_long_and_alone(&self) -> bool {
        let line = self.last..self.taken;
        line.len() > S::MAX_RETAINED && line == (self.headroom..self.bytes.len())
    }

    /// Ends the input: the bytes after the last newline become a line.
    pub(crate) fn end(&mut self) {
        if self.skipped.is_some() {
            self.skip();
            self.finish_skipping();
        }
        if self.taken < self.bytes.len() {
            self.bytes.push(b'\n');
        }
    }

    /// Whether the incomplete line is the beginning of a request or notification and lacks more than its newline.
    pub(crate) fn begins_a_call(&self) -> bool {
        let scan = self.scan.as_ref().filter(|_| !self.scan_is_stale);
        scan.is_some_and(|scan| scan.begins_a_call())
    }

    /// Ends the output of a server. Drops a message that it did not write completely: its requests are lost with the server.
    pub(crate) fn end_server_output(&mut self) {
        let newline = self.bytes[self.taken..]
            .iter()
            .rposition(|&byte| byte == b'\n');
        let start = newline.map_or(self.taken, |at| self.taken + at + 1);
        if self.skipped.is_none() && is_cut_off(&self.bytes[start..]) {
            self.bytes.truncate(start);
            self.searched = self.searched.min(start);
            self.scan = None;
        }
        self.end();
    }

    /// The bytes after the last newline, at the end of a server's output; `None` also for a message that the server did not
    /// write completely.
    pub(crate) fn rest_of_server_output(&mut self) -> Option<Vec<u8>> {
        self.rest().filter(|rest| !is_cut_off(rest))
    }

    /// The bytes after the last newline, at the end of input: a last line without a newline.
    pub(crate) fn rest(&mut self) -> Option<Vec<u8>> {
        if self.skipped.is_some() {
            self.end();
        }
        let rest = self.bytes.split_off(self.taken);
        let too_long = std::mem::take(&mut self.too_long);
        *self = Inbox {
            too_long,
            ..Inbox::default()
        };
        (!rest.is_empty()).then_some(rest)
    }

    /// The first byte that was not taken.
    pub(crate) fn first(&self) -> Option<u8> {
        self.bytes.get(self.taken).copied()
    }

    /// Number of bytes that were not taken.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Bytes of memory that those use.
    pub(crate) fn memory(&self) -> usize {
        memory_of(self.len(), self.bytes.capacity())
    }

    /// Frees the lines that were taken, without waiting for the next line, which may come hours later.
    pub(crate) fn compact(&mut self) {
        if self.taken == self.headroom {
            return;
        }
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        (self.last, self.taken, self.headroom) = (0, 0, 0);
        self.shrink_buffer();
    }

    /// Frees the memory of a long line. An empty buffer goes to the thread's pool: many idle inboxes use no more memory than
    /// one.
    fn shrink_buffer(&mut self) {
        let is_exact = RETAINS_NOTHING.get() && !self.bytes.is_empty();
        let retained = if is_exact { 0 } else { S::MAX_RETAINED };
        self.bytes.shrink_to(retained);
        self.pool_if_empty();
    }

    fn pool_if_empty(&mut self) {
        if self.bytes.is_empty() && self.bytes.capacity() <= S::MAX_RETAINED {
            THREAD_BUFFER.set(std::mem::take(&mut self.bytes));
        }
    }
}

thread_local! {
    /// The buffer of the last inbox that became empty, for the next inbox that reads.
    static THREAD_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Whether buffers with an incomplete line retain no memory beside it.
    static RETAINS_NOTHING: Cell<bool> = const { Cell::new(false) };
}

/// From now on, the inboxes of this thread free all memory beside their incomplete lines whenever lines were taken. Of one
/// inbox that memory is little, and saves time; of hundreds it is more than all lines that they hold, and is not counted.
pub(crate) fn retain_nothing() {
    RETAINS_NOTHING.set(true);
}

/// Whether a last line without a newline is the beginning of a message that was not written completely.
fn is_cut_off(line: &[u8]) -> bool {
    let is_message = line
        .trim_ascii_start()
        .first()
        .is_some_and(|first| b"{[".contains(first));
    is_message && Message::parse(line).is_err()
}
