//! The shutdown: decided once, with a reason that all waiting threads get.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use kennel_core::lifetime;
use kennel_sys::Signal;
use kennel_sys::starter::Role;

/// Why the server is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A signal asked for it: SIGTERM, SIGINT or SIGHUP.
    Signal(Signal),
    /// The process that started it is gone.
    StarterGone(Role),
    /// It is not needed any more: by linger, by owner and grace, or by idle leases.
    Unneeded(lifetime::Reason),
    /// [`Guard::stop`](crate::Guard::stop), or the guard was dropped.
    Asked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Signal(Signal::TERM) => f.write_str("SIGTERM"),
            Reason::Signal(Signal::INT) => f.write_str("SIGINT"),
            Reason::Signal(Signal::HUP) => f.write_str("SIGHUP"),
            Reason::Signal(signal) => write!(f, "signal {}", signal.as_raw()),
            Reason::StarterGone(Role::Parent) => f.write_str("the parent process is gone"),
            Reason::StarterGone(Role::App) => f.write_str("the app behind the launchers is gone"),
            Reason::StarterGone(Role::StdinPeer) => {
                f.write_str("the process that created stdin is gone")
            }
            Reason::Unneeded(reason) => reason.fmt(f),
            Reason::Asked => f.write_str("stop asked"),
        }
    }
}

/// The decision to end. The first reason counts.
#[derive(Debug, Default)]
pub(crate) struct Shutdown {
    state: Mutex<State>,
    decided: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reason: Option<Reason>,
    wakers: Vec<Waker>,
}

impl Shutdown {
    pub(crate) fn decide(&self, reason: Reason) {
        let mut state = self.lock();
        if state.reason.is_some() {
            return;
        }
        state.reason = Some(reason);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.decided.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        self.lock().reason
    }

    pub(crate) fn wait(&self) -> Reason {
        let mut state = self.lock();
        loop {
            if let Some(reason) = state.reason {
                return reason;
            }
            state = self
                .decided
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<Reason> {
        let mut state = self.lock();
        if let Some(reason) = state.reason {
            return Poll::Ready(reason);
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Locks the state, even after a panic: each change is one assignment, so the state is always consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves to the [`Reason`] once the server is to end. Works in any runtime, and can be awaited repeatedly.
#[derive(Debug, Clone)]
#[must_use = "a future does nothing until it is awaited"]
pub struct Stopping(pub(crate) Arc<Shutdown>);

impl Future for Stopping {
    type Output = Reason;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reason> {
        self.0.poll(context.waker())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts_for_all_waiters() {
        let shutdown = Arc::new(Shutdown::default());
        assert_eq!(shutdown.reason(), None);
        let waiting = std::thread::spawn({
            let shutdown = shutdown.clone();
            move || shutdown.wait()
        });
        shutdown.decide(Reason::Signal(Signal::TERM));
        shutdown.decide(Reason::Asked);
        assert_eq!(waiting.join().unwrap(), Reason::Signal(Signal::TERM));
        assert_eq!(shutdown.reason(), Some(Reason::Signal(Signal::TERM)));
    }

    #[test]
    fn the_shutdown_works_after_a_panic_while_it_is_locked() {
        let shutdown = Arc::new(Shutdown::default());
        let poisoner = shutdown.clone();
        let panicked = std::thread::spawn(move || {
            let _held = poisoner.state.lock();
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        shutdown.decide(Reason::Asked);
        assert_eq!(shutdown.wait(), Reason::Asked);
    }
}
