//! Memory that a long line needed, kept for a moment: its answer may be as long, and new memory has to be cleared
//! first, which takes longer than to read into it.
//!
//! One at most, of this thread. It is let go when no long line needed it for [`MOMENT`]: who says something long and
//! hears that it was taken may ask for it back.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// As long as a server may take for an answer that is as long.
pub(crate) const MOMENT: Duration = Duration::from_secs(1);

thread_local! {
    static SPARE: Cell<Option<Vec<u8>>> = const { Cell::new(None) };
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Keeps it for a moment. Whatever was kept before is let go.
pub(crate) fn keep(mut room: Vec<u8>) {
    room.clear();
    SPARE.set(Some(room));
    SINCE.set(Some(Instant::now()));
}

/// What is kept, if anything is.
pub(crate) fn take() -> Option<Vec<u8>> {
    SINCE.set(None);
    SPARE.take()
}

/// When to let it go.
pub(crate) fn due() -> Option<Instant> {
    Some(SINCE.get()? + MOMENT)
}

/// Frees the buffer if it was not used for [`MOMENT`].
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
        keep(Vec::with_capacity(1000));
        assert!(due().is_some());
        free_if_due(Instant::now());
        assert!(take().is_some_and(|room| room.is_empty() && room.capacity() >= 1000));
        assert_eq!((take(), due()), (None, None));
        keep(vec![1; 1000]);
        SINCE.set(Instant::now().checked_sub(MOMENT));
        free_if_due(Instant::now());
        assert_eq!((take(), due()), (None, None));
    }
}
