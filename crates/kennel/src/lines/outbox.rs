//! Queues lines to be written.

use std::io;

use kennel_core::hello::ABORT_BYTE;

use super::{CHUNK, Inbox, MAX_RETAINED, release_buffer};

/// Lines queued for one receiver.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
    /// Bytes that were sent ahead of a line that is not complete yet.
    ahead: usize,
    /// Lines to send directly after that line.
    after_partial: Vec<u8>,
    /// The sent bytes differ from the queued lines, or their order does.
    bytes_differ: bool,
    /// Some of the queued bytes are not lines of the session.
    has_control_lines: bool,
}

impl Outbox {
    /// Queues a line and its newline. Aborts a line that was sent in part.
    pub(crate) fn push(&mut self, line: &[u8]) {
        self.abort_partial_line();
        self.compact();
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
    }

    /// Queues a line of Kennel's own, which the session does not count.
    pub(crate) fn push_control_line(&mut self, line: &[u8]) {
        self.push(line);
        self.has_control_lines = true;
    }

    /// Whether some of the queued bytes are not lines of the session.
    pub(crate) fn has_control_lines(&self) -> bool {
        self.has_control_lines
    }

    /// Like [`push`](Self::push), for a receiver that does not know aborted lines: the line waits for the end of the
    /// partly sent line. If more than [`CHUNK`] bytes wait, the partly sent line is aborted after all.
    pub(crate) fn push_after_partial_line(&mut self, line: &[u8]) {
        if self.ahead == 0 {
            return self.push(line);
        }
        self.bytes_differ = true;
        self.after_partial.extend_from_slice(line);
        self.after_partial.push(b'\n');
        if self.after_partial.len() > CHUNK {
            self.abort_partial_line();
        }
    }

    /// Queues the rest of a line and its newline: the receiver has the beginning.
    pub(crate) fn push_rest(&mut self, rest: &[u8]) {
        self.bytes.extend_from_slice(rest);
    }

    /// Queues the line that was taken last from an inbox, without the bytes sent ahead. Moves a long line that is alone in
    /// the inbox instead of copying it.
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
        self.bytes.append(&mut self.after_partial);
    }

    /// Sends the beginning of a long incomplete line, if nothing else is queued.
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

    /// Ends a line that was sent in part with [`ABORT_BYTE`], so that the receiver drops it.
    pub(crate) fn abort_partial_line(&mut self) {
        if std::mem::take(&mut self.ahead) > 0 {
            self.bytes_differ = true;
            self.has_control_lines = true;
            self.bytes.extend_from_slice(&[ABORT_BYTE, b'\n']);
            self.bytes.append(&mut self.after_partial);
        }
    }

    /// Number of bytes sent ahead of a line that is not complete yet.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Whether exactly the queued lines were sent, in order: then the bytes that were not read tell which lines were not.
    pub(crate) fn matches_queued_lines(&self) -> bool {
        !self.bytes_differ
    }

    /// Number of queued bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The unwritten rest of the first line, with its newline.
    pub(crate) fn rest_of_line(&self) -> &[u8] {
        let waiting = &self.bytes[self.sent..];
        let end = waiting.iter().position(|&byte| byte == b'\n');
        end.map_or(&[], |end| &waiting[..=end])
    }

    /// Whether no line is queued or sent in part.
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

    /// Removes the sent bytes, so that a queue which never becomes empty does not grow. Only if they are more than the rest,
    /// so that no byte is moved more than once.
    fn compact(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Drops the queued bytes.
    pub(crate) fn clear(&mut self) {
        if self.bytes.capacity() > MAX_RETAINED {
            release_buffer(std::mem::take(&mut self.bytes));
        }
        self.bytes.clear();
        self.sent = 0;
        self.has_control_lines = false;
    }
}
