//! The app's side of the shim: the stdin, stdout and stderr it gave us, used without changing them.
//!
//! Their flags belong to the open files, which the app may share with others: nothing is made
//! non-blocking here that is not ours alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::event::epoll::EventFlags;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::watch::NEWS;
use super::width::Width;

/// As much as a pipe that is ready to be written takes without blocking, by POSIX.
const PIPE_BUF: usize = 4096;

/// Our stdin. Read only when it is ready, it does not block.
#[derive(Debug)]
pub(crate) struct Input {
    /// What to wait for.
    pub(crate) speaks: EventFlags,
}

impl Input {
    pub(crate) fn stdin() -> Input {
        let kind = rustix::fs::fstat(rustix::stdio::stdin())
            .map(|stat| FileType::from_raw_mode(stat.st_mode));
        // Anything else may give less than it has.
        let speaks = match kind {
            Ok(FileType::Fifo) => NEWS,
            _ => EventFlags::IN,
        };
        Input { speaks }
    }
}

impl AsFd for Input {
    fn as_fd(&self) -> BorrowedFd<'_> {
        rustix::stdio::stdin()
    }
}

/// Our stdout or stderr, which may have a slow reader: a shim that is stuck in a write does not hear
/// its app die.
#[derive(Debug)]
pub(crate) struct Output {
    inherited: BorrowedFd<'static>,
    way: Way,
    width: Width,
}

/// How to write without blocking.
#[derive(Debug)]
enum Way {
    /// A pipe, opened a second time: this open file is ours, and non-blocking.
    Reopened(File),
    /// A socket: each write can be told not to block.
    Socket,
    /// A pipe that could not be opened again: written in pieces that a ready pipe takes.
    Pipe,
    /// A file or a terminal.
    Plain,
}

impl Output {
    pub(crate) fn stdout() -> Output {
        Output::of(rustix::stdio::stdout())
    }

    pub(crate) fn stderr() -> Output {
        Output::of(rustix::stdio::stderr())
    }

    /// Whether it is the very socket that is our stdin: its end of input says nothing about its reader.
    pub(crate) fn is_stdin(&self) -> bool {
        let of = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        of(self.inherited).is_ok_and(|ours| of(rustix::stdio::stdin()) == Ok(ours))
    }

    fn of(inherited: BorrowedFd<'static>) -> Output {
        let kind = rustix::fs::fstat(inherited).map_or(FileType::Unknown, |stat| {
            FileType::from_raw_mode(stat.st_mode)
        });
        let way = match kind {
            FileType::Socket => Way::Socket,
            FileType::Fifo => {
                let reopened = File::options()
                    .write(true)
                    .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
                    .open(format!("/proc/self/fd/{}", inherited.as_raw_fd()));
                reopened.map_or(Way::Pipe, Way::Reopened)
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
            Way::Pipe if !is_ready(inherited)? => return Err(io::ErrorKind::WouldBlock.into()),
            Way::Pipe => rustix::io::write(inherited, &bytes[..bytes.len().min(PIPE_BUF)])?,
            Way::Plain => rustix::io::write(inherited, bytes)?,
        })
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Reopened(file) => file.as_fd(),
            Way::Socket | Way::Pipe | Way::Plain => self.inherited,
        }
    }
}

fn is_ready(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::OUT))
}
