//! Bytes in, lines out.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use kennel_core::engine::daemon::InputLine;
use kennel_core::message::{Line, Message, Owned, Scan, newline};
use kennel_sys::io::{Handle, Input, Stream};
use kennel_sys::memory;

use super::buffer_pool;
use super::too_long::{Skipped, SkippedLines, Why, is_too_odd, max_odd_line};
use super::{ProgramSizes, SHORT, Sizes, TooLong, max_line, memory_of};

/// Room in front of a long line: whoever gives it another id moves what is before that, and not all the rest.
const ROOM: usize = 64;

/// Cuts what arrives into lines.
#[derive(Debug, Default)]
pub(crate) struct Inbox<S = ProgramSizes> {
    pub(crate) bytes: Vec<u8>,
    /// Where the line begins that was taken last.
    last: usize,
    /// Lines before this were taken.
    taken: usize,
    /// Up to here there is no further newline: what was searched is not searched again.
    searched: usize,
    /// This much in front is no line's.
    room: usize,
    /// What is known of a line that did not come at once.
    scan: Option<Box<Scan>>,
    /// That line was taken.
    scan_is_old: bool,
    /// A line that is too long, of which the rest is skipped.
    skipped: Option<Box<Skipped>>,
    /// Those that have ended, and of which nobody was told.
    too_long: Vec<TooLong>,
    sizes: PhantomData<S>,
}

impl Inbox {
    /// One that has read so much of a line already.
    pub(crate) fn with(bytes: Vec<u8>) -> Inbox {
        Inbox {
            bytes,
            ..Inbox::default()
        }
    }

    /// Continues with what another build had read, and with the lines that it was skipping.
    pub(crate) fn restored(bytes: Vec<u8>, skipped: SkippedLines) -> Inbox {
        let SkippedLines { unfinished, ended } = skipped;
        Inbox {
            skipped: unfinished,
            too_long: ended,
            ..Inbox::with(bytes)
        }
    }

    /// What a newer build needs to continue: the bytes that were not taken, and the lines that are being skipped.
    pub(crate) fn snapshot(&self) -> (&[u8], SkippedLines) {
        let Inbox {
            bytes,
            taken,
            skipped,
            too_long,
            // How far the bytes were searched and scanned is found again.
            last: _,
            searched: _,
            room: _,
            scan: _,
            scan_is_old: _,
            sizes: _,
        } = self;
        let skipped = SkippedLines {
            unfinished: skipped.clone(),
            ended: too_long.clone(),
        };
        (&bytes[*taken..], skipped)
    }

    /// Reads what is there, once.
    pub(crate) fn read(&mut self, from: &impl Input) -> io::Result<usize> {
        let read = from.read_into_spare(self.room());
        self.lend_out_if_empty();
        read
    }

    /// The same, [a little](SHORT).
    pub(crate) fn read_little(&mut self, from: &impl Input) -> io::Result<usize> {
        let mut bytes = [0; SHORT];
        let count = from.read_once(&mut bytes)?;
        self.bytes.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Reads what is there of a socket, up to `most` bytes, with all handles that come along, however many.
    pub(crate) fn receive_with(
        &mut self,
        from: &Stream,
        most: usize,
        along: &mut Vec<Handle>,
    ) -> io::Result<usize> {
        // Most lines are short, and room has to be cleared before: what is cleared takes up memory.
        let first = self.receive_some(from, SHORT.min(most), along)?;
        if first < SHORT || first == most {
            return Ok(first);
        }
        // What goes wrong now goes wrong again when the next is read.
        let more = self.receive_some(from, most - first, along);
        Ok(first + more.unwrap_or_default())
    }

    fn receive_some(
        &mut self,
        from: &Stream,
        most: usize,
        along: &mut Vec<Handle>,
    ) -> io::Result<usize> {
        let bytes = self.room();
        let length = bytes.len();
        bytes.resize(length + most, 0);
        let received = from.receive_with(&mut bytes[length..], along);
        bytes.truncate(length + received.as_ref().map_or(0, |count| *count));
        self.lend_out_if_empty();
        received
    }
}

impl<S: Sizes> Inbox<S> {
    /// What was read and is no whole line yet.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Where to append what is read next, and room for it. Nothing is done to the room beforehand: what
    /// nobody reads into costs neither time nor memory.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        if self.len() >= S::LONG && self.bytes.capacity() < S::AMPLE {
            self.make_ample();
        }
        if !self.grow() {
            // No memory for more of this line is no reason to end the session.
            self.skip_line();
            self.bytes.reserve(S::CHUNK);
        }
        &mut self.bytes
    }

    /// Makes room for [`CHUNK`]; `false` if there is no memory for it.
    fn grow(&mut self) -> bool {
        if self.bytes.capacity() == 0 {
            self.bytes = LENT_OUT.take();
        }
        let room = self.bytes.capacity() - self.bytes.len();
        if room >= S::CHUNK {
            return true;
        }
        let more = match self.bytes.len() {
            length if length >= S::LONG => S::MORE,
            length if length >= S::SHORT && self.widen() => return true,
            _ => S::CHUNK,
        };
        let has_more = self.bytes.try_reserve_exact(more).is_ok();
        has_more || self.bytes.try_reserve_exact(S::CHUNK).is_ok()
    }

    /// Makes room for a line that becomes [`LONG`], in one step: many would leave gaps in the memory that nothing fits into.
    /// Only what is used is copied: the rest takes up no memory.
    fn widen(&mut self) -> bool {
        let mut wide = Vec::new();
        let is_wide = wide.try_reserve_exact(S::LONG + S::CHUNK).is_ok();
        if is_wide {
            wide.extend_from_slice(&self.bytes);
            self.bytes = wide;
        }
        is_wide
    }

    /// The line that has not ended is too long: forgets it, and skips what is still to come of it. Does nothing while a
    /// whole line waits to be taken: that one has ended, and whatever follows it must not be skipped in its place.
    pub(crate) fn skip_line(&mut self) {
        self.skip_line_because(Why::NoRoom);
    }

    /// The same for a line of one among many, while memory is short: little is remembered of it.
    pub(crate) fn forget_line(&mut self) {
        self.skip_line();
        if let Some(skipped) = &mut self.skipped {
            skipped.remember_few();
        }
    }

    fn skip_line_because(&mut self, why: Why) {
        if newline(&self.bytes[self.searched..]).is_some() {
            return;
        }
        if self.skipped.is_none() {
            let scan = self.scan.as_deref().filter(|_| !self.scan_is_old);
            let skipped = Skipped::new(&self.bytes[self.taken..], scan, why);
            self.skipped = Some(Box::new(skipped));
        }
        self.bytes = Vec::new();
        (self.last, self.taken, self.searched, self.room) = (0, 0, 0, 0);
        (self.scan, self.scan_is_old) = (None, false);
    }

    /// Whether a line is skipped, the end of which has not come.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipped.is_some()
    }

    /// A line that was too long; `at_once`, or when it has ended. To be asked for whenever there is no further line: more
    /// may follow it.
    pub(crate) fn next_too_long(&mut self, at_once: bool) -> Option<TooLong> {
        if !self.too_long.is_empty() {
            return Some(self.too_long.remove(0));
        }
        let skipped = self.skipped.as_mut().filter(|_| at_once)?;
        skipped.known()
    }

    /// Skips what came of a line that is too long; `true` once it has ended, and nobody has to be told of it.
    fn skip(&mut self) -> bool {
        let Some(skipped) = &mut self.skipped else {
            return true;
        };
        let came = &self.bytes[self.taken..];
        let Some(offset) = newline(came) else {
            skipped.goes_on(came);
            self.bytes.clear();
            (self.last, self.taken, self.searched, self.room) = (0, 0, 0, 0);
            self.keep_little();
            return false;
        };
        skipped.goes_on(&came[..offset]);
        self.taken += offset + 1;
        (self.last, self.searched) = (self.taken, self.taken);
        self.skipping_ended()
    }

    fn skipping_ended(&mut self) -> bool {
        let ended = self.skipped.take().and_then(|skipped| skipped.ended());
        let is_told = ended.is_none();
        self.too_long.extend(ended);
        is_told
    }

    /// A whole line that is too long; `true` if nobody has to be told of it.
    fn pass_over(&mut self, end: usize, why: Why) -> bool {
        let scan = self.scan.take();
        let skipped = Skipped::new(&self.bytes[self.taken..end], scan.as_deref(), why);
        self.skipped = Some(Box::new(skipped));
        self.taken = end + 1;
        (self.last, self.searched) = (self.taken, self.taken);
        self.skipping_ended()
    }

    fn make_ample(&mut self) {
        let mut ample = buffer_pool::take().unwrap_or_default();
        if ample.capacity() < S::AMPLE {
            if ample.try_reserve_exact(S::AMPLE).is_err() {
                return;
            }
            memory::in_large_pages(ample.spare_capacity_mut());
        }
        ample.resize(ROOM, 0);
        ample.extend_from_slice(&self.bytes[self.taken..]);
        self.searched = self.searched - self.taken + ROOM;
        (self.last, self.taken, self.room) = (ROOM, ROOM, ROOM);
        self.bytes = ample;
    }

    /// The next whole line, without its newline.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        self.next_message().map(|line| line.bytes())
    }

    /// The same, with what is known of it already.
    pub(crate) fn next_message(&mut self) -> Option<Line<'_>> {
        if std::mem::take(&mut self.scan_is_old) {
            self.scan = None;
        }
        if self.skipped.is_some() && !self.skip() {
            return None;
        }
        loop {
            let Some(offset) = newline(&self.bytes[self.searched..]) else {
                self.searched = self.bytes.len();
                self.compact();
                self.look_ahead();
                return None;
            };
            let end = self.searched + offset;
            let length = end - self.taken;
            let is_short = length <= S::LEAST_MAX_LINE || length <= max_line();
            let is_odd = length > S::LEAST_MAX_LINE && self.is_odd_to(end);
            if is_short && !is_odd {
                self.last = std::mem::replace(&mut self.taken, end + 1);
                self.searched = end + 1;
                self.scan_is_old = true;
                return Some(self.last_message());
            }
            let why = match is_short {
                true => Why::Odd(max_odd_line()),
                false => Why::Limit(max_line()),
            };
            if !self.pass_over(end, why) {
                return None;
            }
        }
    }

    /// Looks at what has come of a line that is not short, while it is at hand: when all of it has come, it is known.
    fn look_ahead(&mut self) {
        if self.len() >= S::CHUNK {
            let scan = self.scan.get_or_insert_default();
            scan.look_at(&self.bytes[self.taken..]);
        }
        if self.len() <= S::LEAST_MAX_LINE {
            return;
        }
        if self.len() > max_line() {
            self.skip_line_because(Why::Limit(max_line()));
        } else if is_too_odd(self.len(), self.scan.as_deref()) {
            self.skip_line_because(Why::Odd(max_odd_line()));
        }
    }

    /// Whether the line that ends here is too long for what it is.
    fn is_odd_to(&mut self, end: usize) -> bool {
        let length = end - self.taken;
        if length <= max_odd_line() {
            return false;
        }
        let scan = self.scan.get_or_insert_default();
        scan.look_at(&self.bytes[self.taken..end]);
        is_too_odd(length, Some(scan))
    }

    /// The same for whoever has a use for the line itself. A long one that came alone changes hands without a copy.
    pub(crate) fn next_input(&mut self) -> Option<InputLine<'_>> {
        self.next_message()?;
        if self.last_is_long_and_alone() {
            let mut all = std::mem::take(self);
            self.too_long = std::mem::take(&mut all.too_long);
            all.bytes.pop();
            let scan = all.scan.unwrap_or_default();
            return Some(InputLine::Moved(
                Owned::behind_room(all.bytes, all.room),
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

    /// The same to keep, and where in it the line begins; only of a long one that came alone.
    pub(crate) fn take_last(&mut self) -> Option<(Vec<u8>, usize)> {
        if !self.last_is_long_and_alone() {
            return None;
        }
        let Inbox {
            bytes,
            room,
            too_long,
            ..
        } = std::mem::take(self);
        self.too_long = too_long;
        Some((bytes, room))
    }

    fn last_is_long_and_alone(&self) -> bool {
        let line = self.last..self.taken;
        line.len() > S::KEPT && line == (self.room..self.bytes.len())
    }

    /// No more will come: what came after the last newline is a line, too.
    pub(crate) fn end(&mut self) {
        if self.skipped.is_some() {
            self.skip();
            self.skipping_ended();
        }
        if self.taken < self.bytes.len() {
            self.bytes.push(b'\n');
        }
    }

    /// Whether the line that has not ended is seen to ask or tell something, and is more than its newline short.
    pub(crate) fn begins_a_call(&self) -> bool {
        let scan = self.scan.as_ref().filter(|_| !self.scan_is_old);
        scan.is_some_and(|scan| scan.begins_a_call())
    }

    /// No more will come of a server. A message that it did not write to its end is dropped: what it was about is lost with
    /// the server.
    pub(crate) fn end_of_server(&mut self) {
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

    /// What came after the last newline of a server, at the end of its output; `None` also for a message that it did not
    /// write to its end.
    pub(crate) fn rest_of_server(&mut self) -> Option<Vec<u8>> {
        self.rest().filter(|rest| !is_cut_off(rest))
    }

    /// What came after the last newline, at the end of input: a last line without one.
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

    /// How much of a line is there that has not ended.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// How much memory that takes up.
    pub(crate) fn memory(&self) -> usize {
        memory_of(self.len(), self.bytes.capacity())
    }

    /// Forgets the lines that were taken, now and not with the next one: there may be none for hours.
    fn compact(&mut self) {
        if self.taken == self.room {
            return;
        }
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        (self.last, self.taken, self.room) = (0, 0, 0);
        self.keep_little();
    }

    /// Gives back what a long line needed. If nothing waits here, whoever reads next may have the room: many that are silent take
    /// up no more memory than one.
    fn keep_little(&mut self) {
        self.bytes.shrink_to(S::KEPT);
        self.lend_out_if_empty();
    }

    fn lend_out_if_empty(&mut self) {
        if self.bytes.is_empty() && self.bytes.capacity() <= S::KEPT {
            LENT_OUT.set(std::mem::take(&mut self.bytes));
        }
    }
}

thread_local! {
    /// The room of the one that was emptied last.
    static LENT_OUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Whether a last line without a newline is the beginning of a message.
fn is_cut_off(line: &[u8]) -> bool {
    let is_message = line
        .trim_ascii_start()
        .first()
        .is_some_and(|first| b"{[".contains(first));
    is_message && Message::parse(line).is_err()
}
