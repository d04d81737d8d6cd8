//! Events that wake a blocked thread: by another thread, or after a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Wakes a blocked thread from another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Creates an event that is not set.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Makes it readable, which wakes the thread that waits for it.
    pub fn wake(&self) {
        // This fails only if it is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable again.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    /// Readable after a call of `wake`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timer as an event. It is set once: a timeout of `poll` would have to be computed again for each event.
#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    /// Creates a timer that is not set.
    pub(crate) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Alarm(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the time after which it becomes readable, or stops it with `None`. Makes it unreadable until then.
    pub(crate) fn set(&self, after: Option<Duration>) {
        // Zero would stop the timer.
        let after = after.map(|after| after.max(Duration::from_nanos(1)));
        let after = after.and_then(|after| Timespec::try_from(after).ok());
        let never = Timespec::default();
        let when = Itimerspec {
            it_interval: never,
            it_value: after.unwrap_or(never),
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &when)
            .expect("the timer is ours and the time is valid");
    }
}

impl AsFd for Alarm {
    /// Readable after the time that was set.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn an_alarm_is_readable_from_its_time_until_it_is_set_again() {
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
