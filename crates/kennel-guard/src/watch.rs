//! The watching thread: signals, the process that started us, the owner, and time limits.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kennel_core::lifetime::{self, Lifetime, Policy};
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::events::{self, Waker};
use kennel_sys::io::Waitable;
use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::starter::{Starter, Watched};

use crate::owner::Owner;
use crate::shutdown::{Reason, Shutdown};

/// Pause if the system cannot block the thread (no memory), which avoids a busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// Time for which further signals are ignored after the end was decided.
const IGNORE_SIGNALS: Duration = Duration::from_secs(1);

/// The state that the watching thread and the leases share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) shutdown: Arc<Shutdown>,
    lifetime: Mutex<Lifetime>,
    epoch: Instant,
    waker: Waker,
    dismissed: AtomicBool,
}

impl Shared {
    pub(crate) fn now(&self) -> Moment {
        Moment::START + self.epoch.elapsed()
    }

    /// Reports an event to the lifetime, and wakes the watch because its deadline may have changed.
    pub(crate) fn report(&self, news: impl FnOnce(&mut Lifetime, Moment)) {
        news(&mut self.lifetime(), self.now());
        self.waker.wake();
    }

    /// [`report`](Self::report) without waking the watch, for events that only postpone the deadline.
    pub(crate) fn report_without_waking(&self, news: impl FnOnce(&mut Lifetime, Moment)) {
        news(&mut self.lifetime(), self.now());
    }

    fn lifetime(&self) -> MutexGuard<'_, Lifetime> {
        self.lifetime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All watched objects, to be handed to the thread.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    signals: Option<Signals>,
    starter: Starter,
    owner: Option<ProcessRef>,
}

impl Watch {
    pub(crate) fn new(
        policy: Policy,
        owner: Option<Owner>,
        starter: Starter,
        catch_signals: bool,
    ) -> io::Result<Watch> {
        let watched = match &owner {
            Some(_) => lifetime::Owner::Watched,
            None => lifetime::Owner::None,
        };
        let mut lifetime = Lifetime::new(policy, watched, Moment::START);
        let owner = match owner {
            Some(Owner::Alive(process)) => Some(process),
            Some(Owner::Gone) => {
                lifetime.handle_owner_gone(Moment::START);
                None
            }
            None => None,
        };
        let signals = if catch_signals {
            Some(Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])?)
        } else {
            None
        };
        Ok(Watch {
            shared: Arc::new(Shared {
                shutdown: Arc::new(Shutdown::default()),
                lifetime: Mutex::new(lifetime),
                epoch: Instant::now(),
                waker: Waker::new()?,
                dismissed: AtomicBool::new(false),
            }),
            signals,
            starter,
            owner,
        })
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Watches until the end is decided or the watch is stopped.
    pub(crate) fn run(mut self) {
        loop {
            self.shared.waker.clear();
            if let Some(reason) = self.check_reasons() {
                self.shared.shutdown.decide(reason);
            }
            if self.shared.shutdown.reason().is_some() {
                return self.ignore_further_signals();
            }
            if self.shared.dismissed.load(Ordering::SeqCst) {
                return;
            }
            if self.sleep().is_err() {
                let _ = events::sleep(&[], &[], Some(PAUSE));
            }
        }
    }

    /// Ignores further signals for a moment: one Ctrl-C often arrives twice, sent to the whole group and passed on by a
    /// launcher. Then the former dispositions return, and a second Ctrl-C ends a server that hangs during shutdown.
    fn ignore_further_signals(&self) {
        let until = Instant::now() + IGNORE_SIGNALS;
        while !self.shared.dismissed.load(Ordering::SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || events::sleep(&[&self.shared.waker], &[], Some(left)).is_err() {
                return;
            }
            self.shared.waker.clear();
        }
    }

    /// Checks all reasons to end; returns the first one, if any.
    fn check_reasons(&mut self) -> Option<Reason> {
        if let Some(signal) = self.signals.as_ref().and_then(Signals::next) {
            return Some(Reason::Signal(signal));
        }
        if let Starter::Gone(role) = self.starter {
            return Some(Reason::StarterGone(role));
        }
        if let Starter::Watch(origin) = &mut self.starter
            && let Err(role) = origin.outlive_ended()
        {
            return Some(Reason::StarterGone(role));
        }
        let now = self.shared.now();
        let mut lifetime = self.shared.lifetime();
        if self.owner.as_ref().is_some_and(|owner| !owner.is_alive()) {
            lifetime.handle_owner_gone(now);
            self.owner = None;
        }
        lifetime.advance(now);
        Some(Reason::Unneeded(lifetime.verdict()?.reason))
    }

    fn sleep(&self) -> io::Result<()> {
        let mut sources: Vec<&dyn Waitable> = vec![&self.shared.waker];
        sources.extend(
            self.signals
                .as_ref()
                .map(|signals| signals as &dyn Waitable),
        );
        let mut processes: Vec<&ProcessRef> = Vec::new();
        processes.extend(self.watched().iter().map(|watched| &*watched.process));
        processes.extend(&self.owner);
        let deadline = self.shared.lifetime().next_timeout();
        let timeout = deadline.map(|deadline| deadline - self.shared.now());
        events::sleep(&sources, &processes, timeout)
    }

    fn watched(&self) -> &[Watched] {
        match &self.starter {
            Starter::Watch(origin) => &origin[..],
            Starter::Gone(_) | Starter::NoProcess => &[],
        }
    }
}

/// The watching thread, joined when this is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Runs `watch` on a new thread. If it panics, the server continues without a watch: signals have their default effect
    /// again, and the store stays locked until the end.
    pub(crate) fn start(
        shared: Arc<Shared>,
        watch: impl FnOnce() + Send + 'static,
    ) -> io::Result<Watcher> {
        let thread = std::thread::Builder::new()
            .name("kennel-guard".to_owned())
            .spawn(move || {
                // After a panic the shared state is consistent: each change is one assignment.
                let _ = catch_unwind(AssertUnwindSafe(watch));
            })?;
        Ok(Watcher {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.dismissed.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Threads that still wait for the end are released.
        self.shared.shutdown.decide(Reason::Asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        let policy = Policy {
            linger: None,
            grace: lifetime::GRACE,
            max_idle: None,
        };
        Watch::new(policy, None, Starter::NoProcess, false).unwrap()
    }

    #[test]
    fn a_watch_that_panics_is_joined_and_releases_all_waiters() {
        let watch = watch();
        let shared = watch.shared();
        let watcher = Watcher::start(shared.clone(), move || {
            let _watch = watch;
            panic!("on purpose");
        });
        drop(watcher.unwrap());
        assert_eq!(shared.shutdown.wait(), Reason::Asked);
    }

    #[test]
    fn a_watch_that_panicked_with_the_lifetime_locked_does_not_block_a_lease() {
        let watch = watch();
        let shared = watch.shared();
        let watcher = Watcher::start(shared.clone(), {
            let shared = shared.clone();
            move || {
                let _held = shared.lifetime();
                panic!("on purpose");
            }
        });
        drop(watcher.unwrap());
        shared.report(|lifetime, now| lifetime.advance(now));
    }

    #[test]
    fn a_starter_that_was_already_gone_ends_the_server_at_once() {
        let mut watch = watch();
        watch.starter = Starter::Gone(kennel_sys::starter::Role::Parent);
        let shared = watch.shared();
        let _watcher = Watcher::start(shared.clone(), || watch.run()).unwrap();
        let expected = Reason::StarterGone(kennel_sys::starter::Role::Parent);
        assert_eq!(shared.shutdown.wait(), expected);
    }
}
