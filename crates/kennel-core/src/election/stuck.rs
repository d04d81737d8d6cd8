//! Detects a daemon that does not answer because it is stuck.
//!
//! Slow is not stuck (lesson 28): a daemon that uses CPU time, or waits for its turn on a busy machine, gets more time.
//! But the time is limited: an event loop that has used seconds of CPU time without accepting a connection is stuck, too.
//! Its CPU time counts, not only the clock: on a busy or suspended machine no process uses much of it.

use std::time::Duration;

use crate::time::Moment;

/// How long a daemon may be silent before it counts as stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// The first wait: 1 s while the daemon is stopped, 10 s while it is idle, 15 s while it uses CPU time.
    First,
    /// The wait after a second request, once the first was not answered: 0.5 s, 1 s and 5 s.
    Last,
}

impl Patience {
    fn stopped_limit(self) -> Duration {
        match self {
            Patience::First => Duration::from_secs(1),
            Patience::Last => Duration::from_millis(500),
        }
    }

    fn idle_limit(self) -> Duration {
        match self {
            Patience::First => Duration::from_secs(10),
            Patience::Last => Duration::from_secs(1),
        }
    }

    /// The daemon must also have used half of this time of the CPU.
    fn busy_limit(self) -> Duration {
        match self {
            Patience::First => Duration::from_secs(15),
            Patience::Last => Duration::from_secs(5),
        }
    }
}

/// The result of a check of a silent daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StuckCheck {
    /// Not decided: the daemon may still answer.
    Undecided,
    /// It has been stopped or idle for too long, or, with [`Patience::Last`], has used CPU time for too long.
    Stuck,
    /// It has used CPU time for too long and should be asked once more. Only with [`Patience::First`].
    Overdue,
    /// It is not stuck. Only with [`Patience::Last`].
    NotStuck,
    /// It has been silent for too long, but its process cannot be examined.
    Unknown,
}

/// The state of a process and its CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// The state letter of Linux: `R` ready to run, `T` stopped.
    pub state: char,
    /// CPU time in units of `TICK`.
    pub cpu: u64,
}

/// Multiple of the busy limit after which, with [`Patience::Last`], a daemon that got too little CPU time to be called stuck
/// counts as not stuck.
const STARVED_FACTOR: u32 = 4;

/// The unit of CPU time that Linux reports.
const TICK: Duration = Duration::from_millis(10);

/// Decides from repeated checks whether a silent daemon is stuck. Create it when the wait for its answer begins.
#[derive(Debug)]
pub struct StuckWatch {
    patience: Patience,
    /// Since when every check found it stopped.
    stopped: Option<Moment>,
    /// Since when it is idle, and its activity at the last check.
    idle: (Moment, Option<Activity>),
    /// When the wait began, and its activity at the first check.
    first: (Moment, Option<Activity>),
    /// Whether it used CPU time since the first check.
    used_cpu_time: bool,
}

impl StuckWatch {
    /// Starts the wait for an answer.
    pub fn new(patience: Patience, now: Moment) -> StuckWatch {
        StuckWatch {
            patience,
            stopped: None,
            idle: (now, None),
            first: (now, None),
            used_cpu_time: false,
        }
    }

    /// Checks the daemon. `activity`: `None` if its process cannot be examined.
    pub fn check(&mut self, activity: Option<Activity>, now: Moment) -> StuckCheck {
        if let Some(activity) = activity {
            let before = self.idle.1;
            let did_nothing = before.is_none_or(|before| before.cpu == activity.cpu);
            // A process that is ready to run but gets no turn is not stuck: the machine is busy.
            if did_nothing && activity.state != 'R' {
                self.idle.1 = Some(activity);
            } else {
                self.idle = (now, Some(activity));
                self.used_cpu_time = true;
                if let Some(result) = self.check_busy(activity, now) {
                    return result;
                }
            }
        }
        self.stopped = match activity {
            Some(Activity { state: 'T', .. }) => self.stopped.or(Some(now)),
            _ => None,
        };
        let stopped_for = self.stopped.map_or(Duration::ZERO, |since| now - since);
        let idle_for = now - self.idle.0;
        match self.patience {
            // It has used CPU time and waits for events again: the answer is on its way.
            Patience::Last if self.used_cpu_time => match idle_for < Patience::Last.idle_limit() {
                true => StuckCheck::Undecided,
                false => StuckCheck::NotStuck,
            },
            patience if stopped_for >= patience.stopped_limit() => StuckCheck::Stuck,
            patience if idle_for < patience.idle_limit() => StuckCheck::Undecided,
            _ if activity.is_some() => StuckCheck::Stuck,
            _ => StuckCheck::Unknown,
        }
    }

    /// Decides about a daemon that uses CPU time without answering, once that takes long.
    fn check_busy(&mut self, activity: Activity, now: Moment) -> Option<StuckCheck> {
        let before = self.first.1.get_or_insert(activity).cpu;
        let limit = self.patience.busy_limit();
        if now - self.first.0 < limit {
            return None;
        }
        let ticks = activity.cpu.saturating_sub(before);
        let used = TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
        let enough = used >= limit / 2;
        match self.patience {
            Patience::First if enough => Some(StuckCheck::Overdue),
            Patience::Last if enough => Some(StuckCheck::Stuck),
            Patience::Last if now - self.first.0 >= limit * STARVED_FACTOR => {
                Some(StuckCheck::NotStuck)
            }
            Patience::First | Patience::Last => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The first result other than [`StuckCheck::Undecided`], and its second, if the daemon is checked ten times a second.
    fn result_of(patience: Patience, at: impl Fn(u64) -> Activity) -> (StuckCheck, u64) {
        let mut watch = StuckWatch::new(patience, Moment::START);
        (1..)
            .map(|nth| {
                let now = Moment::START + nth as u32 * SECOND / 10;
                (watch.check(Some(at(nth)), now), nth / 10)
            })
            .find(|(result, _)| *result != StuckCheck::Undecided)
            .expect("it has no end")
    }

    fn runs(cpu: u64) -> Activity {
        Activity { state: 'R', cpu }
    }

    #[test]
    fn a_daemon_that_uses_cpu_time_without_end_is_overdue_and_then_stuck() {
        let spins = |nth| runs(nth * 10);
        assert_eq!(result_of(Patience::First, spins), (StuckCheck::Overdue, 15));
        assert_eq!(result_of(Patience::Last, spins), (StuckCheck::Stuck, 5));
    }

    #[test]
    fn a_daemon_that_gets_little_cpu_time_is_not_stuck() {
        // With a tenth of a CPU, 7.5 s of CPU time take 75 s.
        let starves = |nth| runs(nth);
        assert_eq!(
            result_of(Patience::First, starves),
            (StuckCheck::Overdue, 75)
        );
        assert_eq!(
            result_of(Patience::Last, starves),
            (StuckCheck::NotStuck, 20)
        );
        // No turn at all.
        assert_eq!(
            result_of(Patience::Last, |_| runs(7)),
            (StuckCheck::NotStuck, 20)
        );
    }

    #[test]
    fn a_daemon_that_was_busy_and_waits_for_events_again_is_not_stuck() {
        let done = |nth: u64| match nth {
            0..=20 => runs(nth * 10),
            _ => Activity {
                state: 'S',
                cpu: 200,
            },
        };
        assert_eq!(result_of(Patience::Last, done), (StuckCheck::NotStuck, 3));
        // After 10 s without CPU time and without an answer, it is.
        assert_eq!(result_of(Patience::First, done), (StuckCheck::Stuck, 12));
    }

    #[test]
    fn a_stopped_or_idle_daemon_is_stuck() {
        let is = |state| move |_| Activity { state, cpu: 1 };
        assert_eq!(result_of(Patience::First, is('T')).0, StuckCheck::Stuck);
        assert_eq!(result_of(Patience::First, is('S')), (StuckCheck::Stuck, 10));
        assert_eq!(result_of(Patience::Last, is('S')), (StuckCheck::Stuck, 1));
    }
}
