//! What a person is shown: `kennel ps`, `kennel logs`, `kennel top`.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod crowd;
mod full;
mod logs;
mod printed;
mod refused;
mod stage;
mod table;
mod top;
