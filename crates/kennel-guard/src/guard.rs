//! The guard.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kennel_core::lifetime::{ClientId, Liveness};

use crate::builder::GuardBuilder;
use crate::shutdown::{Reason, Stopping};
use crate::store::Held;
use crate::watch::{Shared, Watch, Watcher};

/// Holds the store and watches for every reason to end. Dropping it stops the watch, then releases the store.
#[derive(Debug)]
#[must_use = "dropping the guard releases the store"]
pub struct Guard {
    // In this order: the watch ends before the store is released.
    _watcher: Watcher,
    _held: Option<Held>,
    shared: Arc<Shared>,
    notices: Vec<String>,
}

impl Guard {
    /// A builder for a guard of the server `name`, which other processes see. Finds the process that started this one: call
    /// it first in `main`.
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

    /// Messages for the user, each one line for stderr. Usually none.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Registers a connected session: while a lease lives, neither linger nor a lost owner ends the server.
    pub fn lease(&self) -> Lease {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = ClientId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.shared.report(|lifetime, now| {
            lifetime.handle_client_attached(id, Liveness::Unwatchable, now)
        });
        Lease {
            shared: self.shared.clone(),
            id,
        }
    }

    /// Blocks until the server is to end.
    pub fn wait(&self) -> Reason {
        self.shared.shutdown.wait()
    }

    /// [`wait`](Guard::wait) as a future, for any async runtime.
    pub fn stopping(&self) -> Stopping {
        Stopping(self.shared.shutdown.clone())
    }

    /// Why the server is to end, once that is decided.
    pub fn reason(&self) -> Option<Reason> {
        self.shared.shutdown.reason()
    }

    /// Ends the server with [`Reason::Asked`].
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// A handle that can call [`stop`](Guard::stop) from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }
}

/// A handle that ends the server from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Ends the server with [`Reason::Asked`], unless another reason came first.
    pub fn stop(&self) {
        self.0.shutdown.decide(Reason::Asked);
        self.0.report(|lifetime, now| lifetime.handle_stop(now));
    }
}

/// A connected session. Drop it when the session ends.
#[derive(Debug)]
#[must_use = "dropping the lease ends the session"]
pub struct Lease {
    shared: Arc<Shared>,
    id: ClientId,
}

impl Lease {
    /// Reports activity of the session. Only needed with [`max_idle`](GuardBuilder::max_idle).
    pub fn traffic(&self) {
        self.shared
            .report_without_waking(|lifetime, now| lifetime.handle_traffic(self.id, now));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared
            .report(|lifetime, now| lifetime.handle_client_gone(self.id, now));
    }
}
