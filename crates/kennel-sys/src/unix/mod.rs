//! What every Unix system has: files, users, terminals, streams, programs. What only one kernel can be asked is in its own
//! folder, beside this one.

pub mod fs;
pub mod program;
pub mod random;
pub mod stdio;
pub mod terminal;
pub mod text;
pub mod user;
