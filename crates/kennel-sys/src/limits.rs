//! The limit on open descriptors: raised to the maximum for processes with many connections. Child processes get the former
//! limit, because some programs (`select`) fail with high descriptor numbers.

use std::io;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit before it was raised.
static ORIGINAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit to the maximum. Returns `false` if it was there already, or if that failed.
pub fn raise_descriptors() -> bool {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    let done = before.current != raised.current && setrlimit(Resource::Nofile, raised).is_ok();
    if done {
        let _ = ORIGINAL_LIMIT.set(before);
    }
    done
}

/// The limit on open descriptors of this process; `None` for no limit.
pub fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Whether an error means that this process has reached its limit on open descriptors.
pub fn descriptors_are_short(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::MFILE)
}

/// The size of stack that any work of this program fits in.
const STACK: usize = 4 * 1024 * 1024;

/// Runs `work` with a stack of at least `STACK` bytes: on another thread if the limit of this process (`ulimit -s`) is
/// lower. That thread has ended when this returns.
pub fn with_enough_stack<T: Send>(work: impl Fn() -> T + Sync) -> T {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|limit| limit >= STACK as u64) {
        return work();
    }
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let thread = thread.spawn_scoped(scope, &work).ok()?;
        thread.join().ok()
    });
    // Without a thread (no memory, `ulimit -u`), the stack of this one may do.
    done.unwrap_or_else(work)
}

/// The limit before it was raised, if it was: soft and hard, `None` for no limit.
pub(crate) fn original_limit() -> Option<(Option<u64>, Option<u64>)> {
    ORIGINAL_LIMIT
        .get()
        .map(|before| (before.current, before.maximum))
}

/// Records the former limit if it was raised before an exec of this process.
pub(crate) fn record_original(current: Option<u64>, maximum: Option<u64>) {
    let _ = ORIGINAL_LIMIT.set(Rlimit { current, maximum });
}

/// Restores the former limit, in a child between fork and exec. Makes only system calls.
pub(crate) fn restore_descriptors() {
    if let Some(before) = ORIGINAL_LIMIT.get() {
        let _ = setrlimit(Resource::Nofile, *before);
    }
}
