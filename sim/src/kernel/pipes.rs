//! Pipes and sockets.

use std::collections::VecDeque;

use super::{End, Heard, Kernel, Pid, Pipe, PipeId};

impl Kernel {
    pub(crate) fn pipe(&mut self, writer: Pid, reader: Pid) -> PipeId {
        self.next += 1;
        let pipe = Pipe {
            lines: VecDeque::new(),
            writer: Some(writer).filter(|pid| self.alive(*pid)),
            reader: Some(reader).filter(|pid| self.alive(*pid)),
        };
        let id = PipeId(self.next);
        self.pipes.insert(id, pipe);
        id
    }

    pub(crate) fn pair(&mut self, one: Pid, other: Pid) -> (End, End) {
        let (there, back) = (self.pipe(one, other), self.pipe(other, one));
        let its = |read, write, peer| End { read, write, peer };
        (its(back, there, other), its(there, back, one))
    }

    /// Whether anybody will ever read it.
    pub(crate) fn write(&mut self, pipe: PipeId, line: &[u8]) -> bool {
        match self.pipes.get_mut(&pipe) {
            Some(pipe) if pipe.reader.is_some() => {
                pipe.lines.push_back(line.to_vec());
                true
            }
            _ => false,
        }
    }

    pub(crate) fn read(&mut self, pipe: PipeId) -> Heard {
        match self.pipes.get_mut(&pipe) {
            None => Heard::End,
            Some(pipe) => match pipe.lines.pop_front() {
                Some(line) => Heard::Line(line),
                None if pipe.writer.is_none() => Heard::End,
                None => Heard::Nothing,
            },
        }
    }

    pub(crate) fn waiting(&self, pipe: PipeId) -> usize {
        self.pipes.get(&pipe).map_or(0, |pipe| pipe.lines.len())
    }

    /// How many bytes are in it that were not read, newlines included.
    pub(crate) fn unread(&self, pipe: PipeId) -> usize {
        let lines = self.pipes.get(&pipe).map(|pipe| &pipe.lines);
        lines.map_or(0, |lines| lines.iter().map(|line| line.len() + 1).sum())
    }

    /// Whether a read would not wait.
    pub(crate) fn readable(&self, pipe: PipeId) -> bool {
        self.pipes
            .get(&pipe)
            .is_none_or(|pipe| !pipe.lines.is_empty() || pipe.writer.is_none())
    }

    /// Nobody reads it any more.
    pub(crate) fn is_deaf(&self, pipe: PipeId) -> bool {
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
        if let Some(pipe) = self.pipes.get_mut(&pipe) {
            pipe.reader = None;
        }
    }

    pub(crate) fn hang_up(&mut self, end: End) {
        self.close_write(end.write);
        self.close_read(end.read);
    }
}
