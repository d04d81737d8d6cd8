//! Bytes in, lines out; and lines waiting to be written.

use std::io;

/// What a buffer may keep for the next time: what a 32 MB line needed is given back.
const KEPT: usize = 64 * 1024;

/// Cuts what arrives into lines.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// Lines before this were taken.
    taken: usize,
    /// Up to here there is no further newline: what was searched is not searched again.
    searched: usize,
}

impl Inbox {
    /// Room for `read` to put up to `most` bytes in; returns what `read` did.
    pub(crate) fn fill(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.compact();
        let start = self.bytes.len();
        self.bytes.resize(start + most, 0);
        let outcome = read(&mut self.bytes[start..]);
        self.bytes
            .truncate(start + outcome.as_ref().copied().unwrap_or(0));
        outcome
    }

    /// The next whole line, without its newline.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        let newline = self.bytes[self.searched..]
            .iter()
            .position(|&byte| byte == b'\n');
        let Some(offset) = newline else {
            self.searched = self.bytes.len();
            return None;
        };
        let end = self.searched + offset;
        let start = std::mem::replace(&mut self.taken, end + 1);
        self.searched = end + 1;
        Some(&self.bytes[start..end])
    }

    /// What came after the last newline, at the end of input: a last line without one.
    pub(crate) fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.split_off(self.taken);
        *self = Inbox::default();
        (!rest.is_empty()).then_some(rest)
    }

    fn compact(&mut self) {
        if self.taken == 0 {
            return;
        }
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        if self.bytes.capacity() > KEPT && self.bytes.len() < KEPT {
            self.bytes.shrink_to(KEPT);
        }
    }
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(())
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
        let count = inbox.fill(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            Ok(bytes.len())
        });
        assert_eq!(count.unwrap(), bytes.len());
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
        feed(&mut inbox, b"next\n");
        assert!(
            inbox.bytes.capacity() <= KEPT * 2,
            "{}",
            inbox.bytes.capacity()
        );

        let mut outbox = Outbox::default();
        outbox.push(&vec![b'x'; 8 << 20]);
        outbox.flush(|bytes| Ok(bytes.len().min(65536))).unwrap();
        assert!(outbox.bytes.capacity() <= KEPT);
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
