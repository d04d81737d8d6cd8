//! Records whether stdout was open when this process started. `std` opens `/dev/null` in its place before `main`, and
//! afterwards that looks like a stdout that was `/dev/null` on purpose.

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Called by the C library before the runtime of `std`.
// SAFETY: the section is a list of functions without arguments that must be taken. This one needs nothing of `std`.
#[used]
#[unsafe(link_section = ".init_array")]
static RUN_BEFORE_STD: extern "C" fn() = note_stdout;

extern "C" fn note_stdout() {
    // SAFETY: reads the flags of a descriptor, or fails because there is none.
    let is_open = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } >= 0;
    STDOUT_WAS_CLOSED.store(!is_open, Ordering::Relaxed);
}

/// Whether this process was started without a stdout.
pub(crate) fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}
