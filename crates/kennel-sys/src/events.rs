//! Sleeping until something happens: a descriptor is ready, a process has ended, the time is over.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

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

/// Wakes a sleeper when it is time. Set once, it costs nothing until then: a sleep that is told the time it may take is
/// told it anew for everything that happens.
#[derive(Debug)]
pub struct Alarm(OwnedFd);

impl Alarm {
    /// One that is not set.
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Alarm(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Rings after this time, and not before; never, with `None`. Ends its ringing.
    pub fn set(&self, after: Option<Duration>) {
        // Zero would be never.
        let after = after.map(|after| after.max(Duration::from_nanos(1)));
        let after = after.and_then(|after| Timespec::try_from(after).ok());
        let never = Timespec::default();
        let when = Itimerspec {
            it_interval: never,
            it_value: after.unwrap_or(never),
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &when)
            .expect("a timer of ours and a time that is one");
    }
}

impl AsFd for Alarm {
    /// Readable while it rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_rings_when_it_is_time_until_it_is_set_again() {
        let alarm = Alarm::new().unwrap();
        let rings = |within| {
            let within = Timespec::try_from(within).unwrap();
            poll(&mut [PollFd::new(&alarm, PollFlags::IN)], Some(&within)).unwrap() > 0
        };
        assert!(!rings(Duration::ZERO));
        for soon in [Duration::ZERO, Duration::from_millis(1)] {
            alarm.set(Some(soon));
            assert!(rings(Duration::from_secs(60)));
            assert!(rings(Duration::ZERO));
            alarm.set(None);
            assert!(!rings(Duration::ZERO));
        }
        alarm.set(Some(Duration::from_secs(3600)));
        assert!(!rings(Duration::ZERO));
    }
}
