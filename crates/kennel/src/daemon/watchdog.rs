//! A thread that ends the process when it is stuck. A timer would not do: it stalls with the event loop (lesson 29).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A watchdog, armed until it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    cancelled: Arc<AtomicBool>,
    thread: Option<Thread>,
}

impl Watchdog {
    /// Calls `on_timeout` and ends the process after `timeout`.
    pub(super) fn arm(timeout: Duration, on_timeout: impl FnOnce() + Send + 'static) -> Watchdog {
        let cancelled = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&cancelled);
        let deadline = Instant::now() + timeout;
        let watch = move || {
            while !seen.load(Ordering::SeqCst) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    on_timeout();
                    std::process::exit(1);
                }
                thread::park_timeout(left);
            }
        };
        // Without a thread the process ends as it would without a watchdog.
        let thread = thread::Builder::new().name("watchdog".into()).spawn(watch);
        Watchdog {
            cancelled,
            thread: thread.ok().map(|handle| handle.thread().clone()),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::SeqCst);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}
