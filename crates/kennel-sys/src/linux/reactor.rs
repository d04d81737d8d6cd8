//! The reactor of Linux: epoll, level-triggered, and one timer.
//!
//! The timer ends a long wait. It is set only for an earlier time than before: with a timeout for each wait, the kernel
//! would read the clock and set a timer for every event.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::wakers::Alarm;
use crate::io::{Event, Interest, Token, Wait};

/// Maximum number of events of one wait.
const MAX_EVENTS: usize = 128;
/// The token of the timer.
const TIMER_TOKEN: u64 = u64::MAX;
/// A wait that may take longer than this ends with the timer.
const LONG_WAIT: Duration = Duration::from_millis(100);

const HANGUP_FLAGS: EventFlags = EventFlags::HUP.union(EventFlags::ERR);
const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(HANGUP_FLAGS);
const WRITABLE_FLAGS: EventFlags = EventFlags::OUT.union(HANGUP_FLAGS);

/// The state of a reactor.
pub(crate) struct Poller {
    epoll: OwnedFd,
    /// Created when it is first needed: many processes need no timer.
    alarm: OnceCell<Alarm>,
    /// The time at which the timer expires.
    alarm_at: Cell<Option<Instant>>,
    happened: RefCell<Vec<epoll::Event>>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Poller").field(&self.epoll).finish()
    }
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            alarm: OnceCell::new(),
            alarm_at: Cell::new(None),
            happened: RefCell::new(Vec::with_capacity(MAX_EVENTS)),
        })
    }

    /// Adds a descriptor. `false` for one without events, such as a regular file: it is always ready.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: Token, what: Interest) -> io::Result<bool> {
        let data = EventData::new_u64(token.0);
        match epoll::add(&self.epoll, fd, data, flags(what)) {
            Ok(()) => Ok(true),
            Err(Errno::PERM) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn change(
        &self,
        fd: BorrowedFd<'_>,
        token: Token,
        what: Interest,
    ) -> io::Result<()> {
        let data = EventData::new_u64(token.0);
        Ok(epoll::modify(&self.epoll, fd, data, flags(what))?)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    pub(crate) fn wait(&self, wait: Wait, events: &mut Vec<Event>) -> io::Result<bool> {
        let most = match wait {
            Wait::No => Some(Duration::ZERO),
            // The timer may be set for an earlier wait: to cancel it costs more than one extra wake-up.
            Wait::Forever => None,
            Wait::Until(time) => self.timeout_without_timer(time),
        };
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        let mut happened = self.happened.borrow_mut();
        happened.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut happened), most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        events.clear();
        let mut may_be_over = most.is_some();
        for event in happened.iter() {
            let (flags, token) = (event.flags, event.data.u64());
            if token == TIMER_TOKEN {
                self.cancel_alarm();
                // The timer expired for this wait, or for an earlier one.
                may_be_over = true;
                continue;
            }
            events.push(Event {
                token: Token(token),
                readable: flags.intersects(INPUT),
                writable: flags.intersects(WRITABLE_FLAGS),
                hangup: flags.intersects(HANGUP_FLAGS),
            });
        }
        Ok(may_be_over && matches!(wait, Wait::Until(time) if Instant::now() >= time))
    }

    /// The timeout for a wait until `time` without the timer; `None` if the timer ends the wait by then.
    fn timeout_without_timer(&self, time: Instant) -> Option<Duration> {
        if self.alarm_at.get().is_some_and(|at| at <= time) {
            return None;
        }
        let left = time.saturating_duration_since(Instant::now());
        if left < LONG_WAIT {
            return Some(left);
        }
        let Some(alarm) = self.alarm() else {
            // No descriptor is left for a timer.
            return Some(left);
        };
        alarm.set(Some(left));
        self.alarm_at.set(Some(time));
        None
    }

    fn alarm(&self) -> Option<&Alarm> {
        if let Some(alarm) = self.alarm.get() {
            return Some(alarm);
        }
        let alarm = Alarm::new().ok()?;
        let data = EventData::new_u64(TIMER_TOKEN);
        epoll::add(&self.epoll, &alarm, data, EventFlags::IN).ok()?;
        Some(self.alarm.get_or_init(|| alarm))
    }

    /// Cancels the timeouts of earlier waits.
    pub(crate) fn cancel_alarm(&self) {
        if self.alarm_at.take().is_some()
            && let Some(alarm) = self.alarm.get()
        {
            alarm.set(None);
        }
    }
}

/// The epoll flags. Errors and hangups are always reported.
fn flags(what: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, what.readable);
    flags.set(EventFlags::OUT, what.writable);
    flags.set(EventFlags::RDHUP, what.readable || what.half_close);
    flags
}
