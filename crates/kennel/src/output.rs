//! stdout and stderr as they were inherited, written to without ever blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use kennel_sys::stdio;

use crate::shim::width::Width;

/// Our stdout or stderr, with room in the kernel for what is long.
#[derive(Debug)]
pub(crate) struct Output {
    stream: stdio::Output,
    width: Width,
}

impl Output {
    pub(crate) fn stdout() -> Output {
        Output::of(stdio::Output::stdout())
    }

    pub(crate) fn stderr() -> Output {
        Output::of(stdio::Output::stderr())
    }

    /// Whether stdout is the very socket that is our stdin: its end of input says nothing about its reader.
    pub(crate) fn stdout_is_stdin() -> bool {
        stdio::stdout_is_stdin()
    }

    fn of(stream: stdio::Output) -> Output {
        let width = Width::default();
        Output { stream, width }
    }

    /// Writes what can be written without blocking.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.width.suit(&self.stream, bytes.len());
        self.stream.write(bytes)
    }

    /// Whether a write failed with this error because nobody reads any more.
    pub(crate) fn reader_is_gone(&self, error: &io::Error) -> bool {
        self.stream.reader_is_gone(error)
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

// For the shim's poll loop.
impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
