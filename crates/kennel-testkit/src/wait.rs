//! Waits with a label (lesson 42): a test waits for an event, with a deadline that no busy machine reaches.

use std::io::Write as _;
use std::time::{Duration, Instant};

/// Maximum duration of a wait. Only a bug reaches it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `look` finds something, and returns it; panics with `label` after [`DEADLINE`].
#[track_caller]
pub fn wait_for<T>(label: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_until(label, DEADLINE, look)
}

/// [`wait_for`] with another deadline.
#[track_caller]
pub fn wait_until<T>(label: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            start.elapsed() < deadline,
            "still waiting after {deadline:?}: {label}"
        );
        #[expect(
            clippy::disallowed_methods,
            reason = "a test looks at other processes from outside, where no event is offered"
        )]
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Reports that a test is skipped, and why. The test passes.
#[expect(
    clippy::disallowed_methods,
    reason = "what a test that passes prints with `eprintln` is not shown"
)]
pub fn skipped(why: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or_default();
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {test}: {why}");
}
