//! What is not as it should be is found, what is orphaned is ended, and nobody else is touched.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod checks;
mod leftovers;
mod orphans;
mod shells;
mod stage;
mod zoo;
