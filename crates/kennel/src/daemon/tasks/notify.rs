//! A word from one task to another: something has happened, look again.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Whoever waits for a word, and a word that nobody has waited for yet.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Notify {
    /// For whoever waits next.
    kept: Cell<bool>,
    /// How often all were called.
    calls: Cell<u64>,
    waiting: RefCell<Vec<Waiting>>,
    numbers: Cell<u64>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    waker: Waker,
    /// The word is for this one, who has not looked yet.
    called: bool,
}

impl Notify {
    /// Calls one of those who wait; if there is none, the next who does has waited enough.
    pub(in crate::daemon) fn notify_one(&self) {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.iter_mut().find(|waiting| !waiting.called) {
            Some(first) => {
                first.called = true;
                first.waker.wake_by_ref();
            }
            None => self.kept.set(true),
        }
    }

    /// Calls all who wait now.
    pub(in crate::daemon) fn notify_waiters(&self) {
        self.calls.set(self.calls.get() + 1);
        // Who has a word already comes anyway.
        let mut waiting = self.waiting.borrow_mut();
        for one in waiting.extract_if(.., |one| !one.called) {
            one.waker.wake();
        }
    }

    /// Waits for a word from now on.
    pub(in crate::daemon) fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            calls: self.calls.get(),
            number: None,
        }
    }

    fn leave(&self, number: u64) -> Option<Waiting> {
        let mut waiting = self.waiting.borrow_mut();
        let place = waiting.iter().position(|one| one.number == number)?;
        Some(waiting.remove(place))
    }
}

#[derive(Debug)]
pub(in crate::daemon) struct Notified<'a> {
    notify: &'a Notify,
    /// As many calls had been when it began.
    calls: u64,
    /// Its number among those who wait.
    number: Option<u64>,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        if notify.calls.get() != self.calls {
            self.number.take().map(|number| notify.leave(number));
            return Poll::Ready(());
        }
        let Some(number) = self.number else {
            if notify.kept.take() {
                return Poll::Ready(());
            }
            let number = notify.numbers.replace(notify.numbers.get() + 1);
            notify.waiting.borrow_mut().push(Waiting {
                number,
                waker: context.waker().clone(),
                called: false,
            });
            self.number = Some(number);
            return Poll::Pending;
        };
        let mut waiting = notify.waiting.borrow_mut();
        match waiting.iter_mut().find(|one| one.number == number) {
            Some(one) if !one.called => {
                one.waker.clone_from(context.waker());
                Poll::Pending
            }
            _ => {
                drop(waiting);
                self.number = None;
                notify.leave(number);
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let left = self.number.and_then(|number| self.notify.leave(number));
        // A word that was for this one, who does not listen any more, is the next one's.
        if left.is_some_and(|left| left.called) {
            self.notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn is_ready(waits: Pin<&mut Notified<'_>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        waits.poll(&mut context).is_ready()
    }

    #[test]
    fn a_word_is_for_one_and_kept_for_the_next_if_nobody_waits() {
        let notify = Notify::default();
        notify.notify_one();
        notify.notify_one();
        assert!(is_ready(pin!(notify.notified())));
        let (mut first, mut second) = (pin!(notify.notified()), pin!(notify.notified()));
        assert!(!is_ready(first.as_mut()) && !is_ready(second.as_mut()));
        notify.notify_one();
        assert!(!is_ready(second.as_mut()));
        assert!(is_ready(first.as_mut()));
        assert!(!is_ready(second.as_mut()));
        notify.notify_one();
        assert!(is_ready(second.as_mut()));
    }

    #[test]
    fn a_call_is_for_all_who_wait_then_even_if_they_have_not_looked_yet() {
        let notify = Notify::default();
        let (mut first, mut second) = (pin!(notify.notified()), pin!(notify.notified()));
        assert!(!is_ready(first.as_mut()));
        notify.notify_waiters();
        // Nobody who was called takes a word that is for another.
        let mut third = pin!(notify.notified());
        assert!(!is_ready(third.as_mut()));
        notify.notify_one();
        assert!(is_ready(third.as_mut()));
        assert!(is_ready(first.as_mut()) && is_ready(second.as_mut()));
        assert!(!is_ready(pin!(notify.notified())));
    }

    #[test]
    fn a_word_for_one_who_has_gone_is_the_next_ones() {
        let notify = Notify::default();
        let mut second = pin!(notify.notified());
        {
            let mut first = pin!(notify.notified());
            assert!(!is_ready(first.as_mut()) && !is_ready(second.as_mut()));
            notify.notify_one();
        }
        assert!(is_ready(second.as_mut()));
        {
            let mut third = pin!(notify.notified());
            assert!(!is_ready(third.as_mut()));
            notify.notify_one();
        }
        assert!(is_ready(pin!(notify.notified())));
        assert!(notify.waiting.borrow().is_empty());
    }
}
