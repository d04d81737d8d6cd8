//! Two pipes beside the socket, which a daemon hands to a session that talks (the daemon's `pipes` tells why, and how both
//! sides turn to them).

use std::io::{PipeReader, PipeWriter};

use kennel_core::hello::Control;
use kennel_sys::io::{Handle, Reactor, Source, Stream};

use super::event_source::EventSource;

/// Where a conn stands with them.
#[derive(Debug, Default)]
pub(super) enum Pipes {
    /// None were offered.
    #[default]
    None,
    /// We have them, and have not said so yet.
    Offered(PipeEnds),
    /// We have said the word, and speak into ours.
    Sending(PipeEnds),
    /// The daemon has, too: we listen to its.
    InUse(PipeEnds),
}

#[derive(Debug)]
pub(super) struct PipeEnds {
    from: Source<PipeReader>,
    /// Until all is said.
    to: Option<Source<PipeWriter>>,
}

impl Pipes {
    /// The daemon has said the word, and `received` came with it.
    pub(super) fn handle_message(&mut self, received: &mut Vec<Handle>, reactor: &Reactor) {
        *self = match std::mem::take(self) {
            Pipes::None => match <[Handle; 2]>::try_from(std::mem::take(received)) {
                Ok([from, to]) => Pipes::Offered(PipeEnds {
                    from: Source::new(reactor, from.into(), EventSource::Daemon.token()),
                    to: Some(Source::new(reactor, to.into(), EventSource::Daemon.token())),
                }),
                // They were lost on the way: they are offered again.
                Err(_) => Pipes::None,
            },
            Pipes::Sending(ends) => Pipes::InUse(ends),
            unchanged => unchanged,
        };
    }

    /// Between two lines: speaks into the pipe from now on, if there is one and the daemon hears so now.
    pub(super) fn switch_if_offered(&mut self, socket: &Stream) -> bool {
        let Pipes::Offered(_) = self else {
            return false;
        };
        let message = [&Control::Pipes.line()[..], b"\n"].concat();
        // As short as it is, it goes as a whole or not at all.
        let is_sent = socket.send(&message).is_ok();
        *self = match std::mem::take(self) {
            Pipes::Offered(ends) if is_sent => Pipes::Sending(ends),
            unchanged => unchanged,
        };
        is_sent
    }

    /// Where to listen, if not to the socket.
    pub(super) fn reader(&self) -> Option<&Source<PipeReader>> {
        match self {
            Pipes::InUse(ends) => Some(&ends.from),
            Pipes::None | Pipes::Offered(_) | Pipes::Sending(_) => None,
        }
    }

    /// The end to speak into, if that is not the socket; it holds nothing after the last word.
    pub(super) fn writer(&self) -> Option<&Option<Source<PipeWriter>>> {
        match self {
            Pipes::Sending(ends) | Pipes::InUse(ends) => Some(&ends.to),
            Pipes::None | Pipes::Offered(_) => None,
        }
    }

    /// No more is said into it.
    pub(super) fn close_writer(&mut self) {
        if let Pipes::Sending(ends) | Pipes::InUse(ends) = self {
            ends.to = None;
        }
    }
}
