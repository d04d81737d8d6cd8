//! Kennel's own words on stderr: `kennel: …`. They never block whoever says them.
//!
//! A shim, a daemon, a warden or a guard that is stuck in a write answers nobody and hears neither signals nor the death
//! of its app. So a line is written at once or dropped, and the next line that can be written says how many were.
//! Commands for people wait for their reader instead, as every program in a pipeline does.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kennel_sys::escape;

use crate::output::Output;

/// Set by commands for people.
static MAY_WAIT: AtomicBool = AtomicBool::new(false);
/// How many lines were dropped since the last one that was written.
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// This process is a command that prints and ends: it waits for whoever reads stderr.
pub(crate) fn may_wait() {
    MAY_WAIT.store(true, Ordering::Relaxed);
}

/// Writes `text` and a newline to stderr, escaped: much of it comes from outside.
pub(crate) fn say(text: &str) {
    let text = escape::printable_lines(text);
    if MAY_WAIT.load(Ordering::Relaxed) {
        #[expect(
            clippy::disallowed_methods,
            reason = "a command for people waits for its reader"
        )]
        let _ = writeln!(std::io::stderr(), "{text}");
        return;
    }
    let dropped = DROPPED.swap(0, Ordering::Relaxed);
    let note = match dropped {
        0 => String::new(),
        count => format!("kennel: {count} earlier messages were dropped: stderr was full\n"),
    };
    if !Output::stderr().write_all_or_drop(format!("{note}{text}\n").as_bytes()) {
        DROPPED.fetch_add(dropped + 1, Ordering::Relaxed);
    }
}

/// What a panic says goes the same way.
pub(crate) fn say_panics() {
    std::panic::set_hook(Box::new(|panic| say(&format!("kennel: {panic}"))));
}
