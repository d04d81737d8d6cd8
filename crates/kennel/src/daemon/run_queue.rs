//! Work that is due without a new event: lines that were read and not taken, or a wait that is over.

use std::cell::RefCell;
use std::collections::BTreeSet;

use kennel_core::engine::daemon::SlotId;
use kennel_core::lifetime::ClientId;

/// Maximum lines taken of one client or server before others run: many short lines at once must not delay the others.
pub(super) const LINES_PER_RUN: usize = 64;
/// Maximum deliveries of a server's lines to several clients before other work is done: a line may go to thousands.
pub(super) const DELIVERIES_PER_RUN: usize = 4096;

/// A client, server or part of the daemon with work to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Runnable {
    Client(ClientId),
    Server(SlotId),
    /// Accept connections again after a shortage.
    Accept,
    /// Check whether the daemon is to end.
    Life,
    Upgrade,
}

/// The due work, in the order in which it became due, without duplicates.
#[derive(Debug, Default)]
pub(super) struct RunQueue {
    order: RefCell<Vec<Runnable>>,
    due: RefCell<BTreeSet<Runnable>>,
}

impl RunQueue {
    pub(super) fn push(&self, runnable: Runnable) {
        if self.due.borrow_mut().insert(runnable) {
            self.order.borrow_mut().push(runnable);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.borrow().is_empty()
    }

    /// Moves all due work into `run_queue`, which is empty. Work that becomes due meanwhile is run next time.
    pub(super) fn take_all(&self, run_queue: &mut Vec<Runnable>) {
        std::mem::swap(&mut *self.order.borrow_mut(), run_queue);
        self.due.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_queued_once_and_again_after_it_was_taken() {
        let run_queue = RunQueue::default();
        let (one, other) = (Runnable::Client(ClientId(2)), Runnable::Client(ClientId(1)));
        for runnable in [one, other, Runnable::Life, one] {
            run_queue.push(runnable);
        }
        let mut taken = Vec::new();
        run_queue.take_all(&mut taken);
        assert_eq!(taken, [one, other, Runnable::Life]);
        assert!(run_queue.is_empty());
        run_queue.push(one);
        taken.clear();
        run_queue.take_all(&mut taken);
        assert_eq!(taken, [one]);
    }
}
