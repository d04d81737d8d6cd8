//! Splits input into lines, and queues lines to be written.

use kennel_core::hello::ABORT_BYTE;
use kennel_core::message::Scan;

use crate::coverage::Situation;
use crate::kernel::{Kernel, PipeId, ReadResult};

/// Minimum bytes of an incomplete line that is sent ahead: few, so that it happens.
const MIN_SENT_AHEAD: usize = 300;

/// Splits the bytes that are read into lines.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Restores the bytes of an older build.
    pub(crate) fn of(bytes: Vec<u8>) -> Inbox {
        Inbox { bytes }
    }

    /// Reads at most this many bytes; `false` at the end.
    pub(crate) fn read(&mut self, from: PipeId, most: usize, kernel: &mut Kernel) -> bool {
        match kernel.read(from, most) {
            ReadResult::Bytes(bytes) => self.add(&bytes),
            ReadResult::WouldBlock => {}
            ReadResult::End => return false,
        }
        true
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its newline.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.bytes.iter().position(|&byte| byte == b'\n')?;
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    pub(crate) fn has_line(&self) -> bool {
        self.bytes.contains(&b'\n')
    }

    /// All bytes that were read and not taken.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// The beginning of an incomplete line, if there is no complete one.
    fn unfinished(&self) -> &[u8] {
        match self.has_line() {
            true => &[],
            false => &self.bytes,
        }
    }

    /// Whether the incomplete line is the beginning of a request or notification and lacks more than its newline.
    pub(crate) fn begins_a_call(&self) -> bool {
        let line = self.unfinished();
        let mut scan = Scan::default();
        scan.scan(line);
        line.len() >= MIN_SENT_AHEAD && scan.begins_a_call()
    }
}

/// Bytes queued to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// Bytes of an incomplete line that were sent ahead.
    ahead: usize,
    /// Lines to send directly after that line.
    after_partial: Vec<u8>,
    /// The sent bytes differ from the queued lines, or their order does.
    bytes_differ: bool,
    /// Some of the queued bytes are not lines of the session.
    has_control_lines: bool,
    /// Bytes that were dropped because there is no reader.
    dropped: usize,
    /// Some of those were not lines of the session.
    dropped_control_lines: bool,
}

impl Outbox {
    /// Restores the bytes of an older build.
    pub(crate) fn of(bytes: Vec<u8>) -> Outbox {
        Outbox {
            bytes,
            ..Outbox::default()
        }
    }

    pub(crate) fn push(&mut self, line: &[u8], kernel: &mut Kernel) {
        self.abort_partial_line(kernel);
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
    }

    /// Queues a line of Kennel's own, which the session does not count.
    pub(crate) fn push_control_line(&mut self, line: &[u8], kernel: &mut Kernel) {
        self.push(line, kernel);
        self.has_control_lines = true;
    }

    /// Number of the last bytes of the session that were certainly not written.
    pub(crate) fn unwritten(&self) -> usize {
        match self.has_control_lines || self.dropped_control_lines {
            true => 0,
            false => self.dropped + self.len(),
        }
    }

    /// Queues a line for a server, which does not know aborted lines: it waits for the end of the line that was sent in part.
    pub(crate) fn push_after_partial_line(&mut self, line: &[u8], kernel: &mut Kernel) {
        if self.ahead == 0 {
            return self.push(line, kernel);
        }
        self.bytes_differ = true;
        self.after_partial.extend_from_slice(line);
        self.after_partial.push(b'\n');
    }

    /// Queues a line whose beginning may have been sent ahead.
    pub(crate) fn push_begun(&mut self, line: &[u8]) {
        let ahead = std::mem::take(&mut self.ahead);
        self.bytes.extend_from_slice(&line[ahead..]);
        self.bytes.push(b'\n');
        self.bytes.append(&mut self.after_partial);
    }

    /// Sends the beginning of a long line, if nothing is queued before it.
    pub(crate) fn send_ahead(&mut self, from: &Inbox, to: PipeId, kernel: &mut Kernel) {
        let line = from.unfinished();
        if !self.is_empty() || line.len() < MIN_SENT_AHEAD {
            return;
        }
        let count = kernel.write(to, &line[self.ahead..]);
        if count > 0 {
            kernel.occurred(Situation::SentAhead);
        }
        self.ahead += count;
    }

    /// Ends a line that was sent in part with [`ABORT_BYTE`], so that the receiver drops it.
    pub(crate) fn abort_partial_line(&mut self, kernel: &mut Kernel) {
        if std::mem::take(&mut self.ahead) > 0 {
            kernel.occurred(Situation::Aborted);
            self.bytes_differ = true;
            self.has_control_lines = true;
            self.bytes.extend_from_slice(&[ABORT_BYTE, b'\n']);
            self.bytes.append(&mut self.after_partial);
        }
    }

    /// Bytes of an incomplete line that were sent ahead.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Whether exactly the queued lines were sent, in order.
    pub(crate) fn matches_queued_lines(&self) -> bool {
        !self.bytes_differ
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether no line is queued or sent in part.
    pub(crate) fn is_between_lines(&self) -> bool {
        self.is_empty() && self.ahead == 0
    }

    /// The queued bytes.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether some bytes could be written or dropped now.
    pub(crate) fn may_flush(&self, to: PipeId, kernel: &Kernel) -> bool {
        !self.is_empty() && (kernel.has_room(to) || kernel.has_no_reader(to))
    }

    /// Writes as much as fits. Drops the bytes if there is no reader.
    pub(crate) fn flush(&mut self, to: PipeId, kernel: &mut Kernel) {
        self.flush_some(to, usize::MAX, kernel);
    }

    /// Writes at most this many bytes.
    pub(crate) fn flush_some(&mut self, to: PipeId, most: usize, kernel: &mut Kernel) {
        if kernel.has_no_reader(to) {
            self.dropped += self.bytes.len();
            self.dropped_control_lines |= std::mem::take(&mut self.has_control_lines);
            return self.bytes.clear();
        }
        let count = kernel.write(to, &self.bytes[..self.bytes.len().min(most)]);
        self.bytes.drain(..count);
        self.has_control_lines &= !self.bytes.is_empty();
    }
}
