//! A shim's connection to a daemon: a socket, and perhaps pipes beside it.

use kennel_core::hello::Control;

use crate::coverage::Situation;
use crate::kernel::{End, Kernel, PipeId, ReadResult, Shortage};
use crate::lines::{Inbox, Outbox};

pub(crate) struct DaemonConnection {
    pub(crate) end: End,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    pipes: Pipes,
    /// Ends of pipes that were received.
    along: Option<[PipeId; 2]>,
    said_all: bool,
}

/// How far both sides have switched to the pipes; each with the end to read from and the end to write to.
#[derive(Clone, Copy)]
enum Pipes {
    None,
    Offered([PipeId; 2]),
    /// The shim writes to its pipe.
    Spoken([PipeId; 2]),
    /// Both sides write to their pipes.
    Taken([PipeId; 2]),
}

impl DaemonConnection {
    pub(crate) fn new(end: End, from: Inbox, to: Outbox) -> DaemonConnection {
        DaemonConnection {
            end,
            from,
            to,
            pipes: Pipes::None,
            along: None,
            said_all: false,
        }
    }

    pub(crate) fn is_readable(&self, kernel: &Kernel) -> bool {
        self.from.has_line() || kernel.readable(self.source())
    }

    pub(crate) fn may_flush(&self, kernel: &Kernel) -> bool {
        self.to.may_flush(self.sink(), kernel)
    }

    fn source(&self) -> PipeId {
        match self.pipes {
            Pipes::Taken([from, _]) => from,
            _ => self.end.read,
        }
    }

    fn sink(&self) -> PipeId {
        match self.pipes {
            Pipes::Spoken([_, to]) | Pipes::Taken([_, to]) => to,
            _ => self.end.write,
        }
    }

    /// Reads some bytes; `false` at the end.
    pub(crate) fn read(&mut self, most: usize, kernel: &mut Kernel) -> bool {
        let (heard, along) = kernel.read_with(self.source(), most);
        match along {
            Some(ends) if kernel.shortage == Some(Shortage::Sessions) => {
                kernel.close_lost_pipes(ends)
            }
            Some(ends) => self.along = Some(ends),
            None => {}
        }
        match heard {
            ReadResult::Bytes(bytes) => self.from.add(&bytes),
            ReadResult::WouldBlock => {}
            ReadResult::End => return false,
        }
        true
    }

    /// Handles `!pipes`: the daemon offers pipes, or writes to its pipe from now on.
    pub(crate) fn take_pipes(&mut self, kernel: &mut Kernel) {
        self.pipes = match self.pipes {
            Pipes::None => self.along.take().map_or(Pipes::None, Pipes::Offered),
            Pipes::Spoken(ends) => {
                kernel.occurred(Situation::UsesPipes);
                Pipes::Taken(ends)
            }
            unchanged => unchanged,
        };
    }

    pub(crate) fn send_ahead(&mut self, from_app: &Inbox, kernel: &mut Kernel) {
        let sink = self.sink();
        self.to.send_ahead(from_app, sink, kernel);
    }

    pub(crate) fn flush(&mut self, kernel: &mut Kernel) {
        let sink = self.sink();
        self.to.flush(sink, kernel);
        if let Pipes::Offered(ends) = self.pipes
            && self.to.is_between_lines()
            && !self.said_all
            && kernel.write_line(self.end.write, &Control::Pipes.line())
        {
            self.pipes = Pipes::Spoken(ends);
        }
    }

    /// Closes the sending half; responses still come.
    pub(crate) fn end_input(&mut self, kernel: &mut Kernel) {
        self.said_all = true;
        kernel.close_write(self.sink());
    }

    pub(crate) fn close(self, kernel: &mut Kernel) {
        kernel.close(self.end);
        let taken = match self.pipes {
            Pipes::None => None,
            Pipes::Offered(ends) | Pipes::Spoken(ends) | Pipes::Taken(ends) => Some(ends),
        };
        for [from, to] in taken.into_iter().chain(self.along) {
            kernel.close_read(from);
            kernel.close_write(to);
        }
    }
}
