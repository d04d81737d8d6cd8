//! Servers and clients as people install them, many clients on one server: nobody notices.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod asked;
mod classes;
mod defaults;
mod eras;
mod hibernation;
mod negotiation;
mod person;
mod stage;
mod subscriptions;
