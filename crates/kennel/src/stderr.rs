//! Writes Kennel's messages to stderr (`kennel: …`) without blocking the process.
//!
//! A shim, daemon, warden or guard that is blocked in a write serves no client and notices neither signals nor the end
//! of its app. So a message is written at once or dropped, and the next message that can be written says how many were
//! dropped. Commands that print and exit wait for their reader instead, like every program in a pipeline.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kennel_sys::escape;

use kennel_sys::stdio::Output;

/// Whether writes to stderr may block; set by commands that print and exit.
static MAY_BLOCK: AtomicBool = AtomicBool::new(false);
/// Number of messages dropped since the last written message.
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Lets writes to stderr block from now on: this process is a command that prints and exits.
pub(crate) fn allow_blocking() {
    MAY_BLOCK.store(true, Ordering::Relaxed);
}

/// Writes `text` and a newline to stderr, escaped: it may contain text from other programs.
pub(crate) fn print(text: &str) {
    let text = escape::printable_lines(text);
    if MAY_BLOCK.load(Ordering::Relaxed) {
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

/// Reports panics on stderr like every other message.
pub(crate) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| print(&format!("kennel: {panic}"))));
}
