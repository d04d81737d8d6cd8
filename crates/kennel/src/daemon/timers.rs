//! The table of all timers of the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use kennel_core::engine::daemon::SlotId;
use kennel_core::lifetime::ClientId;

/// The timers. Each is set for at most one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The deadline of a client's first line or of its close; the next check for memory.
    Client(ClientId),
    /// Check whether a client's process is alive, where the kernel reports no exit.
    ClientSweep(ClientId),
    /// The engine's timeout of a server slot.
    Slot(SlotId),
    /// Check whether a throttled server may be read.
    ServerThrottle(SlotId),
    /// The deadline for the exit status of a server's first process; the next check of a warden whose exit is not reported.
    ServerExit(SlotId),
    /// Accept connections again after a shortage of descriptors.
    Accept,
    Life,
    /// Check whether the owner is alive, where the kernel reports no exit.
    OwnerSweep,
    Upgrade,
    /// Write `state.json`.
    WriteState,
    /// Return memory of long lines to the system.
    ReturnMemory,
}

/// The table of timers.
#[derive(Debug, Default)]
pub(super) struct Timers {
    times: BTreeMap<Timer, Instant>,
    order: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    /// Sets or replaces a timer; `None` cancels it.
    pub(super) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.times.insert(timer, at),
            None => self.times.remove(&timer),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, timer));
        }
        self.order.extend(at.map(|at| (at, timer)));
    }

    /// The time that a timer is set for.
    pub(super) fn get(&self, timer: Timer) -> Option<Instant> {
        self.times.get(&timer).copied()
    }

    /// The time of the earliest timer.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Removes and returns a timer that is due by now.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.set(timer, None);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_are_due_in_order_and_what_is_cancelled_is_not() {
        let start = Instant::now();
        let at = |millis| Some(start + Duration::from_millis(millis));
        let mut timers = Timers::default();
        timers.set(Timer::Life, at(30));
        timers.set(Timer::Accept, at(10));
        timers.set(Timer::Upgrade, at(20));
        timers.set(Timer::WriteState, at(5));
        timers.set(Timer::WriteState, None);
        // Set again: the earlier time does not count.
        timers.set(Timer::Accept, at(25));
        assert_eq!(timers.next_timeout(), at(20));
        assert_eq!(timers.get(Timer::Accept), at(25));
        let now = start + Duration::from_millis(25);
        assert_eq!(timers.take_due(now), Some(Timer::Upgrade));
        assert_eq!(timers.take_due(now), Some(Timer::Accept));
        assert_eq!(timers.take_due(now), None);
        assert_eq!(
            (timers.next_timeout(), timers.get(Timer::Upgrade)),
            (at(30), None)
        );
    }
}
