//! How many descriptors this process may have: as many as it is allowed, where it serves many. What it starts
//! gets back what was there before: programs that count on few (`select`) must not get more from us.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What was there before it was raised.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit to what is allowed; `false` where it is already, or that fails: then nothing is worse than before.
pub fn raise_descriptors() -> bool {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    let done = before.current != raised.current && setrlimit(Resource::Nofile, raised).is_ok();
    if done {
        let _ = BEFORE.set(before);
    }
    done
}

/// What was there before it was raised, if it was: soft and hard, `None` where there is no limit.
pub(crate) fn before() -> Option<(Option<u64>, Option<u64>)> {
    BEFORE.get().map(|before| (before.current, before.maximum))
}

/// It was raised already, by whoever we were before an exec.
pub(crate) fn raised_from(current: Option<u64>, maximum: Option<u64>) {
    let _ = BEFORE.set(Rlimit { current, maximum });
}

/// For a child that is about to become another program. Only system calls are made.
pub(crate) fn restore_descriptors() {
    if let Some(before) = BEFORE.get() {
        let _ = setrlimit(Resource::Nofile, *before);
    }
}
