//! Waiting for many descriptors and a time: epoll, level-triggered, and one timer.
//!
//! A time that is not near is waited for by the timer, which is set only for an earlier time than it was: a wait that is told
//! its time would look at the clock and set a timer in the kernel for everything that happens.

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
const AT_ONCE: usize = 128;
/// The token of the timer.
const ALARM: u64 = u64::MAX;
/// A wait that may take longer than this is ended by the timer.
const LONG: Duration = Duration::from_millis(100);

const ENDED: EventFlags = EventFlags::HUP.union(EventFlags::ERR);
const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(ENDED);
const ROOM: EventFlags = EventFlags::OUT.union(ENDED);

/// What a reactor waits with.
pub(crate) struct Poller {
    epoll: OwnedFd,
    /// Made when it is first needed: many processes wait for no time.
    alarm: OnceCell<Alarm>,
    /// What the alarm is set for.
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
            happened: RefCell::new(Vec::with_capacity(AT_ONCE)),
        })
    }

    /// `false` for what has no events, such as a regular file: it is always ready.
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
            // The alarm may be set for the time of a wait before: to turn it off costs more than to be woken once.
            Wait::Forever => None,
            Wait::Until(time) => self.without_alarm(time),
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
            if token == ALARM {
                self.cancel_alarm();
                // Of this wait, or of one before it that was for an earlier time.
                may_be_over = true;
                continue;
            }
            events.push(Event {
                token: Token(token),
                readable: flags.intersects(INPUT),
                writable: flags.intersects(ROOM),
                hangup: flags.intersects(ENDED),
            });
        }
        Ok(may_be_over && matches!(wait, Wait::Until(time) if Instant::now() >= time))
    }

    /// How long to wait until this time without the alarm; `None` if the alarm ends the wait then, or earlier.
    fn without_alarm(&self, time: Instant) -> Option<Duration> {
        if self.alarm_at.get().is_some_and(|at| at <= time) {
            return None;
        }
        let left = time.saturating_duration_since(Instant::now());
        if left < LONG {
            return Some(left);
        }
        let Some(alarm) = self.alarm() else {
            // No descriptor for one.
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
        let data = EventData::new_u64(ALARM);
        epoll::add(&self.epoll, &alarm, data, EventFlags::IN).ok()?;
        Some(self.alarm.get_or_init(|| alarm))
    }

    /// Forgets the times of the waits before.
    pub(crate) fn cancel_alarm(&self) {
        if self.alarm_at.take().is_some()
            && let Some(alarm) = self.alarm.get()
        {
            alarm.set(None);
        }
    }
}

/// Errors and hangups are told in any case.
fn flags(what: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, what.readable);
    flags.set(EventFlags::OUT, what.writable);
    flags.set(EventFlags::RDHUP, what.readable || what.half_close);
    flags
}
