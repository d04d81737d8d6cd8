//! A thread that ends the process when it is stuck. A timer would not do: it stalls with the event loop (lesson 29).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A watchdog, armed until it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    called_off: Arc<AtomicBool>,
    thread: Option<Thread>,
}

impl Watchdog {
    /// Calls `on_timeout` and ends the process after `timeout`.
    pub(super) fn arm(timeout: Duration, on_timeout: impl FnOnce() + Send + 'static) -> Watchdog {
        let called_off = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&called_off);
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
            called_off,
            thread: thread.ok().map(|handle| handle.thread().clone()),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.called_off.store(true, Ordering::SeqCst);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}
