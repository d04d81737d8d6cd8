//! A newer build of Kennel meets an older daemon, and nobody who is served by it notices.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod clients;
mod in_place;
mod on_change;
mod stage;
mod under_way;
mod unfit;
