//! What wakes a sleeper: another thread, or a time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

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
    use rustix::event::{PollFd, PollFlags, poll};

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
