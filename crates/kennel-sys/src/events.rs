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
    let mut polled: Vec<PollFd<'_>> = fds.iter().copied().map(readable).collect();
    sleep_on(&mut polled, processes, timeout)
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// [`sleep`] until one of `polled` has an event.
fn sleep_on<'fd>(
    polled: &mut Vec<PollFd<'fd>>,
    processes: &[&'fd ProcessRef],
    timeout: Option<Duration>,
) -> io::Result<()> {
    let exits = processes.iter().filter_map(|process| process.exit_fd());
    polled.extend(exits.map(readable));
    let all_have_events = processes.iter().all(|process| process.exit_fd().is_some());
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let nap = match left {
            left if all_have_events => left,
            left => Some(left.map_or(SWEEP, |left| left.min(SWEEP))),
        };
        let nap = nap.and_then(|nap| Timespec::try_from(nap).ok());
        match poll(polled, nap.as_ref()) {
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

/// Waits like [`wait`], and no longer than somebody can read `output`: a process that has nothing to write would not notice
/// that its reader is gone. Returns `false` if it is.
pub fn wait_while_read(
    output: &dyn Source,
    sources: &[&dyn Source],
    timeout: Option<Duration>,
) -> io::Result<bool> {
    // No event is asked for: the kernel reports errors and a hang-up all the same, and of a file neither.
    let output = PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty());
    let sources = sources.iter().map(|source| readable(source.as_fd()));
    let mut polled: Vec<PollFd<'_>> = std::iter::once(output).chain(sources).collect();
    sleep_on(&mut polled, &[], timeout)?;
    Ok(polled[0].revents().is_empty())
}

/// Whether a read of this source would not block.
pub fn is_readable(source: &dyn Source) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(source.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    const SOON: Option<Duration> = Some(Duration::from_millis(1));

    #[test]
    fn a_pipe_or_socket_without_a_reader_wakes_who_has_nothing_to_write() {
        let (reader, pipe) = io::pipe().unwrap();
        let (peer, socket) = UnixStream::pair().unwrap();
        // What comes in is not for the writer, and no reason to wake again and again.
        io::Write::write_all(&mut &peer, b"typed").unwrap();
        let never = io::pipe().unwrap();
        for output in [&pipe as &dyn Source, &socket] {
            assert!(wait_while_read(output, &[&never.0], SOON).unwrap());
        }
        drop((reader, peer));
        for output in [&pipe as &dyn Source, &socket] {
            assert!(!wait_while_read(output, &[&never.0], None).unwrap());
        }
    }

    #[test]
    fn a_file_is_always_read_and_a_source_wakes_as_well() {
        let file = File::options().write(true).open("/dev/null").unwrap();
        assert!(wait_while_read(&file, &[], SOON).unwrap());
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"x").unwrap();
        assert!(wait_while_read(&file, &[&reader], None).unwrap());
    }
}
