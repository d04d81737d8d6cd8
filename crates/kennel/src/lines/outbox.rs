//! Lines waiting to be written.

use std::io;

use kennel_core::hello::VOID;

use super::{CHUNK, Inbox, KEPT, give_back};

/// Lines on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
    /// This much of a line that is not here yet was sent ahead.
    ahead: usize,
    /// What is to be said right behind that line.
    behind: Vec<u8>,
    /// What was sent is not what was said, or not in that order.
    uncounted: bool,
    /// Some of the queued bytes are not lines of the session.
    has_asides: bool,
}

impl Outbox {
    /// Adds a line and its newline.
    pub(crate) fn push(&mut self, line: &[u8]) {
        self.recall();
        self.compact();
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
    }

    /// Adds a line of Kennel's own, which the session does not count.
    pub(crate) fn push_aside(&mut self, line: &[u8]) {
        self.push(line);
        self.has_asides = true;
    }

    /// Whether queued bytes are not all of the session's lines.
    pub(crate) fn has_asides(&self) -> bool {
        self.has_asides
    }

    /// The same for one who would not understand that a line which was begun is not said: it waits for the end of that. Not
    /// for ever: where much waits, the line must wait instead, whatever the other side makes of its beginning.
    pub(crate) fn push_in_turn(&mut self, line: &[u8]) {
        if self.ahead == 0 {
            return self.push(line);
        }
        self.uncounted = true;
        self.behind.extend_from_slice(line);
        self.behind.push(b'\n');
        if self.behind.len() > CHUNK {
            self.recall();
        }
    }

    /// Adds what is left of a line and its newline: the other side has the beginning.
    pub(crate) fn push_rest(&mut self, rest: &[u8]) {
        self.bytes.extend_from_slice(rest);
    }

    /// Adds the line that was taken last, but for what of it was sent ahead. A long one that came alone changes hands
    /// without a copy.
    pub(crate) fn push_last(&mut self, from: &mut Inbox) {
        let ahead = std::mem::take(&mut self.ahead);
        if self.is_empty()
            && let Some((bytes, start)) = from.take_last()
        {
            (self.bytes, self.sent) = (bytes, start + ahead);
        } else {
            self.compact();
            self.bytes.extend_from_slice(&from.last()[ahead..]);
        }
        self.bytes.append(&mut self.behind);
    }

    /// Sends what has come of a line before all of it is here, if nothing else waits and the line is long.
    pub(crate) fn send_ahead(
        &mut self,
        from: &Inbox,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) {
        let line = from.unfinished();
        if !self.is_empty() || line.len() < CHUNK {
            return;
        }
        while self.ahead < line.len()
            && let Ok(count @ 1..) = write(&line[self.ahead..])
        {
            self.ahead += count;
        }
    }

    /// What was sent ahead was not said.
    pub(crate) fn recall(&mut self) {
        if std::mem::take(&mut self.ahead) > 0 {
            self.uncounted = true;
            self.has_asides = true;
            self.bytes.extend_from_slice(&[VOID, b'\n']);
            self.bytes.append(&mut self.behind);
        }
    }

    /// How much was sent of a line that is not here yet.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Whether just what was said was sent, in that order: then it can be counted how much of it was heard.
    pub(crate) fn is_counted(&self) -> bool {
        !self.uncounted
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What waits of the first line, with its newline.
    pub(crate) fn rest_of_line(&self) -> &[u8] {
        let waiting = &self.bytes[self.sent..];
        let end = waiting.iter().position(|&byte| byte == b'\n');
        end.map_or(&[], |end| &waiting[..=end])
    }

    /// Whether all that was begun has been said.
    pub(crate) fn is_between_lines(&self) -> bool {
        self.is_empty() && self.ahead == 0
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

    /// A reader that never quite keeps up never empties it: before more is added, what was sent is given back all the
    /// same. Only when that is more than what is left, so that no byte is moved more than once.
    fn compact(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Forgets what waits.
    pub(crate) fn clear(&mut self) {
        if self.bytes.capacity() > KEPT {
            give_back(std::mem::take(&mut self.bytes));
        }
        self.bytes.clear();
        self.sent = 0;
        self.has_asides = false;
    }
}
