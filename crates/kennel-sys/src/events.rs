//! Sleeping until something happens: a descriptor is ready, a process has ended, the time is over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::process::{ProcessRef, SWEEP};

/// Sleeps until one of `fds` is readable, one of `processes` has ended, or `timeout` is over. May
/// return early; look at everything then.
///
/// Where the kernel offers no event for the end of a process, they are looked at every [`SWEEP`].
pub fn sleep(
    fds: &[BorrowedFd<'_>],
    processes: &[&ProcessRef],
    timeout: Option<Duration>,
) -> io::Result<()> {
    let exits = processes.iter().filter_map(|process| process.exit_fd());
    let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut polled: Vec<PollFd<'_>> = fds.iter().copied().chain(exits).map(readable).collect();
    let all_have_events = processes.iter().all(|process| process.exit_fd().is_some());
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let nap = match left {
            left if all_have_events => left,
            left => Some(left.map_or(SWEEP, |left| left.min(SWEEP))),
        };
        let nap = nap.and_then(|nap| Timespec::try_from(nap).ok());
        match poll(&mut polled, nap.as_ref()) {
            Ok(0) if left == Some(Duration::ZERO) => return Ok(()),
            Ok(0) if processes.iter().all(|process| process.is_alive()) => {}
            Ok(_) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Wakes a sleeper from another thread.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Wakes whoever sleeps on it, now or next.
    pub fn ring(&self) {
        // It fails only when it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences it.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    /// Readable while it rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
