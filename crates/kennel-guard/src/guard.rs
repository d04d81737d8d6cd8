//! The guard itself, and what its holder can do with it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kennel_core::lifetime::{ClientId, Sight};

use crate::builder::GuardBuilder;
use crate::shutdown::{Reason, Stopping};
use crate::store::Held;
use crate::watch::{Shared, Watch, Watcher};

/// Holds the store, and hears of every reason to end. Dropping it stops the watch, then frees the store.
#[derive(Debug)]
#[must_use = "the store is free again as soon as the guard is dropped"]
pub struct Guard {
    // In this order: the watch ends while the store is still ours.
    _watcher: Watcher,
    _held: Option<Held>,
    shared: Arc<Shared>,
    notices: Vec<String>,
}

impl Guard {
    /// A guard for the server called `name`, the name that others are told. Looks at once who started
    /// this process: call it first thing in `main`.
    pub fn builder(name: &str) -> GuardBuilder {
        GuardBuilder::new(name)
    }

    pub(crate) fn start(
        watch: Watch,
        held: Option<Held>,
        notices: Vec<String>,
    ) -> io::Result<Guard> {
        let shared = watch.shared();
        Ok(Guard {
            _watcher: Watcher::start(shared.clone(), || watch.run())?,
            _held: held,
            shared,
            notices,
        })
    }

    /// What a person should be told, each as one line for stderr. Usually nothing.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// A connected session: while it lives, neither linger nor a lost owner ends the server.
    pub fn lease(&self) -> Lease {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = ClientId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.shared
            .tell(|lifetime, now| lifetime.client_attached(id, Sight::Unseen, now));
        Lease {
            shared: self.shared.clone(),
            id,
        }
    }

    /// Blocks until the end is decided.
    pub fn wait(&self) -> Reason {
        self.shared.shutdown.wait()
    }

    /// [`wait`](Guard::wait) as a future, for any async runtime.
    pub fn stopping(&self) -> Stopping {
        Stopping(self.shared.shutdown.clone())
    }

    /// Why the server is to end, if that is decided.
    pub fn reason(&self) -> Option<Reason> {
        self.shared.shutdown.reason()
    }

    /// Decides the end oneself.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// [`stop`](Guard::stop) for another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }
}

/// Decides the end from wherever it is handed to.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Ends the server with [`Reason::Asked`], unless another reason came first.
    pub fn stop(&self) {
        self.0.shutdown.decide(Reason::Asked);
        self.0.tell(|lifetime, now| lifetime.stop_asked(now));
    }
}

/// A connected session; dropped when it ends.
#[derive(Debug)]
#[must_use = "the session counts as ended as soon as its lease is dropped"]
pub struct Lease {
    shared: Arc<Shared>,
    id: ClientId,
}

impl Lease {
    /// Says that the session showed signs of life. Only a guard with
    /// [`max_idle`](GuardBuilder::max_idle) needs it.
    pub fn traffic(&self) {
        self.shared
            .mention(|lifetime, now| lifetime.traffic(self.id, now));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared
            .tell(|lifetime, now| lifetime.client_gone(self.id, now));
    }
}
