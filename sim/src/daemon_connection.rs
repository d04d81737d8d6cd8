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
    received: Option<[PipeId; 2]>,
    input_ended: bool,
}

/// How far both sides have switched to the pipes; each with the end to read from and the end to write to.
#[derive(Clone, Copy)]
enum Pipes {
    None,
    Offered([PipeId; 2]),
    /// The shim writes to its pipe.
    Sending([PipeId; 2]),
    /// Both sides write to their pipes.
    InUse([PipeId; 2]),
}

impl DaemonConnection {
    pub(crate) fn new(end: End, from: Inbox, to: Outbox) -> DaemonConnection {
        DaemonConnection {
            end,
            from,
            to,
            pipes: Pipes::None,
            received: None,
            input_ended: false,
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
            Pipes::InUse([from, _]) => from,
            _ => self.end.read,
        }
    }

    fn sink(&self) -> PipeId {
        match self.pipes {
            Pipes::Sending([_, to]) | Pipes::InUse([_, to]) => to,
            _ => self.end.write,
        }
    }

    /// Reads some bytes; `false` at the end.
    pub(crate) fn read(&mut self, most: usize, kernel: &mut Kernel) -> bool {
        let (result, received) = kernel.read_with_pipes(self.source(), most);
        match received {
            Some(ends) if kernel.shortage == Some(Shortage::Sessions) => {
                kernel.close_lost_pipes(ends)
            }
            Some(ends) => self.received = Some(ends),
            None => {}
        }
        match result {
            ReadResult::Bytes(bytes) => self.from.add(&bytes),
            ReadResult::WouldBlock => {}
            ReadResult::End => return false,
        }
        true
    }

    /// Handles `!pipes`: the daemon offers pipes, or writes to its pipe from now on.
    pub(crate) fn take_pipes(&mut self, kernel: &mut Kernel) {
        self.pipes = match self.pipes {
            Pipes::None => self.received.take().map_or(Pipes::None, Pipes::Offered),
            Pipes::Sending(ends) => {
                kernel.occurred(Situation::UsesPipes);
                Pipes::InUse(ends)
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
            && !self.input_ended
            && kernel.write_line(self.end.write, &Control::Pipes.line())
        {
            self.pipes = Pipes::Sending(ends);
        }
    }

    /// Closes the sending half; responses still come.
    pub(crate) fn end_input(&mut self, kernel: &mut Kernel) {
        self.input_ended = true;
        kernel.close_write(self.sink());
    }

    pub(crate) fn close(self, kernel: &mut Kernel) {
        kernel.close(self.end);
        let taken = match self.pipes {
            Pipes::None => None,
            Pipes::Offered(ends) | Pipes::Sending(ends) | Pipes::InUse(ends) => Some(ends),
        };
        for [from, to] in taken.into_iter().chain(self.received) {
            kernel.close_read(from);
            kernel.close_write(to);
        }
    }
}
