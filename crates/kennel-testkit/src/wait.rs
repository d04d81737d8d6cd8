//! Labelled waits (lesson 42): a test waits for the event, with a deadline no busy machine reaches.

use std::time::{Duration, Instant};

/// How long a wait may take before the test gives up. Generous: it is only ever reached by a bug.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `look` finds something, and returns it; panics with `label` after [`DEADLINE`].
#[track_caller]
pub fn wait_for<T>(label: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_until(label, DEADLINE, look)
}

/// [`wait_for`] with a deadline of its own.
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

/// Says that a test does not run here, and why. It passes all the same.
pub fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
