//! Non-blocking use of pipes and terminals that other processes share, and an event for changes in a directory.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::files::reopen;

/// POSIX: a pipe that is ready takes this many bytes without blocking.
const PIPE_BUF: usize = 4096;

const NONBLOCKING: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Opens a pipe or a terminal again, for non-blocking reads.
pub(crate) fn reopen_to_read(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(reopen(fd, OFlags::RDONLY | NONBLOCKING)?)
}

/// Opens a pipe or a terminal again, for non-blocking writes.
pub(crate) fn reopen_to_write(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(reopen(fd, OFlags::WRONLY | NONBLOCKING)?)
}

/// Writes without blocking to an open file that others share. If the kernel does not support that, a write of at most
/// [`PIPE_BUF`] bytes to a pipe that is ready does not block unless another writer fills the pipe in between.
pub(crate) fn write_without_waiting(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    /// The offset for "the current position": pipes and terminals have no other.
    const CURRENT_OFFSET: u64 = u64::MAX;
    let all = [IoSlice::new(bytes)];
    match rustix::io::pwritev2(fd, &all, CURRENT_OFFSET, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {}
        written => return Ok(written?),
    }
    if !is_ready(fd)? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(rustix::io::write(fd, &bytes[..bytes.len().min(PIPE_BUF)])?)
}

fn is_ready(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::OUT))
}

/// Changes of the files in a directory, as an event.
#[derive(Debug)]
pub struct DirChanges(OwnedFd);

impl DirChanges {
    /// Watches the directory at `path` for files that are created, renamed into it or written.
    pub fn watch(path: &Path) -> io::Result<DirChanges> {
        let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        inotify::add_watch(&changes, path, what)?;
        Ok(DirChanges(changes))
    }

    /// Discards the events so far.
    pub fn clear(&self) {
        let mut buffer = [0; 4096];
        while rustix::io::read(&self.0, &mut buffer).is_ok_and(|count| count > 0) {}
    }
}

impl AsFd for DirChanges {
    /// Readable when something changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Fills a buffer with random bytes.
pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let filled = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
    // Up to 256 bytes are returned in one call.
    debug_assert_eq!(filled, bytes.len());
    Ok(())
}

#[cfg(test)]
mod tests {
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
        let written = write_without_waiting(writer.as_fd(), b"word\n");
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut read = [0; 2 * PIPE_BUF];
        rustix::io::read(&reader, &mut read).unwrap();
        assert_eq!(write_without_waiting(writer.as_fd(), b"word\n").unwrap(), 5);
    }
}
