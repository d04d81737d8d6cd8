//! Pipes and sockets with a small capacity.

use std::collections::VecDeque;

use super::{End, Kernel, Pid, Pipe, PipeId, ReadResult};
use crate::coverage::Situation;

impl Kernel {
    /// Creates a pipe.
    pub(crate) fn pipe(&mut self, writer: Pid, reader: Pid) -> PipeId {
        self.next += 1;
        let pipe = Pipe {
            bytes: VecDeque::new(),
            writer: Some(writer).filter(|pid| self.alive(*pid)),
            reader: Some(reader).filter(|pid| self.alive(*pid)),
            passed: None,
        };
        let id = PipeId(self.next);
        self.pipes.insert(id, pipe);
        id
    }

    /// Creates a pair of connected sockets.
    pub(crate) fn pair(&mut self, one: Pid, other: Pid) -> (End, End) {
        let (there, back) = (self.pipe(one, other), self.pipe(other, one));
        let its = |read, write, peer| End { read, write, peer };
        (its(back, there, other), its(there, back, one))
    }

    /// Writes as much as fits, and returns the number of bytes.
    pub(crate) fn write(&mut self, pipe: PipeId, bytes: &[u8]) -> usize {
        let room = self.settings.room;
        let Some(pipe) = self.pipes.get_mut(&pipe).filter(|it| it.reader.is_some()) else {
            return 0;
        };
        let count = bytes.len().min(room.saturating_sub(pipe.bytes.len()));
        pipe.bytes.extend(&bytes[..count]);
        if count > 0 && count < bytes.len() {
            self.occurred(Situation::PartialWrite);
        }
        count
    }

    /// Writes a short line and its newline, completely or not at all.
    pub(crate) fn write_line(&mut self, pipe: PipeId, line: &[u8]) -> bool {
        let fits = self
            .pipes
            .get(&pipe)
            .is_some_and(|it| it.bytes.len() + line.len() < self.settings.room);
        fits && self.write(pipe, &[line, b"\n"].concat()) > 0
    }

    /// Writes a short line, and passes two ends of pipes to the reader: to read from, and to write to.
    pub(crate) fn write_with_pipes(
        &mut self,
        pipe: PipeId,
        line: &[u8],
        ends: [PipeId; 2],
    ) -> bool {
        let at = self.waiting(pipe);
        let written = self.write_line(pipe, line);
        if let Some(pipe) = self.pipes.get_mut(&pipe).filter(|_| written) {
            pipe.passed = Some((at, ends));
        }
        written
    }

    /// Reads at most `most` bytes. Ends of pipes passed with them are lost.
    pub(crate) fn read(&mut self, pipe: PipeId, most: usize) -> ReadResult {
        let (result, passed) = self.read_with_pipes(pipe, most);
        passed
            .into_iter()
            .for_each(|ends| self.close_lost_pipes(ends));
        result
    }

    /// Reads at most `most` bytes, and takes the ends of pipes passed with them.
    pub(crate) fn read_with_pipes(
        &mut self,
        pipe: PipeId,
        most: usize,
    ) -> (ReadResult, Option<[PipeId; 2]>) {
        let Some(pipe) = self.pipes.get_mut(&pipe) else {
            return (ReadResult::End, None);
        };
        let count = pipe.bytes.len().min(most.max(1));
        if count == 0 {
            let result = match pipe.writer {
                None => ReadResult::End,
                Some(_) => ReadResult::WouldBlock,
            };
            return (result, None);
        }
        let bytes: Vec<u8> = pipe.bytes.drain(..count).collect();
        let mut passed = None;
        pipe.passed = match pipe.passed.take() {
            Some((at, ends)) if at < count => {
                passed = Some(ends);
                None
            }
            later => later.map(|(at, ends)| (at - count, ends)),
        };
        if bytes.last() != Some(&b'\n') {
            self.occurred(Situation::PartialRead);
        }
        (ReadResult::Bytes(bytes), passed)
    }

    /// Closes ends of pipes that were not received.
    pub(crate) fn close_lost_pipes(&mut self, [input, output]: [PipeId; 2]) {
        self.occurred(Situation::LosesPipes);
        self.close_read(input);
        self.close_write(output);
    }

    /// Number of unread bytes.
    pub(crate) fn waiting(&self, pipe: PipeId) -> usize {
        self.pipes.get(&pipe).map_or(0, |pipe| pipe.bytes.len())
    }

    /// Whether a write would not block.
    pub(crate) fn has_room(&self, pipe: PipeId) -> bool {
        !self.has_no_reader(pipe) && self.waiting(pipe) < self.settings.room
    }

    /// Whether a read would not block.
    pub(crate) fn readable(&self, pipe: PipeId) -> bool {
        self.pipes
            .get(&pipe)
            .is_none_or(|pipe| !pipe.bytes.is_empty() || pipe.writer.is_none())
    }

    /// Whether it is empty and has no writer.
    pub(crate) fn has_ended(&self, pipe: PipeId) -> bool {
        self.readable(pipe) && self.waiting(pipe) == 0
    }

    /// Whether it has no reader.
    pub(crate) fn has_no_reader(&self, pipe: PipeId) -> bool {
        self.pipes
            .get(&pipe)
            .is_none_or(|pipe| pipe.reader.is_none())
    }

    pub(crate) fn close_write(&mut self, pipe: PipeId) {
        if let Some(pipe) = self.pipes.get_mut(&pipe) {
            pipe.writer = None;
        }
    }

    pub(crate) fn close_read(&mut self, pipe: PipeId) {
        let passed = self.pipes.get_mut(&pipe).and_then(|pipe| {
            pipe.reader = None;
            pipe.passed.take()
        });
        if let Some((_, ends)) = passed {
            self.close_lost_pipes(ends);
        }
    }

    pub(crate) fn close(&mut self, end: End) {
        self.close_write(end.write);
        self.close_read(end.read);
    }
}
