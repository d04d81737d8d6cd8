//! A session outlives everything behind it: what was under way, what it had set up, and what it is asked next.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]
#![expect(clippy::print_stderr, reason = "how long it takes is worth a line")]

mod calls;
mod clients;
mod policy;
mod stage;
mod standing;
mod stopped;
mod unsent;
