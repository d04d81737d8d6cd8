//! What of a terminal matters to those who write for people.

use std::io::{self, IsTerminal as _, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A text for people has these many columns where nobody can tell how many there are.
const COLUMNS: usize = 80;

/// A terminal that claims to be larger is treated as of this size: the window of a program may claim any, and a picture takes
/// memory for each of its cells.
const MOST_COLUMNS: u16 = 1000;
const MOST_ROWS: u16 = 500;

/// Columns and rows of the terminal that stdout is, as far as they are used; 0 if it does not know.
pub(crate) fn window() -> io::Result<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(io::stdout())?;
    Ok((size.ws_col.min(MOST_COLUMNS), size.ws_row.min(MOST_ROWS)))
}

/// How wide a table may be: as wide as the terminal.
pub(crate) fn columns() -> usize {
    size().map_or(COLUMNS, |(columns, _)| columns)
}

/// Columns and rows of the terminal that stdout is, if it is one and knows.
pub(crate) fn size() -> Option<(usize, usize)> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (columns, rows) = window().ok()?;
    let known = columns > 0 && rows > 0;
    known.then_some((columns.into(), rows.into()))
}

/// Whether a program may move the cursor on it: `TERM` says what it is, and that it is not dumb.
pub(crate) fn has_cursor() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether colour is welcome (<https://no-color.org>) where it can be shown.
pub(crate) fn likes_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && has_cursor()
}

/// Whether what goes to stdout may have colour.
pub(crate) fn stdout_has_colour() -> bool {
    io::stdout().is_terminal() && likes_colour()
}

/// How long a terminal that takes nothing holds its writer up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// A terminal to write to which never blocks for long: signals are noticed though nobody reads the terminal.
#[derive(Debug)]
pub(crate) struct TerminalWriter {
    fd: OwnedFd,
    /// It took nothing the last time: it is not waited for again before it takes something.
    stuck: bool,
}

impl TerminalWriter {
    /// The terminal that stdout is.
    pub(crate) fn stdout() -> io::Result<TerminalWriter> {
        let fd = reopen(io::stdout().as_fd(), OFlags::WRONLY)?;
        Ok(TerminalWriter { fd, stuck: false })
    }
}

impl Write for TerminalWriter {
    /// Fails with `WouldBlock` if the terminal takes nothing for [`WRITE_TIMEOUT`].
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

/// Whether writing failed because the terminal was closed under us.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// The terminal that stdin is, to read from without blocking.
#[derive(Debug)]
pub(crate) struct TerminalReader {
    fd: OwnedFd,
}

/// What reading a terminal gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Bytes(usize),
    Nothing,
    /// Nobody will ever type anything: the terminal is gone.
    Gone,
}

impl TerminalReader {
    pub(crate) fn stdin() -> io::Result<TerminalReader> {
        let fd = reopen(io::stdin().as_fd(), OFlags::RDONLY)?;
        Ok(TerminalReader { fd })
    }

    /// What was typed since. Does not block.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<Input> {
        // Asked first: a terminal that could not be opened once more would block.
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
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The same terminal, opened once more: `O_NONBLOCK` on the descriptor we were given would be our parent's as well.
/// Where it cannot be opened (it is another user's), it stays a blocking one.
fn reopen(fd: BorrowedFd<'_>, access: OFlags) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(own) => Ok(own),
        Err(_) => fd.try_clone_to_owned(),
    }
}
