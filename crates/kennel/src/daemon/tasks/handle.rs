//! A task that somebody else waits for, or ends.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::round::Round;
use super::slab::Number;

/// Begins a task. Dropping its handle leaves it to itself.
pub(in crate::daemon) fn spawn<T: 'static>(work: impl Future<Output = T> + 'static) -> Handle<T> {
    let outcome = Rc::new(Outcome::default());
    let ends = Ends(Rc::clone(&outcome));
    let task = Round::here().begin(Box::pin(async move {
        let value = work.await;
        ends.0.value.set(Some(value));
    }));
    Handle { task, outcome }
}

/// A task, for whoever waits for its outcome: there is none if it was ended before, or panicked.
pub(in crate::daemon) struct Handle<T> {
    task: Number,
    outcome: Rc<Outcome<T>>,
}

impl<T> Handle<T> {
    /// Ends it where it waits.
    pub(in crate::daemon) fn end(self) {
        Round::here().end(self.task);
    }
}

impl<T> Future for Handle<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let outcome = &self.outcome;
        if outcome.is_known.get() {
            return Poll::Ready(outcome.value.take());
        }
        *outcome.waits.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

struct Outcome<T> {
    value: Cell<Option<T>>,
    is_known: Cell<bool>,
    waits: RefCell<Option<Waker>>,
}

impl<T> Default for Outcome<T> {
    fn default() -> Outcome<T> {
        Outcome {
            value: Cell::new(None),
            is_known: Cell::new(false),
            waits: RefCell::default(),
        }
    }
}

/// However a task ends, whoever waits for it hears so.
struct Ends<T>(Rc<Outcome<T>>);

impl<T> Drop for Ends<T> {
    fn drop(&mut self) {
        self.0.is_known.set(true);
        if let Some(waits) = self.0.waits.take() {
            waits.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::super::{others_first, run};
    use super::*;

    #[test]
    fn a_task_goes_on_beside_and_its_outcome_is_waited_for() {
        let outcome = run(async {
            let task = spawn(async {
                others_first().await;
                7
            });
            others_first().await;
            task.await
        });
        assert_eq!(outcome.unwrap(), Some(7));
    }

    #[test]
    fn one_that_panics_has_no_outcome_and_the_others_go_on() {
        let outcome = run(async {
            let other = spawn(async {
                others_first().await;
                7
            });
            let panics = spawn(async { panic!("on purpose") });
            (panics.await, other.await)
        });
        let (none, seven): (Option<()>, _) = outcome.unwrap();
        assert_eq!((none, seven), (None, Some(7)));
    }

    #[test]
    fn one_that_is_ended_is_dropped_at_once_and_one_that_is_left_with_the_loop() {
        let held = Rc::new(());
        let hold = |held: &Rc<()>| {
            let held = Rc::clone(held);
            async move {
                pending::<()>().await;
                drop(held);
            }
        };
        run(async {
            let task = spawn(hold(&held));
            drop(spawn(hold(&held)));
            others_first().await;
            assert_eq!(Rc::strong_count(&held), 3);
            task.end();
            assert_eq!(Rc::strong_count(&held), 2);
        })
        .unwrap();
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[test]
    fn a_task_can_end_itself() {
        run(async {
            let own: Rc<Cell<Option<Handle<()>>>> = Rc::default();
            let its = Rc::clone(&own);
            own.set(Some(spawn(async move {
                others_first().await;
                its.take().unwrap().end();
                pending().await
            })));
            while Rc::strong_count(&own) > 1 {
                others_first().await;
            }
        })
        .unwrap();
    }
}
