//! The stdin that the app gave us, used without changing its flags: they belong to the open file, which the app may share
//! with others.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll::EventFlags;
use rustix::fs::FileType;

use super::watch::NEWS;

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
