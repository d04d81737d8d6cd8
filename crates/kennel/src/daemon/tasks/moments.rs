//! Moments that are waited for. They share one alarm, which is set only when another one comes next: a line costs no
//! look at the time, as it would if the event loop had to know for each sleep how long it may take.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_sys::events::Alarm;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

thread_local! {
    /// Of the thread's event loop.
    static MOMENTS: OnceCell<Rc<Moments>> = const { OnceCell::new() };
}

#[derive(Debug)]
struct Moments {
    /// Set for the first of them.
    alarm: AsyncFd<Alarm>,
    /// How many wait for each.
    waiting: RefCell<BTreeMap<Instant, usize>>,
}

/// Before anything is waited for, in the event loop.
#[expect(
    deprecated,
    reason = "unsound only where the descriptor can change behind it: this one is ours, and what replaces it is `unsafe`"
)]
pub(super) fn set_up() -> io::Result<()> {
    let moments = Moments {
        alarm: AsyncFd::with_interest(Alarm::new()?, Interest::READABLE)?,
        waiting: RefCell::default(),
    };
    // Whoever set it up before has done the same.
    MOMENTS.with(|cell| drop(cell.set(Rc::new(moments))));
    Ok(())
}

/// Waits until then; for ever, if there is no such moment.
pub(super) async fn until(moment: Option<Instant>) {
    let Some(moment) = moment else {
        return std::future::pending().await;
    };
    if Instant::now() >= moment {
        return;
    }
    let waits = Waits::for_it(moment);
    while let Ok(mut rings) = waits.moments.alarm.readable().await {
        rings.clear_ready();
        let now = Instant::now();
        if now >= moment {
            return;
        }
        waits.moments.are_past(now);
    }
    // The event loop ends, and we with it.
    std::future::pending().await
}

/// Waits for so long.
pub(super) async fn after(time: Duration) {
    until(Some(Instant::now() + time)).await;
}

/// What comes of it, if it comes in time.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        outcome = future => Some(outcome),
        () = after(limit) => None,
    }
}

/// One who waits for a moment; dropping it is not to wait any more.
struct Waits {
    moments: Rc<Moments>,
    moment: Instant,
}

impl Waits {
    fn for_it(moment: Instant) -> Waits {
        let moments = MOMENTS.with(|cell| cell.get().map(Rc::clone));
        let moments = moments.expect("it is set up with the event loop");
        moments.change(|waiting| *waiting.entry(moment).or_default() += 1);
        Waits { moments, moment }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.moments.change(|waiting| {
            if let Some(count) = waiting.get_mut(&self.moment) {
                *count -= 1;
                if *count == 0 {
                    waiting.remove(&self.moment);
                }
            }
        });
    }
}

impl Moments {
    /// Whoever hears the alarm sets it for the next: those it rang for may not be asked any more, though they are
    /// still there.
    fn are_past(&self, now: Instant) {
        self.change(|waiting| {
            while let Some(first) = waiting.first_entry()
                && *first.key() <= now
            {
                first.remove();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Instant, usize>)) {
        let mut waiting = self.waiting.borrow_mut();
        let first = |waiting: &BTreeMap<Instant, usize>| waiting.keys().next().copied();
        let before = first(&waiting);
        change(&mut waiting);
        let next = first(&waiting);
        if next != before {
            let left = |next: Instant| next.saturating_duration_since(Instant::now());
            self.alarm.get_ref().set(next.map(left));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_runtime(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        runtime.unwrap().block_on(async {
            set_up().unwrap();
            test.await;
        });
    }

    #[test]
    fn each_moment_comes_in_its_turn_and_not_before() {
        on_a_runtime(async {
            let start = Instant::now();
            let order = RefCell::new(Vec::new());
            let wait = async |millis| {
                let time = Duration::from_millis(millis);
                after(time).await;
                assert!(start.elapsed() >= time);
                order.borrow_mut().push(millis);
            };
            tokio::join!(wait(30), wait(10), wait(20), wait(10), wait(0));
            assert_eq!(*order.borrow(), [0, 10, 10, 20, 30]);
        });
    }

    #[test]
    fn one_who_is_not_asked_any_more_holds_up_no_other() {
        on_a_runtime(async {
            let mut idle = Box::pin(after(Duration::from_millis(5)));
            // It waits from now on.
            tokio::select! {
                biased;
                () = &mut idle => unreachable!("it is not asked again"),
                () = tokio::task::yield_now() => {}
            }
            let first = after(Duration::from_millis(20));
            let second = async {
                after(Duration::from_millis(30)).await;
                after(Duration::from_millis(10)).await;
            };
            // Without an end where the alarm stays set for the one that is not asked.
            tokio::join!(first, second);
            drop(idle);
        });
    }

    #[test]
    fn a_moment_nobody_waits_for_any_more_holds_up_no_other() {
        on_a_runtime(async {
            tokio::select! {
                () = after(Duration::from_millis(20)) => {}
                () = after(Duration::from_secs(3600)) => unreachable!("an hour is longer"),
            }
            // The first of two is given up.
            tokio::join!(
                async {
                    assert!(
                        within(Duration::from_millis(40), until(None))
                            .await
                            .is_none()
                    )
                },
                async {
                    tokio::select! {
                        () = after(Duration::from_millis(5)) => {}
                        () = tokio::task::yield_now() => {}
                    }
                    after(Duration::from_millis(20)).await;
                },
            );
            let waiting = MOMENTS.with(|cell| cell.get().map(Rc::clone)).unwrap();
            assert!(waiting.waiting.borrow().is_empty());
        });
    }
}
