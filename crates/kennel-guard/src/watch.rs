//! The one thread that watches: signals, whoever started us, the owner, and time.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kennel_core::lifetime::{self, Lifetime, Policy};
use kennel_core::time::Moment;
use kennel_sys::Signal;
use kennel_sys::events::{self, Bell, Source};
use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::starter::{Starter, Watched};

use crate::owner::Owner;
use crate::shutdown::{Reason, Shutdown};

/// How long the watch rests when the system refuses to let it sleep (no memory): better than to spin.
const REST: Duration = Duration::from_millis(100);

/// How long further signals are swallowed once the end is decided.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the watching thread and everyone who holds a lease share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) shutdown: Arc<Shutdown>,
    lifetime: Mutex<Lifetime>,
    epoch: Instant,
    bell: Bell,
    dismissed: AtomicBool,
}

impl Shared {
    pub(crate) fn now(&self) -> Moment {
        Moment::START + self.epoch.elapsed()
    }

    /// Tells the lifetime something, and the watch that its deadline may have changed.
    pub(crate) fn tell(&self, news: impl FnOnce(&mut Lifetime, Moment)) {
        news(&mut self.lifetime(), self.now());
        self.bell.ring();
    }

    /// [`tell`](Self::tell) without waking the watch: for news that only move the deadline away.
    pub(crate) fn mention(&self, news: impl FnOnce(&mut Lifetime, Moment)) {
        news(&mut self.lifetime(), self.now());
    }

    fn lifetime(&self) -> MutexGuard<'_, Lifetime> {
        self.lifetime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that is watched, ready to be handed to the thread.
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
                lifetime.owner_gone(Moment::START);
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
                bell: Bell::new()?,
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

    /// Watches until the end is decided or the watch is dismissed.
    pub(crate) fn run(mut self) {
        loop {
            self.shared.bell.quiet();
            if let Some(reason) = self.look() {
                self.shared.shutdown.decide(reason);
            }
            if self.shared.shutdown.reason().is_some() {
                return self.linger_over_signals();
            }
            if self.shared.dismissed.load(Ordering::SeqCst) {
                return;
            }
            if self.sleep().is_err() {
                let _ = events::sleep(&[], &[], Some(REST));
            }
        }
    }

    /// One Ctrl-C often comes twice: to the whole group, and passed on by a launcher. For a moment after
    /// the decision another signal changes nothing; then their former dispositions return, and a second
    /// Ctrl-C ends a server that hangs in its farewell.
    fn linger_over_signals(&self) {
        let until = Instant::now() + FAREWELL;
        while !self.shared.dismissed.load(Ordering::SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || events::wait(&[&self.shared.bell], &[], Some(left)).is_err() {
                return;
            }
            self.shared.bell.quiet();
        }
    }

    /// Looks at everything once; the first reason to end, if there is one.
    fn look(&mut self) -> Option<Reason> {
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
            lifetime.owner_gone(now);
            self.owner = None;
        }
        lifetime.tick(now);
        Some(Reason::Unneeded(lifetime.verdict()?.reason))
    }

    fn sleep(&self) -> io::Result<()> {
        let mut sources: Vec<&dyn Source> = vec![&self.shared.bell];
        sources.extend(self.signals.as_ref().map(|signals| signals as &dyn Source));
        let mut processes: Vec<&ProcessRef> = Vec::new();
        processes.extend(self.watched().iter().map(|watched| &watched.process));
        processes.extend(&self.owner);
        let deadline = self.shared.lifetime().deadline();
        let timeout = deadline.map(|deadline| deadline - self.shared.now());
        events::wait(&sources, &processes, timeout)
    }

    fn watched(&self) -> &[Watched] {
        match &self.starter {
            Starter::Watch(origin) => &origin[..],
            Starter::Gone(_) | Starter::Nobody => &[],
        }
    }
}

/// The thread, joined when this is dropped, whatever became of it.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Runs `watch` on a thread of its own. Should it panic, the server goes on as if it had no guard
    /// over its life: signals do again what they always did, and the store stays locked to the end.
    pub(crate) fn start(
        shared: Arc<Shared>,
        watch: impl FnOnce() + Send + 'static,
    ) -> io::Result<Watcher> {
        let thread = std::thread::Builder::new()
            .name("kennel-guard".to_owned())
            .spawn(move || {
                // What a panic leaves behind is shared through a latch and a lifetime, both whole at any time.
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
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Whoever still waits for the end is let go.
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
        Watch::new(policy, None, Starter::Nobody, false).unwrap()
    }

    #[test]
    fn a_watch_that_panics_is_joined_and_lets_everyone_go() {
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
    fn a_watch_that_panicked_with_the_lifetime_in_its_hands_does_not_stop_a_lease() {
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
        shared.tell(|lifetime, now| lifetime.tick(now));
    }

    #[test]
    fn a_starter_that_was_gone_before_we_looked_ends_us_at_once() {
        let mut watch = watch();
        watch.starter = Starter::Gone(kennel_sys::starter::Role::Parent);
        let shared = watch.shared();
        let _watcher = Watcher::start(shared.clone(), || watch.run()).unwrap();
        let expected = Reason::StarterGone(kennel_sys::starter::Role::Parent);
        assert_eq!(shared.shutdown.wait(), expected);
    }
}
