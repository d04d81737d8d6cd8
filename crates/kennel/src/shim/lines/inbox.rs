//! Bytes in, lines out.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use kennel_core::message::{Line, Owned, Scan};
use kennel_sys::memory;
use rustix::buffer::spare_capacity;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{AMPLE, CHUNK, KEPT, LONG, SHORT};
use crate::shim::spare;

/// Room in front of a long line: whoever gives it another id moves what is before that, and not all the rest.
const ROOM: usize = 64;

/// Cuts what arrives into lines.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(super) bytes: Vec<u8>,
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
}

impl Inbox {
    /// One that has read so much of a line already.
    pub(crate) fn with(bytes: Vec<u8>) -> Inbox {
        Inbox {
            bytes,
            ..Inbox::default()
        }
    }

    /// What was read and is no whole line yet.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Reads what is there, once.
    pub(crate) fn read(&mut self, from: impl AsFd) -> io::Result<usize> {
        Ok(rustix::io::read(from, spare_capacity(self.room()))?)
    }

    /// The same of a socket. The kernel asks less of whoever reads it as one than of whoever reads it as a file.
    pub(crate) fn receive(&mut self, from: impl AsFd) -> io::Result<usize> {
        let room = spare_capacity(self.room());
        let (_, count) = rustix::net::recv(from, room, RecvFlags::empty())?;
        Ok(count)
    }

    /// The same, [a little](SHORT), with the descriptors that come along.
    pub(crate) fn receive_with(
        &mut self,
        from: impl AsFd,
        along: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let mut bytes = [0; SHORT];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut came = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(from, &mut room, &mut came, RecvFlags::CMSG_CLOEXEC)?;
        for message in came.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                along.extend(descriptors);
            }
        }
        self.room().extend_from_slice(&bytes[..received.bytes]);
        Ok(received.bytes)
    }

    /// Where to append what is read next, and room for it. Nothing is done to the room beforehand: what
    /// nobody reads into costs neither time nor memory.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        if self.len() >= LONG && self.bytes.capacity() < AMPLE {
            self.make_ample();
        }
        self.bytes.reserve(CHUNK);
        &mut self.bytes
    }

    fn make_ample(&mut self) {
        let mut ample = spare::take().unwrap_or_default();
        if ample.capacity() < AMPLE {
            if ample.try_reserve_exact(AMPLE).is_err() {
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
        let Some(offset) = newline(&self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            self.compact();
            self.look_ahead();
            return None;
        };
        let end = self.searched + offset;
        self.last = std::mem::replace(&mut self.taken, end + 1);
        self.searched = end + 1;
        self.scan_is_old = true;
        Some(self.last_message())
    }

    /// Looks at what has come of a line that is not short, while it is at hand: when all of it has come, it is known.
    fn look_ahead(&mut self) {
        if self.len() >= CHUNK {
            let scan = self.scan.get_or_insert_default();
            scan.look_at(&self.bytes[self.taken..]);
        }
    }

    /// The same for whoever has a use for the line itself. A long one that came alone changes hands without a copy.
    pub(crate) fn next_spoken(&mut self) -> Option<Spoken<'_>> {
        self.next_message()?;
        if self.last_is_long_and_alone() {
            let mut all = std::mem::take(self);
            all.bytes.pop();
            let scan = all.scan.unwrap_or_default();
            return Some(Spoken::Taken(Owned::behind_room(all.bytes, all.room), scan));
        }
        Some(Spoken::Seen(self.last_message()))
    }

    fn last_message(&self) -> Line<'_> {
        let line = &self.bytes[self.last..self.taken - 1];
        match &self.scan {
            Some(scan) => Line::scanned(line, scan),
            None => Line::from(line),
        }
    }

    /// The line that was taken last, with its newline.
    pub(super) fn last(&self) -> &[u8] {
        &self.bytes[self.last..self.taken]
    }

    /// The same to keep, and where in it the line begins; only of a long one that came alone.
    pub(super) fn take_last(&mut self) -> Option<(Vec<u8>, usize)> {
        if !self.last_is_long_and_alone() {
            return None;
        }
        let Inbox { bytes, room, .. } = std::mem::take(self);
        Some((bytes, room))
    }

    fn last_is_long_and_alone(&self) -> bool {
        let line = self.last..self.taken;
        line.len() > KEPT && line == (self.room..self.bytes.len())
    }

    /// No more will come: what came after the last newline is a line, too.
    pub(crate) fn end(&mut self) {
        if self.taken < self.bytes.len() {
            self.bytes.push(b'\n');
        }
    }

    /// Whether the line that has not ended is seen to ask or tell something, and is more than its newline short.
    pub(crate) fn begins_a_call(&self) -> bool {
        let scan = self.scan.as_ref().filter(|_| !self.scan_is_old);
        scan.is_some_and(|scan| scan.begins_a_call())
    }

    /// What came after the last newline, at the end of input: a last line without one.
    pub(crate) fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.split_off(self.taken);
        *self = Inbox::default();
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

    /// Forgets the lines that were taken, now and not with the next one: there may be none for hours.
    fn compact(&mut self) {
        if self.taken == self.room {
            return;
        }
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        (self.last, self.taken, self.room) = (0, 0, 0);
        self.bytes.shrink_to(KEPT);
    }
}

/// A line that was said.
#[derive(Debug)]
pub(crate) enum Spoken<'a> {
    Seen(Line<'a>),
    /// It is ours, with what is known of it.
    Taken(Owned, Box<Scan>),
}

impl Spoken<'_> {
    pub(crate) fn line(&self) -> Line<'_> {
        match self {
            Spoken::Seen(line) => *line,
            Spoken::Taken(line, scan) => Line::scanned(line, scan),
        }
    }
}

impl<'a> From<&'a [u8]> for Spoken<'a> {
    fn from(line: &'a [u8]) -> Spoken<'a> {
        Spoken::Seen(line.into())
    }
}

/// Where the first newline is. Block by block: a long line spends much of its time here.
fn newline(bytes: &[u8]) -> Option<usize> {
    let (blocks, _) = bytes.as_chunks::<64>();
    // All of a block, whatever is in it: so it is looked at in a few steps.
    let has_none =
        |block: &&[u8; 64]| !block.iter().fold(false, |any, &byte| any | (byte == b'\n'));
    let passed = 64 * blocks.iter().take_while(has_none).count();
    let offset = bytes[passed..].iter().position(|&byte| byte == b'\n')?;
    Some(passed + offset)
}
