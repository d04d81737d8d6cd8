//! A client's stream socket, from its accept to its close.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use kennel_sys::passing::{self, Passing};

use crate::shim::lines::{CHUNK, Inbox};

/// A client's socket. No client has a reason to pass descriptors, and to close one can take as long as its sender likes: they
/// are refused, or, by a kernel that cannot do that, closed by another thread.
#[derive(Debug)]
pub(super) struct ClientStream {
    /// `None` once it is closed.
    stream: Option<UnixStream>,
    passing: Cell<Passing>,
}

impl ClientStream {
    pub(super) fn new(stream: UnixStream) -> ClientStream {
        ClientStream {
            passing: Cell::new(passing::refuse(&stream)),
            stream: Some(stream),
        }
    }

    /// Reads what is there, once, and no more than `most` bytes if that is less than [`CHUNK`]. An error if the client passed
    /// a descriptor.
    pub(super) fn receive(&self, inbox: &RefCell<Inbox>, most: usize) -> io::Result<usize> {
        let mut inbox = inbox.borrow_mut();
        if self.passing.get() == Passing::Refused {
            return match most < CHUNK {
                true => inbox.read_little(self),
                false => inbox.receive(self),
            };
        }
        let mut along = Vec::new();
        let received = inbox.receive_with_all(self, most, &mut along);
        if !along.is_empty() {
            passing::close_elsewhere(along);
            let why = "it passed a descriptor, which no client may";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let is_drained =
            matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if is_drained && self.passing.get() == Passing::RefusedFromNow {
            self.passing.set(Passing::Refused);
        }
        received
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else {
            return;
        };
        match self.passing.get() {
            Passing::Refused => drop(stream),
            Passing::RefusedFromNow | Passing::Possible => passing::close(OwnedFd::from(stream)),
        }
    }
}

impl Deref for ClientStream {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        self.stream.as_ref().expect("open until it is dropped")
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}
