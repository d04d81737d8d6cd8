//! The inherited stdin, stdout and stderr.
//!
//! Their flags belong to the open files, which the app may share with others: only files that are ours alone are made
//! non-blocking.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::io::{BufferSize, Handle, Waitable};
use crate::os;

/// Our stdin. It is blocking: read it only when it is readable.
#[derive(Debug)]
pub struct Stdin(());

impl Stdin {
    /// Our stdin.
    pub fn of_this_process() -> Stdin {
        Stdin(())
    }
}

impl AsFd for Stdin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        rustix::stdio::stdin()
    }
}

/// Our stdout or stderr, with non-blocking writes. It may have a slow reader or none, and a process that blocks in a write
/// notices neither signals nor the death of its app.
#[derive(Debug)]
pub struct Output {
    inherited: BorrowedFd<'static>,
    way: WriteMode,
    /// Large where much is written.
    buffer: BufferSize,
}

/// How to avoid blocking.
#[derive(Debug)]
enum WriteMode {
    /// A pipe or a terminal that was opened again: this open file is ours and non-blocking.
    Reopened(File),
    /// A socket: each write has a flag for that.
    Socket,
    /// A pipe or a terminal that could not be opened again.
    Shared,
    /// A file: a write never waits for a reader.
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
            FileType::Socket => WriteMode::Socket,
            // A terminal may be stopped (Ctrl-S) for hours.
            FileType::Fifo | FileType::CharacterDevice => os::reopen_to_write(inherited)
                .map_or(WriteMode::Shared, |own| {
                    WriteMode::Reopened(File::from(own))
                }),
            _ => WriteMode::Plain,
        };
        let buffer = BufferSize::default();
        Output {
            inherited,
            way,
            buffer,
        }
    }

    /// Writes as many bytes as possible without blocking.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.fit(self, bytes.len());
        let inherited = self.inherited;
        Ok(match &self.way {
            WriteMode::Reopened(file) => rustix::io::write(file, bytes)?,
            WriteMode::Socket => os::send(inherited, bytes, SendFlags::DONTWAIT)?,
            WriteMode::Shared => os::write_without_waiting(inherited, bytes)?,
            WriteMode::Plain => rustix::io::write(inherited, bytes)?,
        })
    }

    /// Writes as many bytes as possible without blocking; `false` if that is not all of them.
    pub fn write_all_or_drop(&self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(count @ 1..) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return false,
            }
        }
        true
    }

    /// Whether this write error means that there is no reader any more, unlike a full disk.
    pub fn reader_is_gone(&self, error: &io::Error) -> bool {
        let Some(errno) = Errno::from_io_error(error) else {
            return false;
        };
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => true,
            // For a terminal it is a hang-up, for a file a disk error.
            Errno::IO => !matches!(self.way, WriteMode::Plain),
            _ => false,
        }
    }
}

impl AsFd for Output {
    /// Writable when a write would not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            WriteMode::Reopened(file) => file.as_fd(),
            WriteMode::Socket | WriteMode::Shared | WriteMode::Plain => self.inherited,
        }
    }
}

/// Checks that bytes written to stdout can get somewhere. The error says why not.
pub fn check_stdout() -> Result<(), &'static str> {
    if os::stdout_was_closed() {
        return Err("it is closed");
    }
    let flags = rustix::fs::fcntl_getfl(rustix::stdio::stdout());
    match flags.map(|flags| flags & OFlags::RWMODE) {
        Ok(OFlags::RDONLY) => Err("it is open for reading only"),
        _ => Ok(()),
    }
}

/// Whether stdout is the same socket as stdin: then EOF on stdin says nothing about a reader.
pub fn stdout_is_stdin() -> bool {
    let of = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    of(rustix::stdio::stdout()).is_ok_and(|ours| of(rustix::stdio::stdin()) == Ok(ours))
}

/// stdin, stdout and stderr for a new process.
pub type Stdio = [Handle; 3];

/// Copies of our own stdio for another process. A missing stream is replaced by an empty one.
pub fn inherited() -> io::Result<Stdio> {
    let own = |fd: BorrowedFd<'_>| {
        let copy = fd.try_clone_to_owned().map(Handle::new);
        copy.or_else(|_| nothing())
    };
    Ok([
        own(rustix::stdio::stdin())?,
        own(rustix::stdio::stdout())?,
        own(rustix::stdio::stderr())?,
    ])
}

/// A stream without input that discards its output.
pub fn nothing() -> io::Result<Handle> {
    let file = File::options().read(true).write(true).open("/dev/null");
    file.map(Handle::from)
}

/// Makes reads and writes of a pipe fail with `WouldBlock` instead of blocking.
pub fn set_nonblocking(pipe: &impl Waitable) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(pipe, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_failing_disk_is_not_a_missing_reader() {
        let is_gone = |way: WriteMode, errno: Errno| {
            let inherited = rustix::stdio::stdout();
            let buffer = BufferSize::default();
            let output = Output {
                inherited,
                way,
                buffer,
            };
            output.reader_is_gone(&errno.into())
        };
        assert!(is_gone(WriteMode::Shared, Errno::PIPE));
        assert!(is_gone(WriteMode::Socket, Errno::CONNRESET));
        assert!(
            is_gone(WriteMode::Shared, Errno::IO),
            "a terminal that hung up"
        );
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::IO] {
            assert!(!is_gone(WriteMode::Plain, errno), "{errno}");
        }
    }
}
