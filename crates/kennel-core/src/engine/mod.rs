//! What the processes of Kennel decide, each as one state machine.
//!
//! An engine has no clock, no descriptors and no processes. Its driver tells it what happened, with the time, and carries out
//! the actions that follow. The simulator is another driver of the same engines.

pub mod daemon;
mod restart_limit;
pub mod shim;
mod stopped;
mod survivors;

pub use restart_limit::RestartLimit;
