//! Tools for Kennel's tests: a [`Scope`] that ends all its processes, waits with a label, printed seeds, and servers that
//! misbehave on purpose. Never published.
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
mod roll;
mod scope;
mod stdio_ends;
mod subject;
mod terminal;
mod wait;

pub use canary::{CANARY, Canary};
pub use chance::{Rng, count, full, seed};
pub use client::{Client, Ended, run};
pub use keeper::{Keeper, KeptPipes};
pub use kernels::{on_each_kernel, on_each_kernel_alone, try_with_pid, with_pid};
pub use ports::free_port;
pub use roll::sign_roll;
pub use scope::{Scope, bin, tool};
pub use stdio_ends::{keep_open, stdio_ends};
pub use subject::Subject;
pub use terminal::Terminal;
pub use wait::{DEADLINE, skipped, wait_for, wait_until};

/// Lets every process of this user see what this process waits for, also if Yama restricts that (`ptrace_scope` 1).
pub fn show_system_calls() {
    // A kernel without Yama does not restrict it.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}
