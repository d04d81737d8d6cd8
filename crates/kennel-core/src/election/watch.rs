//! Whether a process that owes an answer is stuck.
//!
//! Slow is not stuck (lesson 28): one that works, or waits for its turn on a busy machine, is waited for as long
//! as it takes.

use std::time::Duration;

use crate::time::Moment;

/// How long silence is borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// 1 s for a daemon that is stopped, 10 s for one that does nothing.
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
}

/// What a look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It may still answer.
    Waiting,
    /// It has been stopped or idle for too long.
    Stuck,
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
    /// How long it has run, in whatever unit.
    pub cpu: u64,
}

/// Looks now and then at a process that owes an answer. Begin it when the wait begins.
#[derive(Debug)]
pub struct Watch {
    patience: Patience,
    /// Since when it has been stopped at every look.
    stopped: Option<Moment>,
    /// Since when it has done nothing, and what it had done by the last look.
    idle: (Moment, Option<Work>),
}

impl Watch {
    /// The wait begins.
    pub fn new(patience: Patience, now: Moment) -> Watch {
        Watch {
            patience,
            stopped: None,
            idle: (now, None),
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
                if self.patience == Patience::Last {
                    return Look::Works;
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
            patience if stopped_for >= patience.with_a_stopped_one() => Look::Stuck,
            patience if idle_for < patience.with_an_idle_one() => Look::Waiting,
            _ if work.is_some() => Look::Stuck,
            _ => Look::Unseen,
        }
    }
}
