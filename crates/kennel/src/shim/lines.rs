//! Bytes in, lines out; and lines waiting to be written.

use std::io;
use std::os::fd::AsFd;

use kennel_sys::memory;
use rustix::buffer::spare_capacity;

/// There is room for this much at least whenever something is read.
pub(crate) const CHUNK: usize = 64 * 1024;
/// What a buffer may keep for the next time: what a 32 MB line needed is given back.
const KEPT: usize = 2 * CHUNK;
/// A line that is as long as this and has not ended gets [`AMPLE`] room at once: nothing is used of that before it
/// is filled, and it is not moved from place to place.
const LONG: usize = 4 * CHUNK;
const AMPLE: usize = 64 << 20;

/// Cuts what arrives into lines.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// Where the line begins that was taken last.
    last: usize,
    /// Lines before this were taken.
    taken: usize,
    /// Up to here there is no further newline: what was searched is not searched again.
    searched: usize,
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

    /// Where to append what is read next, and room for it. Nothing is done to the room beforehand: what
    /// nobody reads into costs neither time nor memory.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        if self.bytes.len() >= LONG
            && self.bytes.capacity() < AMPLE
            && self
                .bytes
                .try_reserve_exact(AMPLE - self.bytes.len())
                .is_ok()
        {
            memory::in_large_pages(self.bytes.spare_capacity_mut());
        }
        self.bytes.reserve(CHUNK);
        &mut self.bytes
    }

    /// The next whole line, without its newline.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        let Some(offset) = newline(&self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            self.compact();
            return None;
        };
        let end = self.searched + offset;
        self.last = std::mem::replace(&mut self.taken, end + 1);
        self.searched = end + 1;
        Some(&self.bytes[self.last..end])
    }

    /// No more will come: what came after the last newline is a line, too.
    pub(crate) fn end(&mut self) {
        if self.taken < self.bytes.len() {
            self.bytes.push(b'\n');
        }
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
        if self.taken == 0 {
            return;
        }
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        (self.last, self.taken) = (0, 0);
        self.bytes.shrink_to(KEPT);
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

/// Lines on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Adds a line and its newline.
    pub(crate) fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
    }

    /// Adds the line that was taken last. A long one that came alone changes hands without a copy.
    pub(crate) fn push_last(&mut self, from: &mut Inbox) {
        let line = from.last..from.taken;
        if self.is_empty() && line.len() > KEPT && line == (0..from.bytes.len()) {
            *self = Outbox {
                bytes: std::mem::take(from).bytes,
                sent: 0,
            };
        } else {
            self.bytes.extend_from_slice(&from.bytes[line]);
        }
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes until all is written or `write` would block.
    pub(crate) fn flush(
        &mut self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.compact();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(())
    }

    /// A reader that never quite keeps up never empties it: what was sent is given back all the same. Only
    /// when that is more than what is left, so that no byte is moved more than once.
    fn compact(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Forgets what waits.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(inbox: &mut Inbox, bytes: &[u8]) {
        inbox.room().extend_from_slice(bytes);
    }

    fn lines(inbox: &mut Inbox) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| inbox.next_line().map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn lines_are_the_same_wherever_the_bytes_were_cut() {
        let text = "{\"a\":\"€😀\"}\n\n{\"b\":1}\r\nlast";
        for cut in 0..=text.len() {
            let mut inbox = Inbox::default();
            feed(&mut inbox, &text.as_bytes()[..cut]);
            let mut all = lines(&mut inbox);
            feed(&mut inbox, &text.as_bytes()[cut..]);
            all.extend(lines(&mut inbox));
            let expected: Vec<&[u8]> = vec!["{\"a\":\"€😀\"}".as_bytes(), b"", b"{\"b\":1}\r"];
            assert_eq!(all, expected, "cut at {cut}");
            assert_eq!(inbox.rest().as_deref(), Some(&b"last"[..]));
        }
    }

    #[test]
    fn room_taken_for_a_long_line_is_given_back() {
        let mut inbox = Inbox::default();
        feed(&mut inbox, &vec![b'x'; 8 << 20]);
        assert_eq!(inbox.next_line(), None);
        feed(&mut inbox, b"\nshort\n");
        assert_eq!(lines(&mut inbox).len(), 2);
        assert!(inbox.bytes.capacity() <= KEPT);

        let mut outbox = Outbox::default();
        outbox.push(&vec![b'x'; 8 << 20]);
        outbox.flush(|bytes| Ok(bytes.len().min(65536))).unwrap();
        assert!(outbox.bytes.capacity() <= KEPT);
    }

    #[test]
    fn a_line_passed_on_is_the_same_whether_it_changes_hands_or_is_copied() {
        for length in [3, KEPT, 1 << 20] {
            let line = "x".repeat(length);
            for (before, behind) in [("", ""), ("before\n", ""), ("", "behind\n"), ("", "part")] {
                for waiting in ["", "waits\n"] {
                    let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
                    outbox.bytes.extend_from_slice(waiting.as_bytes());
                    feed(&mut inbox, format!("{before}{line}\n{behind}").as_bytes());
                    while inbox.next_line().is_some() {
                        outbox.push_last(&mut inbox);
                    }
                    let whole = behind.strip_suffix("part").unwrap_or(behind);
                    let expected = format!("{waiting}{before}{line}\n{whole}");
                    assert!(
                        outbox.bytes == expected.as_bytes(),
                        "{length} {before:?} {behind:?}"
                    );
                    feed(&mut inbox, b" and more\n");
                    let more = format!("{} and more", &behind[whole.len()..]);
                    assert_eq!(lines(&mut inbox), [more.as_bytes()]);
                    outbox.flush(|bytes| Ok(bytes.len().min(65536))).unwrap();
                    assert!(outbox.bytes.capacity() <= KEPT && inbox.bytes.capacity() <= KEPT);
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_written_now_waits_in_order() {
        let mut outbox = Outbox::default();
        outbox.push(b"one");
        outbox.push(b"two");
        let mut written = Vec::new();
        let mut budget = 5;
        outbox
            .flush(|bytes| {
                let count = bytes.len().min(budget);
                budget -= count;
                written.extend_from_slice(&bytes[..count]);
                if count == 0 {
                    Err(io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(count)
                }
            })
            .unwrap();
        assert_eq!((written.as_slice(), outbox.len()), (&b"one\nt"[..], 3));
        outbox
            .flush(|bytes| {
                written.extend_from_slice(bytes);
                Ok(bytes.len())
            })
            .unwrap();
        assert_eq!(written, b"one\ntwo\n");
        assert!(outbox.is_empty());
    }
}
