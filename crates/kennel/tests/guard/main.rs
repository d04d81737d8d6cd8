//! `kennel guard`: servers with ports, bound to their owner.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod detached;
mod escapes;
mod kinds;
mod occupied;
mod owner;
mod passing;
mod quiet;
mod real_servers;
mod self_detaching;
mod sessions;
mod stage;
mod state;
