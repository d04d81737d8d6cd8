//! The daemon, started as the election starts it, and spoken to as clients speak to it.

mod attacks;
mod bounds;
mod deaths;
mod ends;
mod former;
mod losses;
mod pipes;
mod stage;
mod wire;
