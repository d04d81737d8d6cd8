//! Two pipes beside the socket of a client that sends many lines: a line takes a tenth less time through a pipe.
//!
//! The daemon creates them after some reads, and sends the client's ends along with `!pipes`. After that message on the
//! socket, a side writes to its pipe, so that no line overtakes another:
//!
//! ```text
//! daemon ── !pipes, two ends ──> shim
//!        <────── !pipes ────────         its last line on the socket
//!        ─────── !pipes ───────>         the daemon's last line there
//! ```
//!
//! Only clients whose hello says that they know `!pipes` get them. The end of the socket remains the end of the connection.

use std::cell::Cell;
use std::io::{self, PipeReader, PipeWriter};
use std::time::Duration;

use kennel_core::engine::daemon::Replies;
use kennel_core::lifetime::ClientId;
use kennel_sys::detach::{Kind, adopt};
use kennel_sys::io::{Reactor, Source, Stream, is_hung_up, number_of, reader_is_gone_within};
use kennel_sys::stdio::set_nonblocking;
use serde::{Deserialize, Serialize};

use super::origin::Origin;
use kennel_sys::io::BufferSize;

/// Number of reads after which pipes are offered: a short session does not need them.
const READS_BEFORE_OFFER: u32 = 16;
/// Maximum number of clients with pipes. The other clients need the rest of the user's pipe memory and of the
/// descriptors.
const MAX_CLIENTS: usize = 64;

/// The size of a pipe where it was not set.
const DEFAULT_PIPE_SIZE: usize = 64 * 1024;

thread_local! {
    /// How many clients have pipes.
    static CLIENTS_WITH_PIPES: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) from_client: Source<PipeReader>,
    pub(super) to_client: Source<PipeWriter>,
    /// The size of the output pipe.
    pub(super) width: BufferSize,
    /// The client has sent `!pipes`: its pipe is read.
    pub(super) listens: Cell<bool>,
    /// The daemon has sent `!pipes`: it writes to its pipe.
    pub(super) is_in_use: Cell<bool>,
    _counted: CountedClient,
}

impl Pipes {
    /// Creates pipes and offers them to a client with an empty queue. `reads`: number of reads while the queue was empty.
    pub(super) fn offer(
        reactor: &Reactor,
        id: ClientId,
        socket: &Stream,
        reads: u32,
    ) -> Option<Pipes> {
        let is_due =
            reads.is_multiple_of(READS_BEFORE_OFFER) && CLIENTS_WITH_PIPES.get() < MAX_CLIENTS;
        // Without them it goes on as before.
        is_due
            .then(|| Pipes::make(reactor, id, socket).ok())
            .flatten()
    }

    fn make(reactor: &Reactor, id: ClientId, socket: &Stream) -> io::Result<Pipes> {
        let (from_client, its_output) = io::pipe()?;
        let (its_input, to_client) = io::pipe()?;
        // The client's ends as well: only it has them.
        set_nonblocking(&from_client)?;
        set_nonblocking(&its_output)?;
        set_nonblocking(&its_input)?;
        set_nonblocking(&to_client)?;
        let pipes = Pipes::new(reactor, id, from_client, to_client);
        socket.send_with(&Replies::pipes(), [&its_input, &its_output])?;
        Ok(pipes)
    }

    fn new(
        reactor: &Reactor,
        id: ClientId,
        from_client: PipeReader,
        to_client: PipeWriter,
    ) -> Pipes {
        let (input, output) = (Origin::ClientInput(id), Origin::ClientOutput(id));
        Pipes {
            from_client: Source::new(reactor, from_client, input.token()),
            to_client: Source::new(reactor, to_client, output.token()),
            width: BufferSize::default(),
            listens: Cell::new(false),
            is_in_use: Cell::new(false),
            _counted: CountedClient::one(),
        }
    }

    /// Whether the client has none of the ends, and never will. A client that has written everything closes its output
    /// before the daemon reads that it turns to the pipes, and keeps its input.
    pub(super) fn are_lost(&self) -> bool {
        !self.listens.get()
            && is_hung_up(&self.from_client)
            && reader_is_gone_within(&self.to_client, Duration::ZERO)
    }

    /// Called between two lines: switches to the pipe if the client has agreed and can be notified now.
    pub(super) fn use_if_agreed(&self, socket: &Stream) {
        if self.listens.get() && !self.is_in_use.get() {
            // It is so short that it is written whole or not at all.
            self.is_in_use.set(socket.send(&Replies::pipes()).is_ok());
        }
    }

    pub(super) fn snapshot(&self) -> PipesSnapshot {
        let Pipes {
            from_client,
            to_client,
            width: _,
            listens,
            is_in_use,
            _counted: _,
        } = self;
        PipesSnapshot {
            from_client: number_of(from_client),
            to_client: number_of(to_client),
            listens: listens.get(),
            is_in_use: is_in_use.get(),
        }
    }

    /// Continues with the pipes of a snapshot.
    pub(super) fn restore(
        reactor: &Reactor,
        id: ClientId,
        snapshot: PipesSnapshot,
    ) -> io::Result<Pipes> {
        let from_client = adopt(snapshot.from_client, Kind::Pipe)?.into();
        let to_client = adopt(snapshot.to_client, Kind::Pipe)?.into();
        let mut pipes = Pipes::new(reactor, id, from_client, to_client);
        // It may be larger than usual.
        pipes.width = BufferSize::larger_than(DEFAULT_PIPE_SIZE);
        pipes.listens.set(snapshot.listens);
        pipes.is_in_use.set(snapshot.is_in_use);
        Ok(pipes)
    }
}

/// [`Pipes`] in a snapshot.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct PipesSnapshot {
    from_client: i32,
    to_client: i32,
    listens: bool,
    #[serde(rename = "speaks")]
    is_in_use: bool,
}

impl PipesSnapshot {
    pub(super) fn descriptors(self) -> [i32; 2] {
        [self.from_client, self.to_client]
    }
}

/// Counts one client with pipes.
#[derive(Debug)]
struct CountedClient(());

impl CountedClient {
    fn one() -> CountedClient {
        CLIENTS_WITH_PIPES.set(CLIENTS_WITH_PIPES.get() + 1);
        CountedClient(())
    }
}

impl Drop for CountedClient {
    fn drop(&mut self) {
        CLIENTS_WITH_PIPES.set(CLIENTS_WITH_PIPES.get() - 1);
    }
}
