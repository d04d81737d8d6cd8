//! What one peer can make Kennel hold: lines of any length, and any number of requests, cost a bounded amount of memory,
//! and are answered with an error; the session, and all others, go on.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod crowd;
mod daemon;
mod flood;
mod lines;
mod stage;
mod unread;
