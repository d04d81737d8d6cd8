//! Sleeps until a time or until the election is cancelled.

use std::time::Duration;

use kennel_sys::events::{self, Waker, is_readable};

/// Sleeps for `length`; `false` if the election was cancelled.
pub(super) fn sleep_unless_abandoned(length: Duration, abandoned: &Waker) -> bool {
    // An error counts as cancelled: an election that cannot sleep cannot go on.
    events::sleep(&[abandoned], &[], Some(length)).is_ok() && !is_readable(abandoned)
}
