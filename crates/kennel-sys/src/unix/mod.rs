//! Functions that every Unix system has: files, users, terminals, streams, programs. Functions of one kernel are in its own
//! folder.

pub mod fs;
pub mod program;
pub mod random;
pub mod stdio;
pub mod terminal;
pub mod text;
pub mod user;
