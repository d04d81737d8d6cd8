//! What Kennel's tests stand on: a [`Scope`] nothing escapes from, labelled waits, printed seeds,
//! and servers that misbehave on purpose. Never published.
#![expect(
    clippy::print_stderr,
    reason = "a test's stderr is shown when it fails"
)]

mod canary;
mod chance;
mod client;
mod keeper;
mod kernels;
mod ports;
mod scope;
mod wait;

pub use canary::{CANARY, Canary};
pub use chance::{Rng, count, full, seed};
pub use client::{Client, Ended, run};
pub use keeper::{Keeper, KeptPipes};
pub use kernels::{on_each_kernel, on_each_kernel_alone, try_with_pid, with_pid};
pub use ports::free_port;
pub use scope::{Scope, bin, tool};
pub use wait::{DEADLINE, skipped, wait_for, wait_until};

/// Lets every process of this user see what this one waits for, also where Yama denies that (`ptrace_scope` 1).
pub fn show_system_calls() {
    // A kernel without Yama denies nothing.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}
