//! Two pipes beside a client's socket, for one that talks: through them a line has a tenth less of a way to go.
//!
//! They are made when enough was heard of it, and their other ends go along with the word `!pipes`. Whoever has said that
//! word on the socket says all that follows in its pipe, so that nothing overtakes anything:
//!
//! ```text
//! daemon ── !pipes, two ends ──> shim
//!        <────── !pipes ────────         its last word on the socket
//!        ─────── !pipes ───────>         and ours
//! ```
//!
//! One whose hello does not say that it knows the word is not asked. The socket remains what tells of its end.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use kennel_core::hello::Control;
use kennel_sys::detach::{Kind, adopt};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use super::tasks::Descriptor;
use crate::shim::lacks_reader;
use crate::shim::width::Width;

/// So often is a client heard before it is worth it.
const AFTER: u32 = 16;
/// No more clients have pipes at once: what a user may have in pipes, and a process in descriptors, is for others, too.
const AT_MOST: usize = 64;

/// What a pipe holds where nobody said otherwise.
const USUAL: usize = 64 * 1024;

thread_local! {
    /// How many clients have pipes.
    static MADE: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) from_client: Descriptor<OwnedFd>,
    pub(super) to_client: Descriptor<OwnedFd>,
    /// For what is written.
    pub(super) width: Width,
    /// The client has said the word: we listen here.
    pub(super) listens: Cell<bool>,
    /// We have said it: we speak here.
    pub(super) speaks: Cell<bool>,
    _counted: Counted,
}

impl Pipes {
    /// Makes them and tells the client, at whose socket nothing waits to be written. `heard`: how often that was so when
    /// it was heard.
    pub(super) fn offer(socket: &UnixStream, heard: u32) -> Option<Pipes> {
        let is_due = heard.is_multiple_of(AFTER) && MADE.get() < AT_MOST;
        // Without them it goes on as before.
        is_due.then(|| Pipes::make(socket).ok()).flatten()
    }

    fn make(socket: &UnixStream) -> io::Result<Pipes> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (from_client, its_output) = pipe_with(flags)?;
        let (its_input, to_client) = pipe_with(flags)?;
        let pipes = Pipes::new(from_client, to_client)?;
        let ends = [its_input.as_fd(), its_output.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        along.push(SendAncillaryMessage::ScmRights(&ends));
        let word = word();
        let word = [IoSlice::new(&word)];
        sendmsg(
            socket,
            &word,
            &mut along,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )?;
        Ok(pipes)
    }

    fn new(from_client: OwnedFd, to_client: OwnedFd) -> io::Result<Pipes> {
        Ok(Pipes {
            from_client: Descriptor::of_input(from_client)?,
            to_client: Descriptor::of_output(to_client)?,
            width: Width::default(),
            listens: Cell::new(false),
            speaks: Cell::new(false),
            _counted: Counted::one(),
        })
    }

    /// Whether the client has none of the ends, and never will. One that has written everything closes its output
    /// before we read that it turns to the pipes, and keeps its input.
    pub(super) fn were_lost(&self) -> bool {
        !self.listens.get() && self.from_client.has_ended() && lacks_reader(&self.to_client)
    }

    /// Between two lines: speaks into the pipe from now on, if the client has agreed and hears so now.
    pub(super) fn speak_if_agreed(&self, socket: &UnixStream) {
        if self.listens.get() && !self.speaks.get() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            // As short as it is, it goes as a whole or not at all.
            self.speaks
                .set(rustix::net::send(socket, &word(), flags).is_ok());
        }
    }

    pub(super) fn carried(&self) -> Carried {
        Carried {
            from_client: self.from_client.as_fd().as_raw_fd(),
            to_client: self.to_client.as_fd().as_raw_fd(),
            listens: self.listens.get(),
            speaks: self.speaks.get(),
        }
    }

    /// Goes on with what another program made.
    pub(super) fn resume(carried: Carried) -> io::Result<Pipes> {
        let mut pipes = Pipes::new(
            adopt(carried.from_client, Kind::Pipe)?,
            adopt(carried.to_client, Kind::Pipe)?,
        )?;
        // It may have been made wider.
        pipes.width = Width::wider_than(USUAL);
        pipes.listens.set(carried.listens);
        pipes.speaks.set(carried.speaks);
        Ok(pipes)
    }
}

fn word() -> Vec<u8> {
    [&Control::Pipes.line()[..], b"\n"].concat()
}

/// The same, to go on with after an exec.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Carried {
    from_client: RawFd,
    to_client: RawFd,
    listens: bool,
    speaks: bool,
}

impl Carried {
    pub(super) fn descriptors(self) -> [RawFd; 2] {
        [self.from_client, self.to_client]
    }
}

/// One of those that were made.
#[derive(Debug)]
struct Counted(());

impl Counted {
    fn one() -> Counted {
        MADE.set(MADE.get() + 1);
        Counted(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        MADE.set(MADE.get() - 1);
    }
}
