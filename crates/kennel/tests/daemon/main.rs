//! The daemon, started as the election starts it, and spoken to as clients speak to it.

mod bounds;
mod deaths;
mod ends;
mod losses;
mod pipes;
mod stage;
mod wire;
