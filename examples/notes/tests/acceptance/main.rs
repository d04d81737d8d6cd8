//! `notes` as a person or an app meets it: real processes, real files, real locks.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;
mod conversation;
mod durability;
mod footprint;
mod legacy;
mod one_writer;
mod owner;
mod uninstall;
