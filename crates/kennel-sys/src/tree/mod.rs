//! One server with all its descendants, kept under a **warden** and ended as a whole (rule 2).
//!
//! ```text
//! served (shim or daemon, a subreaper) ── warden (a subreaper) ── server ── whatever it starts
//! ```
//!
//! The warden is a tiny process that starts one command and sleeps until the command's tree is empty
//! or the process it serves is gone; then it runs the only stop ladder there is. It is never in the
//! data path: the server's stdio are its starter's pipes, handed through.
//!
//! What if somebody is killed with -9?
//! - **the served process**: the warden sees its exit and ends the tree;
//! - **the warden**: its one child dies with it, and what the child left behind becomes children of
//!   the served process, which calls [`end_strays`];
//! - **both**: a record and the `KENNEL_TREE` cookie in the server's environment let the next start
//!   find what is left: [`end_leftovers`].
//!
//! One exception: a detached service that others use outlives its tree (`services`), on record (`kept`).
//!
//! A process that wiped its environment is beyond reach after the last case, and only then, unless a process with the
//! cookie is above it or leads its session.

mod daemons;
mod descendants;
mod kept;
mod leftovers;
mod mark;
mod members;
mod record;
mod recorded;
mod search;
mod services;
mod start;
mod stopped;
mod strays;
mod walk;
mod warden;
mod whole_file;

use std::time::Duration;

pub use crate::detached::{Detached, Reason, UnknownDetached};
pub use descendants::{Families, below};
pub use kept::{Kept, end_kept, kept};
pub use leftovers::{Ended, await_orphaned_wardens, end_leftovers, find_leftovers};
pub use recorded::{Recorded, recorded};
pub use start::{Exit, Launch, Report, Tree};
pub use stopped::{Stopped, stopped, stopped_process};
pub(crate) use strays::{Awaited, elders, remain_subreaper};
pub use strays::{become_subreaper, end_strays, reap_kept};
pub(crate) use walk::{Children, Step, Walk, children_by_parent};
pub use warden::main as warden_main;

/// The variable that marks every process of a tree that did not wipe its environment: the name of the tree, which
/// detached processes of it are kept, and the session of its server.
pub const COOKIE: &str = "KENNEL_TREE";

/// How long each rung of the stop ladder lasts. Each ends early when the tree is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// After stdin was closed, before SIGTERM.
    pub after_eof: Duration,
    /// After SIGTERM, before kill-and-reap.
    pub after_term: Duration,
}

impl Default for Ladder {
    fn default() -> Self {
        Ladder {
            after_eof: Duration::from_secs(2),
            after_term: Duration::from_secs(2),
        }
    }
}
