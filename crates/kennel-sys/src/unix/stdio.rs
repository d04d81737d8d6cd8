//! stdin, stdout and stderr as this process inherited them.
//!
//! Their flags belong to the open files, which the app may share with others: nothing is made non-blocking here that is not
//! ours alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::os;

/// Our stdout or stderr, written to without blocking. It may have a slow reader, or none at all: a process that is stuck in a
/// write notices neither signals nor the death of its app.
#[derive(Debug)]
pub struct Output {
    inherited: BorrowedFd<'static>,
    way: Way,
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
    /// Our stdout.
    pub fn stdout() -> Output {
        Output::of(rustix::stdio::stdout())
    }

    /// Our stderr.
    pub fn stderr() -> Output {
        Output::of(rustix::stdio::stderr())
    }

    fn of(inherited: BorrowedFd<'static>) -> Output {
        let kind = rustix::fs::fstat(inherited).map_or(FileType::Unknown, |stat| {
            FileType::from_raw_mode(stat.st_mode)
        });
        let way = match kind {
            FileType::Socket => Way::Socket,
            // A terminal may be stopped (Ctrl-S) for hours.
            FileType::Fifo | FileType::CharacterDevice => os::reopen_to_write(inherited)
                .map_or(Way::Shared, |own| Way::Reopened(File::from(own))),
            _ => Way::Plain,
        };
        Output { inherited, way }
    }

    /// Writes what can be written without blocking.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let inherited = self.inherited;
        Ok(match &self.way {
            Way::Reopened(file) => rustix::io::write(file, bytes)?,
            Way::Socket => os::send(inherited, bytes, SendFlags::DONTWAIT)?,
            Way::Shared => os::write_without_waiting(inherited, bytes)?,
            Way::Plain => rustix::io::write(inherited, bytes)?,
        })
    }

    /// Whether a write failed with this error because nobody reads any more. A full disk is another matter.
    pub fn reader_is_gone(&self, error: &io::Error) -> bool {
        let Some(errno) = Errno::from_io_error(error) else {
            return false;
        };
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => true,
            // Of a terminal: it hung up. Of a file: its disk fails.
            Errno::IO => !matches!(self.way, Way::Plain),
            _ => false,
        }
    }
}

impl AsFd for Output {
    /// Writable when a write would not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Reopened(file) => file.as_fd(),
            Way::Socket | Way::Shared | Way::Plain => self.inherited,
        }
    }
}

/// Whether stdout is the very socket that is our stdin: its end of input says nothing about its reader.
pub fn stdout_is_stdin() -> bool {
    let of = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    of(rustix::stdio::stdout()).is_ok_and(|ours| of(rustix::stdio::stdin()) == Ok(ours))
}

/// stdin, stdout and stderr of a process that is to be started.
pub type Stdio = [OwnedFd; 3];

/// Our own stdio, for another process. A stream that we were started without is one that holds nothing.
pub fn inherited() -> io::Result<Stdio> {
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().or_else(|_| nothing());
    Ok([
        own(rustix::stdio::stdin())?,
        own(rustix::stdio::stdout())?,
        own(rustix::stdio::stderr())?,
    ])
}

/// A stream that holds nothing and takes everything.
pub fn nothing() -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/null");
    file.map(OwnedFd::from)
}

/// Makes reads and writes of a pipe fail with `WouldBlock` instead of waiting.
pub fn set_nonblocking(pipe: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(pipe, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_failing_disk_does_not_mean_that_the_reader_is_gone() {
        let is_gone = |way: Way, errno: Errno| {
            let inherited = rustix::stdio::stdout();
            Output { inherited, way }.reader_is_gone(&errno.into())
        };
        assert!(is_gone(Way::Shared, Errno::PIPE));
        assert!(is_gone(Way::Socket, Errno::CONNRESET));
        assert!(is_gone(Way::Shared, Errno::IO), "a terminal that hung up");
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::IO] {
            assert!(!is_gone(Way::Plain, errno), "{errno}");
        }
    }
}
