//! For authors of local tool servers: one writer per store, an end with the app, and one shutdown path.
//!
//! A server that takes a [`Guard`] first in `main`
//! - is the only writer of its store, in every environment and with every spelling of the path; a second server gets an
//!   error with the pid of the first one;
//! - ends when its parent or the app behind its launchers dies, even if another process keeps its stdin open; when its
//!   owner is gone and no session is connected; when there was no session for a time;
//! - ends in one way only: SIGTERM, SIGINT, SIGHUP and all of the above arrive as one [`Reason`].
//!
//! A complete server:
//!
//! ```no_run
//! use std::io::BufRead;
//! use std::process::ExitCode;
//! use kennel_guard::Guard;
//!
//! fn main() -> ExitCode {
//!     // First thing: before threads run, and while the parent is still who started us.
//!     let guard = match Guard::builder("diary").store("diary.db").acquire() {
//!         Ok(guard) => guard,
//!         Err(refusal) => {
//!             eprintln!("diary: {refusal}");
//!             return ExitCode::FAILURE;
//!         }
//!     };
//!     let stop = guard.stopper();
//!     std::thread::spawn(move || {
//!         for line in std::io::stdin().lock().lines().map_while(Result::ok) {
//!             println!("noted: {line}");
//!         }
//!         stop.stop(); // EOF: the client is done.
//!     });
//!     let reason = guard.wait();
//!     // One place to finish up, whatever the reason; the lock is still held here.
//!     eprintln!("diary: ended: {reason}");
//!     ExitCode::SUCCESS
//! }
//! ```
//!
//! Under an async runtime await [`Guard::stopping`] instead; it needs none in particular. Take the
//! guard before the runtime starts its threads.
//!
//! Servers that accept connections themselves (sockets, HTTP) hold a [`Lease`] for each and set
//! [`linger`](GuardBuilder::linger); a server bound to an editor names it as its
//! [`owner`](GuardBuilder::owner_from_env), and tells with [`port_holders`] who has its port. `examples/ws` is
//! such a server, whole. `uninstall` uses [`GuardBuilder::probe`] and
//! [`GuardBuilder::seize`].

mod builder;
mod guard;
mod owner;
mod ports;
mod refusal;
mod shutdown;
mod store;
mod watch;

pub use builder::GuardBuilder;
pub use guard::{Guard, Lease, Stopper};
pub use owner::{Owner, OwnerError, announce_owner};
pub use ports::{PortHolder, port_holders};
pub use refusal::Refusal;
pub use shutdown::{Reason, Stopping};
pub use store::{Declared, Held, HeldAt, Seized, hold_store, probe_store, real_path, store_key};

/// Compiles the examples in the documentation.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/EMBEDDING.md")]
    struct Embedding;
}
