//! The terminal at stdin and stdout.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::os;

/// Time after which a write to a terminal that accepts no output fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Columns and rows of the terminal at stdout; 0 if unknown.
pub fn window_size() -> io::Result<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(io::stdout())?;
    Ok((size.ws_col, size.ws_row))
}

/// Settings of the terminal at stdin, to be restored.
#[derive(Debug)]
pub struct Settings(Termios);

impl Settings {
    /// Makes the terminal raw: keys arrive one by one, without echo, and none makes a signal. Returns the former settings.
    pub fn make_raw() -> io::Result<Settings> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Settings(before))
    }

    /// Restores these settings.
    pub fn restore(&self) -> io::Result<()> {
        Ok(tcsetattr(io::stdin(), OptionalActions::Now, &self.0)?)
    }
}

/// Writes to the terminal at stdout. No write takes much longer than a second, so that the process notices signals even if
/// the terminal accepts no output.
#[derive(Debug)]
pub struct TerminalWriter {
    fd: OwnedFd,
    /// Whether it accepted nothing the last time: then no write waits until it accepts output again.
    stuck: bool,
}

impl TerminalWriter {
    /// The terminal at stdout.
    pub fn stdout() -> io::Result<TerminalWriter> {
        let fd = reopened(io::stdout().as_fd(), os::reopen_to_write)?;
        Ok(TerminalWriter { fd, stuck: false })
    }
}

impl Write for TerminalWriter {
    /// Fails with `WouldBlock` if the terminal accepts nothing for a second.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wait = if self.stuck {
            Duration::ZERO
        } else {
            WRITE_TIMEOUT
        };
        let deadline = Instant::now() + wait;
        loop {
            match rustix::io::write(&self.fd, bytes) {
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
                Ok(written) => {
                    self.stuck = false;
                    return Ok(written);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.stuck = true;
                return Err(Errno::AGAIN.into());
            }
            let left = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a write failed because the terminal was closed.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Reads from the terminal at stdin, without blocking.
#[derive(Debug)]
pub struct TerminalReader {
    fd: OwnedFd,
}

/// The result of reading a terminal.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// Number of bytes that were typed.
    Bytes(usize),
    /// There is no input.
    Nothing,
    /// The terminal was closed.
    Gone,
}

impl TerminalReader {
    /// The terminal at stdin.
    pub fn stdin() -> io::Result<TerminalReader> {
        let fd = reopened(io::stdin().as_fd(), os::reopen_to_read)?;
        Ok(TerminalReader { fd })
    }

    /// Reads the input since the last call.
    pub fn read(&self, into: &mut [u8]) -> io::Result<Input> {
        // Polled first: a terminal that could not be opened again would block.
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) => return Ok(Input::Nothing),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        match rustix::io::read(&self.fd, into) {
            Ok(0) | Err(Errno::IO) => Ok(Input::Gone),
            Ok(read) => Ok(Input::Bytes(read)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Input::Nothing),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for TerminalReader {
    /// Readable when there is input.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The same terminal, opened again and non-blocking: `O_NONBLOCK` on the inherited descriptor would affect our parent too.
/// If it cannot be opened (it is another user's), the blocking one is used.
fn reopened(
    fd: BorrowedFd<'_>,
    reopen: fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    reopen(fd).or_else(|_| fd.try_clone_to_owned())
}
