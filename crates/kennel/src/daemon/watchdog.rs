//! A plain thread that ends the process when it is stuck: what waits on the event loop stalls with it (lesson 29).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Armed until it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    called_off: Arc<AtomicBool>,
    thread: Option<Thread>,
}

impl Watchdog {
    /// Ends the process after `patience`, once `last_words` were said.
    pub(super) fn arm(patience: Duration, last_words: impl FnOnce() + Send + 'static) -> Watchdog {
        let called_off = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&called_off);
        let deadline = Instant::now() + patience;
        let watch = move || {
            while !seen.load(Ordering::SeqCst) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    last_words();
                    std::process::exit(1);
                }
                thread::park_timeout(left);
            }
        };
        // Without one (no thread to be had) nothing is worse than before.
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
