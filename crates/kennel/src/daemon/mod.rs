//! The daemon: one process for each key, owned by no session, started by the first shim that needs it.
//!
//! `kennel_core::engine::daemon` decides; this is its driver: one thread, and one event loop.
//!
//! | file | contents |
//! |---|---|
//! | `start` | from the new process to a daemon that is ready |
//! | `event_loop` | waits on the reactor, and passes events to their handlers |
//! | `run_queue`, `timers`, `origin` | due work, timers, sources of events |
//! | `daemon_state` | the engine, the clients and servers, the daemon's files |
//! | `accept` | new connections |
//! | `client` | one client: its first line, its lines, its end |
//! | `carry_out` | the engine's actions |
//! | `memory` | counts the bytes that the daemon holds |
//! | `server_io` | the I/O of one server slot: its server's stdin, its files, its log lines |
//! | `process` | its server's stdout and stderr |
//! | `server` | its server's process, from the start until its tree is empty |
//! | `life` | signals and the owner; what is removed at the end |
//! | `upgrade`, `restore` | how the daemon becomes a newer build, and continues as one |
//! | `snapshot` | all that it takes to continue |
//! | `state` | what `kennel ps` shows |
//! | `log`, `pipes`, `queue`, `socket`, `watchdog` | tools |

mod accept;
mod args;
mod carry_out;
mod client;
mod clock;
mod daemon_state;
mod event_loop;
mod life;
mod log;
mod memory;
mod origin;
mod pipes;
mod process;
mod queue;
mod restore;
mod run_queue;
mod server;
mod server_io;
mod snapshot;
mod socket;
mod start;
mod state;
mod timers;
mod upgrade;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;

use args::DaemonArgs;

pub(crate) use log::{LOG, Log, MAX_LOG_READ, OLDER_LOG, Quota, stamp};
pub(crate) use state::{ClientState, DaemonListing, Restart, STATE, ServerState};

/// Runs the daemon. `arguments` are the settings that the election passed after `kennel daemon`.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let word = arguments.next().unwrap_or_default();
    kennel_sys::signals::ignore_file_size_signal();
    if word == "--check" {
        return upgrade::check();
    }
    if word == "--keys" {
        return client::admission::print_keys();
    }
    if word == "--resume" {
        let number = arguments.next().unwrap_or_default();
        return match number.to_str().and_then(|number| number.parse().ok()) {
            Some(state) => restore::run(state),
            None => {
                crate::fail("`daemon --resume` is only for an older daemon that becomes this build")
            }
        };
    }
    match DaemonArgs::parse(&word) {
        Some(args) => start::run(args),
        None => crate::fail("start the daemon with `kennel run`"),
    }
}
