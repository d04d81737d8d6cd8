//! The decisions of `kennel daemon`, as far as they are here: of each server slot, and of restarts.

mod lanes;
mod restarts;
mod slot;

pub use lanes::{CHUNK, Lanes};
pub use restarts::{Restarts, SlotKey};
pub use slot::{ServerSlot, SlotAction};
