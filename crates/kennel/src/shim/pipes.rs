//! Two pipes beside the socket, which a daemon passes to an active session (the daemon's `pipes` explains why, and how both
//! sides switch to them).

use std::io::{PipeReader, PipeWriter};

use kennel_core::hello::Control;
use kennel_sys::io::{Handle, Reactor, Source, Stream};

use super::event_source::EventSource;

/// How far a connection has switched to its pipes.
#[derive(Debug, Default)]
pub(super) enum Pipes {
    /// The daemon has not offered pipes.
    #[default]
    None,
    /// The daemon has passed pipes; we have not sent `!pipes` yet.
    Offered(PipeEnds),
    /// `!pipes` was sent; output goes to our pipe.
    Sending(PipeEnds),
    /// The daemon has sent `!pipes` too: input comes from its pipe.
    InUse(PipeEnds),
}

/// Our ends of the two pipes.
#[derive(Debug)]
pub(super) struct PipeEnds {
    from: Source<PipeReader>,
    /// `None` once all output was sent.
    to: Option<Source<PipeWriter>>,
}

impl Pipes {
    /// Handles `!pipes` of the daemon; `received` are the handles passed with it.
    pub(super) fn handle_message(&mut self, received: &mut Vec<Handle>, reactor: &Reactor) {
        *self = match std::mem::take(self) {
            Pipes::None => match <[Handle; 2]>::try_from(std::mem::take(received)) {
                Ok([from, to]) => Pipes::Offered(PipeEnds {
                    from: Source::new(reactor, from.into(), EventSource::Daemon.token()),
                    to: Some(Source::new(reactor, to.into(), EventSource::Daemon.token())),
                }),
                // The handles were lost; the daemon offers pipes again.
                Err(_) => Pipes::None,
            },
            Pipes::Sending(ends) => Pipes::InUse(ends),
            unchanged => unchanged,
        };
    }

    /// Sends output to the pipe from now on, if pipes were offered and `!pipes` can be sent now. Call it between two lines.
    pub(super) fn switch_if_offered(&mut self, socket: &Stream) -> bool {
        let Pipes::Offered(_) = self else {
            return false;
        };
        let message = [&Control::Pipes.line()[..], b"\n"].concat();
        // It is so short that it is sent completely or not at all.
        let is_sent = socket.send(&message).is_ok();
        *self = match std::mem::take(self) {
            Pipes::Offered(ends) if is_sent => Pipes::Sending(ends),
            unchanged => unchanged,
        };
        is_sent
    }

    /// The pipe to read from, if not the socket.
    pub(super) fn reader(&self) -> Option<&Source<PipeReader>> {
        match self {
            Pipes::InUse(ends) => Some(&ends.from),
            Pipes::None | Pipes::Offered(_) | Pipes::Sending(_) => None,
        }
    }

    /// The pipe to write to, if not the socket; it contains `None` once all output was sent.
    pub(super) fn writer(&self) -> Option<&Option<Source<PipeWriter>>> {
        match self {
            Pipes::Sending(ends) | Pipes::InUse(ends) => Some(&ends.to),
            Pipes::None | Pipes::Offered(_) => None,
        }
    }

    /// Closes our end of the output pipe.
    pub(super) fn close_writer(&mut self) {
        if let Pipes::Sending(ends) | Pipes::InUse(ends) = self {
            ends.to = None;
        }
    }
}
