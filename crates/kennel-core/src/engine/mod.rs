//! The decisions of `kennel run` and `kennel daemon`, each as one state machine.
//!
//! An engine has no clock, descriptors or processes. Its driver passes in events with the time, and carries out the
//! actions that follow. The simulator is another driver of the same engines.

pub mod daemon;
mod restart_limit;
pub mod shim;
mod silence;

pub use restart_limit::RestartLimit;
