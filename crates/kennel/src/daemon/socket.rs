//! A client's connection in the event loop: a socket, and [pipes] beside it if it talks.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use kennel_sys::detach::{Kind, adopt};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};

use super::pipes::{self, Pipes};
use super::stream::ClientStream;
use super::tasks::{Descriptor, first_of};
use crate::shim::lines::{CHUNK, Inbox, SHORT};
use crate::shim::width::Width;

#[derive(Debug)]
pub(super) struct Socket {
    stream: Descriptor<ClientStream>,
    width: Width,
    pipes: RefCell<Option<Rc<Pipes>>>,
    /// How often something was heard while nothing waited to be said.
    heard: Cell<u32>,
}

impl Socket {
    pub(super) fn new(stream: ClientStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket {
            stream: Descriptor::of_input(stream)?,
            width: Width::default(),
            pipes: RefCell::default(),
            heard: Cell::new(0),
        })
    }

    /// Reads something; 0 at the end. No more than [`SHORT`] bytes if only `little` is wanted by the time something is there.
    pub(super) async fn read(
        &self,
        inbox: &RefCell<Inbox>,
        little: impl Fn() -> bool,
    ) -> io::Result<usize> {
        let most = || if little() { SHORT } else { CHUNK };
        let Some(pipes) = self.listened_to() else {
            let read = |stream: &ClientStream| stream.receive(inbox, most());
            return self.stream.read(most, read).await;
        };
        let read = |pipe: &OwnedFd| match little() {
            true => inbox.borrow_mut().read_little(pipe),
            false => inbox.borrow_mut().read(pipe),
        };
        first_of! {
            read = pipes.from_client.read(most, read) => read,
            // It is gone, though somebody else may hold its pipe.
            () = self.stream.ended() => match self.read_now(inbox) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                read => read,
            },
        }
    }

    /// Reads what is there.
    pub(super) fn read_now(&self, inbox: &RefCell<Inbox>) -> io::Result<usize> {
        match self.listened_to() {
            Some(pipes) => inbox.borrow_mut().read(&pipes.from_client),
            None => self.stream.receive(inbox, CHUNK),
        }
    }

    /// A client that understands it was heard, and nothing waits to be said to it.
    pub(super) fn offers_pipes(&self) {
        let heard = self.heard.get().wrapping_add(1);
        self.heard.set(heard);
        let mut pipes = self.pipes.borrow_mut();
        if pipes.as_ref().is_none_or(|pipes| pipes.were_lost())
            && let Some(offered) = Pipes::offer(&self.stream, heard)
        {
            *pipes = Some(Rc::new(offered));
        }
    }

    /// The client has said its last word on the socket: it speaks into its pipe, if it has one.
    pub(super) fn turns_to_pipes(&self) {
        if let Some(pipes) = &*self.pipes.borrow() {
            pipes.listens.set(true);
        }
    }

    /// What is written next begins a line.
    pub(super) fn is_between_lines(&self) {
        if let Some(pipes) = &*self.pipes.borrow() {
            pipes.speak_if_agreed(&self.stream);
        }
    }

    /// Waits until the other end is closed for good, whether or not somebody reads meanwhile.
    pub(super) async fn hung_up(&self) {
        self.stream.ended().await;
    }

    /// Writes what can be written, and waits until something can.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.try_write(bytes) {
                Err(Errno::AGAIN) => match self.spoken_into() {
                    Some(pipes) => pipes.to_client.room().await?,
                    None => self.stream.room().await?,
                },
                Err(Errno::INTR) => {}
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                written => return Ok(written?),
            }
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(pipes) = self.spoken_into() {
            pipes.width.suit(&pipes.to_client, bytes.len());
            return rustix::io::write(&pipes.to_client, bytes);
        }
        self.width.suit(self, bytes.len());
        rustix::net::send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Whether something could be written now.
    pub(super) fn has_room(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let pipes = self.spoken_into();
        let fd = match &pipes {
            Some(pipes) => pipes.to_client.as_fd(),
            None => self.as_fd(),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn listened_to(&self) -> Option<Rc<Pipes>> {
        let pipes = self.pipes.borrow();
        pipes.as_ref().filter(|pipes| pipes.listens.get()).cloned()
    }

    fn spoken_into(&self) -> Option<Rc<Pipes>> {
        let pipes = self.pipes.borrow();
        pipes.as_ref().filter(|pipes| pipes.speaks.get()).cloned()
    }

    pub(super) fn carried(&self) -> Carried {
        Carried {
            socket: self.as_fd().as_raw_fd(),
            pipes: self.pipes.borrow().as_ref().map(|pipes| pipes.carried()),
        }
    }

    /// Goes on with what another program had.
    pub(super) fn resume(carried: Carried) -> io::Result<Socket> {
        let stream = ClientStream::new(adopt(carried.socket, Kind::Socket)?.into());
        let socket = Socket::new(stream)?;
        if let Some(pipes) = carried.pipes {
            *socket.pipes.borrow_mut() = Some(Rc::new(Pipes::resume(pipes)?));
        }
        Ok(socket)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The same, to go on with after an exec.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Carried {
    socket: RawFd,
    #[serde(default)]
    pipes: Option<pipes::Carried>,
}

impl Carried {
    pub(super) fn descriptors(self) -> impl Iterator<Item = RawFd> {
        let pipes = self.pipes.into_iter().flat_map(pipes::Carried::descriptors);
        pipes.chain([self.socket])
    }
}
