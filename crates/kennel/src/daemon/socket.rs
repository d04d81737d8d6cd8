//! A client's connection: a socket, and [pipes] beside it if it sends many lines.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::rc::Rc;

use kennel_core::lifetime::ClientId;
use kennel_sys::detach::{Kind, adopt};
use kennel_sys::io::{
    Interest, Reactor, Source, Stream, has_room, is_hung_up, number_of, unread_by_peer,
    unread_bytes,
};
use kennel_sys::passing::{self, Passing};
use serde::{Deserialize, Serialize};

use super::origin::Origin;
use super::pipes::{self, Pipes};
use crate::lines::{CHUNK, Inbox, SMALL_READ};
use kennel_sys::io::BufferSize;

#[derive(Debug)]
pub(super) struct Socket {
    id: ClientId,
    reactor: Reactor,
    stream: Source<Stream>,
    width: BufferSize,
    pipes: RefCell<Option<Rc<Pipes>>>,
    /// Number of reads while the client's queue was empty.
    reads: Cell<u32>,
}

impl Socket {
    pub(super) fn new(reactor: &Reactor, id: ClientId, stream: Stream) -> Socket {
        Socket {
            id,
            reactor: reactor.clone(),
            stream: Source::new(reactor, stream, Origin::ClientSocket(id).token()),
            width: BufferSize::default(),
            pipes: RefCell::default(),
            reads: Cell::new(0),
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Waits for input, for room, for both or for neither, and always for the end.
    pub(super) fn set_interest(&self, reads: bool, writes: bool) -> io::Result<()> {
        let pipes = self.pipes.borrow();
        let pipes = pipes.as_deref();
        let listens = pipes.is_some_and(|pipes| pipes.listens.get());
        let uses_pipe = pipes.is_some_and(|pipes| pipes.is_in_use.get());
        self.stream.set_interest(Interest {
            readable: reads && !listens,
            writable: writes && !uses_pipe,
            ..Interest::HANGUP
        })?;
        if let Some(pipes) = pipes {
            let if_so = |so: bool, interest| if so { interest } else { Interest::NONE };
            let input = if_so(reads && listens, Interest::READ);
            let output = if_so(writes && uses_pipe, Interest::WRITE);
            pipes.from_client.set_interest(input)?;
            pipes.to_client.set_interest(output)?;
        }
        Ok(())
    }

    /// Reads available input once; 0 at the end. At most [`SMALL_READ`] bytes if `little`.
    pub(super) fn read(&self, inbox: &RefCell<Inbox>, little: bool) -> io::Result<usize> {
        let mut inbox = inbox.borrow_mut();
        let Some(pipes) = self.input_pipes() else {
            return self.receive(&mut inbox, if little { SMALL_READ } else { CHUNK });
        };
        let read = match little {
            true => inbox.read_small(&pipes.from_client),
            false => inbox.read(&pipes.from_client),
        };
        match read {
            // The client is gone, though another process may have its pipe.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.is_hung_up() => Ok(0),
            read => read,
        }
    }

    /// Reads from the socket. Fails if the client passed a descriptor.
    fn receive(&self, inbox: &mut Inbox, most: usize) -> io::Result<usize> {
        let stream = &self.stream;
        if stream.passing() == Passing::Refused {
            return match most < CHUNK {
                true => inbox.read_small(stream),
                false => inbox.read(stream),
            };
        }
        let mut along = Vec::new();
        let received = inbox.receive_with(stream, most, &mut along);
        if !along.is_empty() {
            passing::close_elsewhere(along);
            let why = "it passed a descriptor, which clients must not do";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            stream.is_drained();
        }
        received
    }

    /// Offers pipes if they are due: input was read, the queue is empty, and the client supports them.
    pub(super) fn offer_pipes_if_due(&self) {
        let reads = self.reads.get().wrapping_add(1);
        self.reads.set(reads);
        let mut pipes = self.pipes.borrow_mut();
        if pipes.as_ref().is_none_or(|pipes| pipes.are_lost())
            && let Some(offered) = Pipes::offer(&self.reactor, self.id, &self.stream, reads)
        {
            *pipes = Some(Rc::new(offered));
        }
    }

    /// Reads from the pipe from now on: the client has sent its last line on the socket.
    pub(super) fn listen_on_pipes(&self) {
        if let Some(pipes) = &*self.pipes.borrow() {
            pipes.listens.set(true);
        }
    }

    /// Prepares for a new line: turns to the pipe if the client has agreed.
    pub(super) fn start_line(&self) {
        if let Some(pipes) = &*self.pipes.borrow() {
            pipes.use_if_agreed(&self.stream);
        }
    }

    /// Whether the other end is closed.
    pub(super) fn is_hung_up(&self) -> bool {
        is_hung_up(&self.stream)
    }

    /// Writes as much as there is room for.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(pipes) = self.output_pipes() {
            pipes.width.fit(&pipes.to_client, bytes.len());
            return (&*pipes.to_client).write(bytes);
        }
        self.width.fit(&self.stream, bytes.len());
        self.stream.send(bytes)
    }

    /// Whether there is room now.
    pub(super) fn has_room(&self) -> bool {
        match self.output_pipes() {
            Some(pipes) => has_room(&pipes.to_client),
            None => has_room(&self.stream),
        }
    }

    /// Number of written bytes that the client has not read, if the system reports it.
    pub(super) fn unread_by_client(&self) -> Option<usize> {
        match self.output_pipes() {
            Some(pipes) => unread_by_peer(&pipes.to_client),
            None => unread_by_peer(&self.stream),
        }
    }

    /// Whether bytes of the client wait to be read.
    pub(super) fn has_input(&self) -> bool {
        let unread = match self.input_pipes() {
            Some(pipes) => unread_bytes(&pipes.from_client),
            None => unread_bytes(&self.stream),
        };
        unread > 0
    }

    fn input_pipes(&self) -> Option<Rc<Pipes>> {
        let pipes = self.pipes.borrow();
        pipes.as_ref().filter(|pipes| pipes.listens.get()).cloned()
    }

    fn output_pipes(&self) -> Option<Rc<Pipes>> {
        let pipes = self.pipes.borrow();
        pipes
            .as_ref()
            .filter(|pipes| pipes.is_in_use.get())
            .cloned()
    }

    pub(super) fn snapshot(&self) -> SocketSnapshot {
        let Socket {
            id: _,
            reactor: _,
            stream,
            width: _,
            pipes,
            // Pipes are offered later.
            reads: _,
        } = self;
        SocketSnapshot {
            socket: number_of(stream),
            pipes: pipes.borrow().as_ref().map(|pipes| pipes.snapshot()),
        }
    }

    /// Continues with the connection of a snapshot.
    pub(super) fn restore(
        reactor: &Reactor,
        id: ClientId,
        snapshot: SocketSnapshot,
    ) -> io::Result<Socket> {
        let stream = Stream::new(adopt(snapshot.socket, Kind::Socket)?)?;
        let socket = Socket::new(reactor, id, stream);
        if let Some(snapshot) = snapshot.pipes {
            let pipes = Pipes::restore(reactor, id, snapshot)?;
            *socket.pipes.borrow_mut() = Some(Rc::new(pipes));
        }
        Ok(socket)
    }
}

/// A [`Socket`] in a snapshot.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct SocketSnapshot {
    socket: i32,
    #[serde(default)]
    pipes: Option<pipes::PipesSnapshot>,
}

impl SocketSnapshot {
    pub(super) fn descriptors(self) -> impl Iterator<Item = i32> {
        let pipes = self
            .pipes
            .into_iter()
            .flat_map(pipes::PipesSnapshot::descriptors);
        pipes.chain([self.socket])
    }
}
