//! Many clients on one server, and nobody notices.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod addressed;
mod auto;
mod crowd;
mod eras;
mod losses;
mod one_server;
mod rest;
mod slow;
mod stage;
mod state;
