//! A client's connection in the event loop: we wake for what it says, and for room to answer only while there is none.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::watch;
use crate::shim::lines::{CHUNK, Inbox};
use crate::shim::width::Width;

#[derive(Debug)]
pub(super) struct Socket {
    stream: AsyncFd<UnixStream>,
    /// There was more to be read than was read.
    more: Cell<bool>,
    width: Width,
}

impl Socket {
    #[expect(
        deprecated,
        reason = "unsound only where the descriptor can change behind it: this one is ours, and what replaces it is `unsafe`"
    )]
    pub(super) fn new(stream: UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        // Not for room to write: that would wake us once more for every line that the client takes.
        Ok(Socket {
            stream: AsyncFd::with_interest(stream, Interest::READABLE)?,
            more: Cell::new(false),
            width: Width::default(),
        })
    }

    /// Reads something; 0 at the end. Whoever has more to say than is read at once lets others have a turn.
    pub(super) async fn read(&self, inbox: &RefCell<Inbox>) -> io::Result<usize> {
        if self.more.take() {
            tokio::task::yield_now().await;
        }
        loop {
            // Whoever reads is one, and waits without being put on a list.
            let mut ready = poll_fn(|context| self.stream.poll_read_ready(context)).await?;
            let read = inbox.borrow_mut().receive(self);
            match &read {
                // Less than there was room for: that is all there was, and no need to ask again.
                Ok(count) if *count < CHUNK => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(_) => self.more.set(true),
                Err(_) => {}
            }
            return read;
        }
    }

    /// Writes what can be written, and waits until something can.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.try_write(bytes) {
                Err(Errno::AGAIN) => self.room().await?,
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

    async fn room(&self) -> io::Result<()> {
        // A second descriptor: the first is registered already, for reading.
        let socket = self.as_fd().try_clone_to_owned()?;
        let socket = watch::registered(socket.as_fd(), Interest::WRITABLE)?;
        socket.writable().await.map(drop)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
