//! What is waited for by the clock. All moments share one alarm, which is set only when another one comes next: a line
//! costs no look at the time, as it would if the loop had to know for each sleep how long it may take.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kennel_sys::events::Alarm;

use super::descriptor::Descriptor;
use super::first_of;
use super::round::Round;

/// A moment, and the number of one who waits for it.
type Wait = (Instant, u64);

/// Who waits for which moment.
pub(super) struct Moments {
    /// Set for the first of them.
    alarm: Rc<Alarm>,
    waiting: RefCell<BTreeMap<Wait, Waker>>,
    numbers: Cell<u64>,
}

impl Moments {
    pub(super) fn new() -> io::Result<Moments> {
        Ok(Moments {
            alarm: Rc::new(Alarm::new()?),
            waiting: RefCell::default(),
            numbers: Cell::new(0),
        })
    }

    /// Hears the alarm from now on, in a task of its own.
    pub(super) fn begin(round: &Rc<Round>) -> io::Result<()> {
        let alarm = Descriptor::of_input(Rc::clone(&round.moments.alarm))?;
        let of = Rc::clone(round);
        round.begin(Box::pin(async move {
            loop {
                alarm.readable().await;
                alarm.was_read();
                of.moments.ring();
            }
        }));
        Ok(())
    }

    /// Wakes those whose moment has come. The alarm is set for the next, whatever they do about it.
    fn ring(&self) {
        let now = Instant::now();
        let mut waiting = self.waiting.borrow_mut();
        while let Some(first) = waiting.first_entry()
            && first.key().0 <= now
        {
            first.remove().wake();
        }
        self.set_for(first(&waiting));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Wait, Waker>)) {
        let mut waiting = self.waiting.borrow_mut();
        let before = first(&waiting);
        change(&mut waiting);
        let next = first(&waiting);
        if next != before {
            self.set_for(next);
        }
    }

    fn set_for(&self, moment: Option<Instant>) {
        let left = |moment: Instant| moment.saturating_duration_since(Instant::now());
        self.alarm.set(moment.map(left));
    }
}

fn first(waiting: &BTreeMap<Wait, Waker>) -> Option<Instant> {
    waiting.keys().next().map(|(moment, _)| *moment)
}

/// Waits until then; for ever, if there is no such moment.
pub(in crate::daemon) async fn until(moment: Option<Instant>) {
    let Some(moment) = moment else {
        return std::future::pending().await;
    };
    if Instant::now() < moment {
        let mut waits = Waits::for_it(moment);
        poll_fn(|context| waits.poll(context)).await;
    }
}

/// Waits for so long.
pub(in crate::daemon) async fn after(time: Duration) {
    until(Some(Instant::now() + time)).await;
}

/// What comes of it, if it comes in time.
pub(in crate::daemon) async fn within<T>(
    limit: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    first_of! {
        outcome = future => Some(outcome),
        () = after(limit) => None,
    }
}

/// One who waits for a moment; dropping it is not to wait any more.
struct Waits {
    round: Rc<Round>,
    wait: Wait,
    /// It is on the list.
    listed: bool,
}

impl Waits {
    fn for_it(moment: Instant) -> Waits {
        let round = Round::here();
        let number = round.moments.numbers.get();
        round.moments.numbers.set(number + 1);
        Waits {
            round,
            wait: (moment, number),
            listed: false,
        }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        let moments = &self.round.moments;
        if std::mem::replace(&mut self.listed, true) {
            return match moments.waiting.borrow_mut().get_mut(&self.wait) {
                Some(waker) => {
                    waker.clone_from(context.waker());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            };
        }
        moments.change(|waiting| drop(waiting.insert(self.wait, context.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let moments = &self.round.moments;
        moments.change(|waiting| drop(waiting.remove(&self.wait)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{others_first, run, spawn};
    use super::*;

    #[test]
    fn each_moment_comes_in_its_turn_and_not_before() {
        run(async {
            let start = Instant::now();
            let order = Rc::new(RefCell::new(Vec::new()));
            let wait = |millis| {
                let order = Rc::clone(&order);
                spawn(async move {
                    let time = Duration::from_millis(millis);
                    after(time).await;
                    assert!(start.elapsed() >= time);
                    order.borrow_mut().push(millis);
                })
            };
            for waits in [30, 10, 20, 10, 0].map(wait) {
                assert_eq!(waits.await, Some(()));
            }
            assert_eq!(*order.borrow(), [0, 10, 10, 20, 30]);
        })
        .unwrap();
    }

    #[test]
    fn one_who_is_not_asked_any_more_holds_up_no_other() {
        run(async {
            let mut idle = Box::pin(after(Duration::from_millis(5)));
            // It waits from now on.
            first_of! {
                () = &mut idle => unreachable!("it is not asked again"),
                () = others_first() => {},
            }
            let first = spawn(after(Duration::from_millis(20)));
            // Without an end where the alarm stays set for the one that is not asked.
            after(Duration::from_millis(30)).await;
            after(Duration::from_millis(10)).await;
            assert_eq!(first.await, Some(()));
            drop(idle);
        })
        .unwrap();
    }

    #[test]
    fn a_moment_nobody_waits_for_any_more_holds_up_no_other() {
        run(async {
            first_of! {
                () = after(Duration::from_secs(3600)) => unreachable!("an hour is longer"),
                () = after(Duration::from_millis(20)) => {},
            }
            let limited = spawn(within(Duration::from_millis(40), until(None)));
            // The first of two is given up.
            first_of! {
                () = after(Duration::from_millis(5)) => {},
                () = others_first() => {},
            }
            after(Duration::from_millis(20)).await;
            assert_eq!(limited.await, Some(None));
            assert!(Round::here().moments.waiting.borrow().is_empty());
        })
        .unwrap();
    }
}
