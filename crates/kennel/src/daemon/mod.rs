//! The daemon: one per key, owned by nobody, started by the first shim that needs it.
//!
//! One thread, on which everybody has a task of their own:
//!
//! | file | who |
//! |---|---|
//! | `start` | the way from a started process to a daemon that is ready |
//! | `house` | what all share: who is here, and since when |
//! | `accept` | whoever connects |
//! | `client` | one client: its hello, its lines, its end |
//! | `pool` | all servers, and which one a client gets |
//! | `station` | one server's place: its clients, and what is on its way to it |
//! | `running` | its process while it runs: its pipes, and what came of them |
//! | `server` | its process, from the start until nothing is left of it |
//! | `life` | when to end, and how |
//! | `upgrade`, `resume` | how it becomes a newer build, and goes on as one |
//! | `carried` | all that it takes to go on |
//! | `state` | what `kennel ps` shows |
//! | `tasks` | how they take turns |
//! | `log`, `pipes`, `queue`, `socket`, `stream`, `watch`, `watchdog` | tools |

mod accept;
mod carried;
mod client;
mod clock;
mod house;
mod life;
mod log;
mod memory;
mod orders;
mod pipes;
mod pool;
mod queue;
mod resume;
mod running;
mod server;
mod socket;
mod spare;
mod start;
mod state;
mod station;
mod stream;
mod tasks;
mod upgrade;
mod watch;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;

use orders::Orders;

pub(crate) use log::{LOG, Log, MOST_LOG, OLDER_LOG, stamp};
pub(crate) use state::{ClientState, DaemonState, Restart, STATE, ServerState};

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
