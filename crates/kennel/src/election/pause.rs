//! Waiting, and hearing meanwhile that nobody waits for us.

use std::time::Duration;

use kennel_sys::events::{self, Waker, is_readable};

/// Waits so long; `false` if nobody wants the outcome any more.
pub(super) fn nap(length: Duration, abandoned: &Waker) -> bool {
    // It fails only where not even waiting is possible: nothing can be decided then.
    events::sleep(&[abandoned], &[], Some(length)).is_ok() && !is_readable(abandoned)
}
