//! The daemon's event loop: tasks that take turns on one thread, woken by descriptors, by the clock, and by each other.
//!
//! | file | what |
//! |---|---|
//! | `round` | who is woken gets a turn; when nobody is, all sleep |
//! | `handle` | a task that somebody else waits for, or ends |
//! | `descriptor` | what can be read, written, or has ended |
//! | `moments` | what is waited for by the clock |
//! | `notify` | a word from one task to another |
//! | `first_of` | the first of several |
//! | `slab` | tool |
//!
//! It is ours because of what it does not do. Nothing of it is shared with another thread, so a wake-up is a number in
//! a list; no turn looks at the clock; a connection that is watched for its words, for room and for its end is one
//! descriptor. Of a call through the daemon, a general runtime took half a microsecond.

mod descriptor;
mod first_of;
mod handle;
pub(super) mod moments;
mod notify;
mod round;
mod slab;

pub(super) use descriptor::Descriptor;
pub(super) use first_of::{Either, This, first_of, when};
pub(super) use handle::spawn;
pub(super) use notify::Notify;
pub(super) use round::{in_turns, others_first, run};
