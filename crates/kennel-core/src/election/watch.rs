//! Whether a process that owes an answer is stuck.
//!
//! Slow is not stuck (lesson 28): one that works, or waits for its turn on a busy machine, is waited for. But not for ever:
//! an event loop that has used seconds of CPU time, and took no connection meanwhile, does not get done. The CPU time counts,
//! not only the clock: on a machine that is busy, or was suspended, no process uses much of it.

use std::time::Duration;

use crate::time::Moment;

/// How long silence is borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// 1 s for a daemon that is stopped, 10 s for one that does nothing, 15 s for one that works.
    First,
    /// When it was silent that long before, and is asked once more.
    Last,
}

impl Patience {
    fn with_a_stopped_one(self) -> Duration {
        match self {
            Patience::First => Duration::from_secs(1),
            Patience::Last => Duration::from_millis(500),
        }
    }

    fn with_an_idle_one(self) -> Duration {
        match self {
            Patience::First => Duration::from_secs(10),
            Patience::Last => Duration::from_secs(1),
        }
    }

    /// It has to have used half of that time of the CPU, too.
    fn with_a_busy_one(self) -> Duration {
        match self {
            Patience::First => Duration::from_secs(15),
            Patience::Last => Duration::from_secs(5),
        }
    }
}

/// What a look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It may still answer.
    Waiting,
    /// It has been stopped or idle for too long; with [`Patience::Last`], or has worked for too long.
    Stuck,
    /// It has worked for too long, and should be asked once more. Said only with [`Patience::First`].
    Overdue,
    /// It is not stuck. Said only with [`Patience::Last`].
    Works,
    /// It has been silent for too long, but nobody can see what it does.
    Unseen,
}

/// What a process has done and is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The letter that Linux has for it: `R` ready to run, `T` stopped.
    pub state: char,
    /// How long it has run, in ticks of `TICK`.
    pub cpu: u64,
}

/// One that gets so little CPU time that it cannot be called stuck by then works, for all that is known: this many times the
/// limit with [`Patience::Last`].
const STARVES: u32 = 4;

/// The unit of CPU time in Linux's `/proc`.
const TICK: Duration = Duration::from_millis(10);

/// Looks now and then at a process that owes an answer. Begin it when the wait begins.
#[derive(Debug)]
pub struct Watch {
    patience: Patience,
    /// Since when it has been stopped at every look.
    stopped: Option<Moment>,
    /// Since when it has done nothing, and what it had done by the last look.
    idle: (Moment, Option<Work>),
    /// When the wait began, and what it had done by the first look.
    first: (Moment, Option<Work>),
    /// It has worked since the first look.
    worked: bool,
}

impl Watch {
    /// The wait begins.
    pub fn new(patience: Patience, now: Moment) -> Watch {
        Watch {
            patience,
            stopped: None,
            idle: (now, None),
            first: (now, None),
            worked: false,
        }
    }

    /// What is to be thought of it; `work` as far as anybody can see.
    pub fn look(&mut self, work: Option<Work>, now: Moment) -> Look {
        if let Some(work) = work {
            let did_nothing = self.idle.1.is_none_or(|before| before.cpu == work.cpu);
            // One that is ready to run and gets no turn is not stuck: the machine is busy.
            if did_nothing && work.state != 'R' {
                self.idle.1 = Some(work);
            } else {
                self.idle = (now, Some(work));
                self.worked = true;
                if let Some(look) = self.worked_for_long(work, now) {
                    return look;
                }
            }
        }
        self.stopped = match work {
            Some(Work { state: 'T', .. }) => self.stopped.or(Some(now)),
            _ => None,
        };
        let stopped_for = self.stopped.map_or(Duration::ZERO, |since| now - since);
        let idle_for = now - self.idle.0;
        match self.patience {
            // It has done what it had to, and waits for events again: the answer comes.
            Patience::Last if self.worked => match idle_for < Patience::Last.with_an_idle_one() {
                true => Look::Waiting,
                false => Look::Works,
            },
            patience if stopped_for >= patience.with_a_stopped_one() => Look::Stuck,
            patience if idle_for < patience.with_an_idle_one() => Look::Waiting,
            _ if work.is_some() => Look::Stuck,
            _ => Look::Unseen,
        }
    }

    /// What is to be thought of one that works and does not answer, once that takes long.
    fn worked_for_long(&mut self, work: Work, now: Moment) -> Option<Look> {
        let before = self.first.1.get_or_insert(work).cpu;
        let limit = self.patience.with_a_busy_one();
        if now - self.first.0 < limit {
            return None;
        }
        let ticks = work.cpu.saturating_sub(before);
        let used = TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
        let enough = used >= limit / 2;
        match self.patience {
            Patience::First if enough => Some(Look::Overdue),
            Patience::Last if enough => Some(Look::Stuck),
            Patience::Last if now - self.first.0 >= limit * STARVES => Some(Look::Works),
            Patience::First | Patience::Last => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The first look that says more than [`Look::Waiting`], and the second in which it does, at a process that is seen so
    /// ten times a second.
    fn seen(patience: Patience, at: impl Fn(u64) -> Work) -> (Look, u64) {
        let mut watch = Watch::new(patience, Moment::START);
        (1..)
            .map(|nth| {
                let now = Moment::START + nth as u32 * SECOND / 10;
                (watch.look(Some(at(nth)), now), nth / 10)
            })
            .find(|(look, _)| *look != Look::Waiting)
            .expect("it has no end")
    }

    fn runs(cpu: u64) -> Work {
        Work { state: 'R', cpu }
    }

    #[test]
    fn one_that_works_without_end_is_overdue_and_then_stuck() {
        let spins = |nth| runs(nth * 10);
        assert_eq!(seen(Patience::First, spins), (Look::Overdue, 15));
        assert_eq!(seen(Patience::Last, spins), (Look::Stuck, 5));
    }

    #[test]
    fn one_that_gets_little_cpu_time_is_not_stuck() {
        // A tenth of a CPU: 7.5 s of CPU time take 75 s.
        let starves = |nth| runs(nth);
        assert_eq!(seen(Patience::First, starves), (Look::Overdue, 75));
        assert_eq!(seen(Patience::Last, starves), (Look::Works, 20));
        // No turn at all.
        assert_eq!(seen(Patience::Last, |_| runs(7)), (Look::Works, 20));
    }

    #[test]
    fn one_that_has_done_its_work_and_waits_again_is_not_stuck() {
        let done = |nth: u64| match nth {
            0..=20 => runs(nth * 10),
            _ => Work {
                state: 'S',
                cpu: 200,
            },
        };
        assert_eq!(seen(Patience::Last, done), (Look::Works, 3));
        // After 10 s without work, with an answer owed, it is.
        assert_eq!(seen(Patience::First, done), (Look::Stuck, 12));
    }

    #[test]
    fn one_that_is_stopped_or_idle_is_stuck() {
        let is = |state| move |_| Work { state, cpu: 1 };
        assert_eq!(seen(Patience::First, is('T')).0, Look::Stuck);
        assert_eq!(seen(Patience::First, is('S')), (Look::Stuck, 10));
        assert_eq!(seen(Patience::Last, is('S')), (Look::Stuck, 1));
    }
}
