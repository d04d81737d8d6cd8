//! The daemon: one per key, owned by nobody, started by the first shim that needs it.
//!
//! `kennel_core::engine::daemon` decides; this is its driver: one thread, with a task for each client and each server.
//!
//! | file | who |
//! |---|---|
//! | `start` | the way from a started process to a daemon that is ready |
//! | `daemon_state` | what all tasks share: the engine, the connections, the daemon's files |
//! | `accept` | new connections |
//! | `client` | one client: its hello, its lines, its end |
//! | `carry_out` | carries out the engine's actions |
//! | `server_io` | the I/O of one server slot: its server's stdin, its files, its log lines |
//! | `running` | its process while it runs: its pipes, and what came of them |
//! | `server` | its process, from the start until nothing is left of it |
//! | `life` | signals and the owner; what is removed at the end |
//! | `upgrade`, `resume` | how it becomes a newer build, and goes on as one |
//! | `carried` | all that it takes to go on |
//! | `state` | what `kennel ps` shows |
//! | `tasks` | how they take turns |
//! | `log`, `pipes`, `queue`, `socket`, `stream`, `watch`, `watchdog` | tools |

mod accept;
mod carried;
mod carry_out;
mod client;
mod clock;
mod daemon_state;
mod life;
mod log;
mod memory;
mod orders;
mod pipes;
mod queue;
mod resume;
mod running;
mod server;
mod server_io;
mod socket;
mod spare;
mod start;
mod state;
mod stream;
mod tasks;
mod upgrade;
mod watch;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;

use orders::Orders;

pub(crate) use log::{LOG, Log, MOST_LOG, OLDER_LOG, Quota, stamp};
pub(crate) use state::{ClientState, DaemonListing, Restart, STATE, ServerState};

/// Runs the daemon: `arguments` are what followed `kennel daemon`, as the election put them there.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let word = arguments.next().unwrap_or_default();
    kennel_sys::signals::survive_file_size_limit();
    if word == "--check" {
        return upgrade::check();
    }
    if word == "--keys" {
        return client::admission::print_keys();
    }
    if word == "--resume" {
        let number = arguments.next().unwrap_or_default();
        return match number.to_str().and_then(|number| number.parse().ok()) {
            Some(state) => resume::run(state),
            None => crate::fail("`daemon --resume` is how an older daemon becomes this one"),
        };
    }
    match Orders::parse(&word) {
        Some(orders) => start::run(orders),
        None => crate::fail("the daemon is started by `kennel run`, not by hand"),
    }
}
