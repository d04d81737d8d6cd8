//! Keeps the buffer of a long line for a short time. The response may be as long, and the kernel must clear new memory
//! first, which takes longer than reading into it.
//!
//! At most one buffer per thread. It is freed if no long line needed it for [`MAX_POOLED_TIME`]: a client that sent a long
//! line may request it back once that line was accepted.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Maximum time a buffer is pooled: as long as a server may take for a response of the same length.
pub(crate) const MAX_POOLED_TIME: Duration = Duration::from_secs(1);

thread_local! {
    static POOLED: Cell<Option<Vec<u8>>> = const { Cell::new(None) };
    static POOLED_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Pools a buffer. Frees the one pooled before.
pub(crate) fn put(mut buffer: Vec<u8>) {
    buffer.clear();
    POOLED.set(Some(buffer));
    POOLED_SINCE.set(Some(Instant::now()));
}

/// Takes the pooled buffer, if there is one.
pub(crate) fn take() -> Option<Vec<u8>> {
    POOLED_SINCE.set(None);
    POOLED.take()
}

/// When to free the pooled buffer.
pub(crate) fn due() -> Option<Instant> {
    Some(POOLED_SINCE.get()? + MAX_POOLED_TIME)
}

/// Frees the buffer if it was not used for [`MAX_POOLED_TIME`].
pub(crate) fn free_if_due(now: Instant) {
    if due().is_some_and(|due| now >= due) {
        drop(take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_once_and_for_a_moment() {
        assert_eq!(take(), None);
        put(Vec::with_capacity(1000));
        assert!(due().is_some());
        free_if_due(Instant::now());
        assert!(take().is_some_and(|buffer| buffer.is_empty() && buffer.capacity() >= 1000));
        assert_eq!((take(), due()), (None, None));
        put(vec![1; 1000]);
        POOLED_SINCE.set(Instant::now().checked_sub(MAX_POOLED_TIME));
        free_if_due(Instant::now());
        assert_eq!((take(), due()), (None, None));
    }
}
