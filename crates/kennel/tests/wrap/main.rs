//! Kennel in the configurations of apps: put there, used, taken away, and every byte as it was.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod asked;
mod edited;
mod fixtures;
mod forged;
mod large;
mod meanwhile;
mod places;
mod project;
mod round_trip;
mod shared;
mod stage;
mod strangers;
