//! Sleeping until something happens: a descriptor is ready, a process has ended, the time is over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use crate::os::{Alarm, Bell};
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

/// What can wake a sleeper: signals, a pipe, a process tree, a terminal.
pub trait Source: AsFd {}

impl<T: AsFd> Source for T {}

/// [`sleep`] with sources of different types.
pub fn wait(
    sources: &[&dyn Source],
    processes: &[&ProcessRef],
    timeout: Option<Duration>,
) -> io::Result<()> {
    let fds: Vec<BorrowedFd<'_>> = sources.iter().map(|source| source.as_fd()).collect();
    sleep(&fds, processes, timeout)
}

/// Whether a read of this source would not block.
pub fn is_readable(source: &dyn Source) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(source.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
