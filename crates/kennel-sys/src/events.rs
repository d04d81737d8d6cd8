//! Blocking until an event: a descriptor is ready, a process has ended, or a timeout is over.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::io::Waitable;
pub use crate::os::Waker;
use crate::process::{POLL_INTERVAL, ProcessRef};

/// Blocks until one of `sources` is readable, one of `processes` has ended, or `timeout` is over. May return early, so check
/// all of them then.
///
/// If the kernel offers no event for the end of a process, the processes are checked every [`POLL_INTERVAL`].
pub fn sleep(
    sources: &[&dyn Waitable],
    processes: &[&ProcessRef],
    timeout: Option<Duration>,
) -> io::Result<()> {
    let sources = sources.iter().map(|source| readable(source.as_fd()));
    sleep_on(&mut sources.collect(), processes, timeout)
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Sleeps until one of `polled` has an event.
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
        let pause = match left {
            left if all_have_events => left,
            left => Some(left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL))),
        };
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        match poll(polled, pause.as_ref()) {
            Ok(0) if left == Some(Duration::ZERO) => return Ok(()),
            Ok(0) if processes.iter().all(|process| process.is_alive()) => {}
            Ok(_) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Blocks like [`sleep`], but ends when `output` has no reader any more: a process that has nothing to write would not notice
/// that otherwise. Returns `false` then.
pub fn wait_while_open(
    output: &dyn Waitable,
    sources: &[&dyn Waitable],
    timeout: Option<Duration>,
) -> io::Result<bool> {
    // No event is requested: the kernel always reports errors and hang-ups, and reports neither for a file.
    let output = PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty());
    let sources = sources.iter().map(|source| readable(source.as_fd()));
    let mut polled: Vec<PollFd<'_>> = std::iter::once(output).chain(sources).collect();
    sleep_on(&mut polled, &[], timeout)?;
    Ok(polled[0].revents().is_empty())
}

/// Whether a read of this source would not block.
pub fn is_readable(source: &dyn Waitable) -> bool {
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
    fn a_pipe_or_socket_that_loses_its_reader_wakes_an_idle_writer() {
        let (reader, pipe) = io::pipe().unwrap();
        let (peer, socket) = UnixStream::pair().unwrap();
        // Input is not for the writer, and must not wake it.
        io::Write::write_all(&mut &peer, b"typed").unwrap();
        let never = io::pipe().unwrap();
        for output in [&pipe as &dyn Waitable, &socket] {
            assert!(wait_while_open(output, &[&never.0], SOON).unwrap());
        }
        drop((reader, peer));
        for output in [&pipe as &dyn Waitable, &socket] {
            assert!(!wait_while_open(output, &[&never.0], None).unwrap());
        }
    }

    #[test]
    fn a_file_always_has_a_reader_and_a_source_wakes_the_wait() {
        let file = File::options().write(true).open("/dev/null").unwrap();
        assert!(wait_while_open(&file, &[], SOON).unwrap());
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"x").unwrap();
        assert!(wait_while_open(&file, &[&reader], None).unwrap());
    }
}
