//! A client's connection in the event loop.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::tasks::Descriptor;
use crate::shim::lines::{CHUNK, Inbox};
use crate::shim::width::Width;

#[derive(Debug)]
pub(super) struct Socket {
    stream: Descriptor<UnixStream>,
    width: Width,
}

impl Socket {
    pub(super) fn new(stream: UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket {
            stream: Descriptor::of_input(stream)?,
            width: Width::default(),
        })
    }

    /// Reads something; 0 at the end.
    pub(super) async fn read(&self, inbox: &RefCell<Inbox>) -> io::Result<usize> {
        let read = |stream: &UnixStream| inbox.borrow_mut().receive(stream);
        self.stream.read(CHUNK, read).await
    }

    /// Waits until the other end is closed for good, whether or not somebody reads meanwhile.
    pub(super) async fn hung_up(&self) {
        self.stream.ended().await;
    }

    /// Writes what can be written, and waits until something can.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.try_write(bytes) {
                Err(Errno::AGAIN) => self.stream.room().await?,
                Err(Errno::INTR) => {}
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                written => return Ok(written?),
            }
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.width.suit(self, bytes.len());
        rustix::net::send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
