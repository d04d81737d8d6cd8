//! Forwards the server's stderr to the app. The queue is bounded, because many apps never read stderr.

use std::collections::VecDeque;
use std::io;

/// Maximum bytes queued for an app that does not read stderr; above it, the oldest lines are dropped.
const MAX_QUEUED_BYTES: usize = 256 * 1024;

/// Lines for the app's stderr.
#[derive(Debug, Default)]
pub(super) struct StderrQueue {
    lines: VecDeque<Vec<u8>>,
    /// Number of written bytes of the first line.
    written: usize,
    bytes: usize,
    /// Number of lines dropped since the last written line.
    dropped: usize,
}

impl StderrQueue {
    /// Queues a line; drops the oldest ones above [`MAX_QUEUED_BYTES`].
    pub(super) fn push(&mut self, line: &[u8]) {
        let mut queued = Vec::with_capacity(line.len() + 1);
        queued.extend_from_slice(line);
        queued.push(b'\n');
        self.bytes += queued.len();
        self.lines.push_back(queued);
        // A line that was written in part is not dropped.
        let begun = usize::from(self.written > 0);
        while self.bytes > MAX_QUEUED_BYTES && self.lines.len() > begun {
            let oldest = self
                .lines
                .remove(begun)
                .expect("it has more lines than that");
            self.bytes -= oldest.len();
            self.dropped += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Writes until all is written or `write` would block. Any other error means that there is no reader: drops all lines.
    pub(super) fn flush(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) {
        loop {
            if self.written == 0 && self.dropped > 0 {
                let note = format!(
                    "kennel: {} lines of the server's stderr were dropped: stderr was not read\n",
                    std::mem::take(&mut self.dropped)
                );
                self.bytes += note.len();
                self.lines.push_front(note.into_bytes());
            }
            let Some(line) = self.lines.front() else {
                return;
            };
            match write(&line[self.written..]) {
                Ok(count @ 1..) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return *self = StderrQueue::default(),
            }
            if self.written == line.len() {
                self.bytes -= line.len();
                self.written = 0;
                self.lines.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes out at most `room` bytes.
    fn written(queue: &mut StderrQueue, room: usize) -> String {
        let mut all = Vec::new();
        queue.flush(|bytes| {
            let count = bytes.len().min(room - all.len());
            all.extend_from_slice(&bytes[..count]);
            match count {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                count => Ok(count),
            }
        });
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn the_oldest_lines_are_dropped_and_a_note_says_how_many() {
        let mut queue = StderrQueue::default();
        queue.push(b"begun");
        assert_eq!(written(&mut queue, 3), "beg");
        for number in 0..1000 {
            queue.push(format!("{number:01000}").as_bytes());
        }
        assert!(queue.bytes <= MAX_QUEUED_BYTES);
        let all = written(&mut queue, usize::MAX);
        let mut lines = all.lines();
        assert_eq!(lines.next(), Some("un"));
        let note = lines.next().unwrap();
        let dropped = 1000 - lines.clone().count();
        assert!(note.contains(&format!("kennel: {dropped} lines")), "{note}");
        assert_eq!(lines.next_back(), Some(&*format!("{:01000}", 999)));
        assert!(queue.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn a_line_longer_than_the_limit_is_dropped_and_an_error_drops_all() {
        let mut queue = StderrQueue::default();
        queue.push(&vec![b'x'; MAX_QUEUED_BYTES]);
        queue.push(b"short");
        let all = written(&mut queue, usize::MAX);
        assert!(
            all.contains("kennel: 1 lines") && all.ends_with("\nshort\n"),
            "{all}"
        );
        queue.push(b"more");
        queue.flush(|_| Err(io::ErrorKind::BrokenPipe.into()));
        assert!(queue.is_empty() && queue.bytes == 0);
    }
}
