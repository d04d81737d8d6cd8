//! A server with all its descendants, held by a **warden** and ended as a whole (rule 2).
//!
//! ```text
//! served process (shim or daemon, a subreaper) ── warden (a subreaper) ── server ── its descendants
//! ```
//!
//! The warden is a small process that starts one command and sleeps until the tree of the command is empty or the process
//! it serves is gone; then it runs the stop ladder. It is never in the data path: the server gets the pipes of its starter
//! as its stdio.
//!
//! If a process is killed with SIGKILL:
//! - **the served process**: the warden sees its exit and ends the tree;
//! - **the warden**: its one child dies with it, and the descendants of that child become children of the served process,
//!   which calls [`end_strays`];
//! - **both**: a record and the `KENNEL_TREE` cookie in the server's environment let the next start find the leftovers:
//!   [`end_leftovers`].
//!
//! One exception: a detached service that others use outlives its tree (`services`), on record (`kept`).
//!
//! A process that removed its environment cannot be found in the last case, and only then, unless an ancestor or the leader
//! of its session has the cookie.

mod chain;
mod daemons;
mod descendants;
mod ending;
mod kept;
mod leftovers;
mod mark;
mod members;
mod process_table;
pub(crate) mod record;
mod record_file;
mod recorded;
mod server_start;
mod services;
mod start;
mod stopped;
mod strays;
mod warden;
mod warden_args;

use std::time::Duration;

pub use crate::detached::{Detached, Reason, UnknownDetached};
pub use descendants::below;
pub(crate) use ending::end_all;
pub use kept::{Kept, end_kept, kept};
pub use leftovers::{Ended, await_orphaned_wardens, end_leftovers, find_leftovers};
pub use process_table::ProcessTable;
pub(crate) use process_table::Step;
pub use recorded::{Recorded, recorded};
pub use start::{Exit, Launch, Report, Tree};
pub use stopped::{Stopped, stopped, stopped_process};
pub(crate) use strays::{Awaited, children_before_exec, remain_subreaper};
pub use strays::{become_subreaper, end_strays, reap_kept};
pub use warden::main as warden_main;

/// The variable in the environment of each process of a tree, unless the process removes it: the name of the tree, its
/// policy for detached processes, and the session of its server.
pub const COOKIE: &str = "KENNEL_TREE";

/// Duration of each step of the stop ladder. A step ends early when the tree is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// Time between closing stdin and SIGTERM.
    pub after_eof: Duration,
    /// Time between SIGTERM and SIGKILL.
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
