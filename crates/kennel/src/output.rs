//! stdout and stderr as they were inherited, written to without ever blocking.
//!
//! Their flags belong to the open files, which the app may share with others: nothing is made
//! non-blocking here that is not ours alone.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::SendFlags;

use crate::shim::width::Width;

/// As much as a pipe that is ready to be written takes without blocking, by POSIX.
const PIPE_BUF: usize = 4096;

/// Our stdout or stderr, which may have a slow reader, or none at all: a process that is stuck in a write hears neither
/// signals nor the death of its app.
#[derive(Debug)]
pub(crate) struct Output {
    inherited: BorrowedFd<'static>,
    way: Way,
    width: Width,
}

/// How to write without blocking.
#[derive(Debug)]
enum Way {
    /// A pipe or a terminal, opened a second time: this open file is ours, and non-blocking.
    Reopened(File),
    /// A socket: each write can be told not to block.
    Socket,
    /// A pipe or a terminal that could not be opened again.
    Shared,
    /// A file: it never has to wait for a reader.
    Plain,
}

impl Output {
    pub(crate) fn stdout() -> Output {
        Output::of(rustix::stdio::stdout())
    }

    pub(crate) fn stderr() -> Output {
        Output::of(rustix::stdio::stderr())
    }

    /// Whether stdout is the very socket that is our stdin: its end of input says nothing about its reader.
    pub(crate) fn stdout_is_stdin() -> bool {
        let of = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        of(rustix::stdio::stdout()).is_ok_and(|ours| of(rustix::stdio::stdin()) == Ok(ours))
    }

    fn of(inherited: BorrowedFd<'static>) -> Output {
        let kind = rustix::fs::fstat(inherited).map_or(FileType::Unknown, |stat| {
            FileType::from_raw_mode(stat.st_mode)
        });
        let way = match kind {
            FileType::Socket => Way::Socket,
            // A terminal may be stopped (Ctrl-S) for hours.
            FileType::Fifo | FileType::CharacterDevice => {
                let reopened = File::options()
                    .write(true)
                    .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
                    .open(format!("/proc/self/fd/{}", inherited.as_raw_fd()));
                reopened.map_or(Way::Shared, Way::Reopened)
            }
            _ => Way::Plain,
        };
        let width = Width::default();
        Output {
            inherited,
            way,
            width,
        }
    }

    /// Writes what can be written without blocking.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let inherited = self.inherited;
        self.width.suit(self, bytes.len());
        Ok(match &self.way {
            Way::Reopened(file) => rustix::io::write(file, bytes)?,
            Way::Socket => {
                rustix::net::send(inherited, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?
            }
            Way::Shared => write_shared(inherited, bytes)?,
            Way::Plain => rustix::io::write(inherited, bytes)?,
        })
    }

    /// Writes all of it, or as much as fits at once; `false` if some of it did not.
    pub(crate) fn write_all_or_drop(&self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(count @ 1..) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return false,
            }
        }
        true
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Reopened(file) => file.as_fd(),
            Way::Socket | Way::Shared | Way::Plain => self.inherited,
        }
    }
}

/// Writes to an open file that others share. The kernel is asked not to wait; where it does not know how, a write of at
/// most [`PIPE_BUF`] bytes to a pipe that is ready does not block unless another writer fills the pipe in between.
fn write_shared(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    /// The offset that means "where the file stands": pipes and terminals have no other.
    const HERE: u64 = u64::MAX;
    let all = [IoSlice::new(bytes)];
    match rustix::io::pwritev2(fd, &all, HERE, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {}
        written => return Ok(written?),
    }
    if !is_ready(fd)? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(rustix::io::write(fd, &bytes[..bytes.len().min(PIPE_BUF)])?)
}

fn is_ready(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::OUT))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn full_pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&writer, &[b'x'; PIPE_BUF]).is_ok() {}
        rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
        (reader, writer)
    }

    #[test]
    fn a_full_pipe_that_others_share_does_not_block() {
        let (reader, writer) = full_pipe();
        let written = write_shared(writer.as_fd(), b"word\n");
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut read = [0; 2 * PIPE_BUF];
        rustix::io::read(&reader, &mut read).unwrap();
        assert_eq!(write_shared(writer.as_fd(), b"word\n").unwrap(), 5);
    }
}
