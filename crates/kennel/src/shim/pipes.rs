//! Two pipes beside the socket, which a daemon hands to a session that talks (the daemon's `pipes` tells why, and how both
//! sides turn to them).

use std::io::{PipeReader, PipeWriter};

use kennel_core::hello::Control;
use kennel_sys::io::{Handle, Reactor, Source, Stream};

use super::origin::Origin;

/// Where a link stands with them.
#[derive(Debug, Default)]
pub(super) enum Pipes {
    /// None were offered.
    #[default]
    None,
    /// We have them, and have not said so yet.
    Offered(Ends),
    /// We have said the word, and speak into ours.
    Spoken(Ends),
    /// The daemon has, too: we listen to its.
    Taken(Ends),
}

#[derive(Debug)]
pub(super) struct Ends {
    from: Source<PipeReader>,
    /// Until all is said.
    to: Option<Source<PipeWriter>>,
}

impl Pipes {
    /// The daemon has said the word, and `along` came with it.
    pub(super) fn hear(&mut self, along: &mut Vec<Handle>, reactor: &Reactor) {
        *self = match std::mem::take(self) {
            Pipes::None => match <[Handle; 2]>::try_from(std::mem::take(along)) {
                Ok([from, to]) => Pipes::Offered(Ends {
                    from: Source::new(reactor, from.into(), Origin::Daemon.token()),
                    to: Some(Source::new(reactor, to.into(), Origin::Daemon.token())),
                }),
                // They were lost on the way: they are offered again.
                Err(_) => Pipes::None,
            },
            Pipes::Spoken(ends) => Pipes::Taken(ends),
            unchanged => unchanged,
        };
    }

    /// Between two lines: speaks into the pipe from now on, if there is one and the daemon hears so now.
    pub(super) fn speak_if_offered(&mut self, socket: &Stream) -> bool {
        let Pipes::Offered(_) = self else {
            return false;
        };
        let word = [&Control::Pipes.line()[..], b"\n"].concat();
        // As short as it is, it goes as a whole or not at all.
        let is_said = socket.send(&word).is_ok();
        *self = match std::mem::take(self) {
            Pipes::Offered(ends) if is_said => Pipes::Spoken(ends),
            unchanged => unchanged,
        };
        is_said
    }

    /// Where to listen, if not to the socket.
    pub(super) fn from(&self) -> Option<&Source<PipeReader>> {
        match self {
            Pipes::Taken(ends) => Some(&ends.from),
            Pipes::None | Pipes::Offered(_) | Pipes::Spoken(_) => None,
        }
    }

    /// The end to speak into, if that is not the socket; it holds nothing after the last word.
    pub(super) fn to(&self) -> Option<&Option<Source<PipeWriter>>> {
        match self {
            Pipes::Spoken(ends) | Pipes::Taken(ends) => Some(&ends.to),
            Pipes::None | Pipes::Offered(_) => None,
        }
    }

    /// No more is said into it.
    pub(super) fn end(&mut self) {
        if let Pipes::Spoken(ends) | Pipes::Taken(ends) = self {
            ends.to = None;
        }
    }
}
