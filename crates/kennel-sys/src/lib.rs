//! The interface to the operating system: process identity, process trees, the runtime directory, locks, socket peers.
//!
//! This crate states facts and carries out actions; it decides nothing and knows nothing of MCP. All `unsafe` code is here.
//!
//! | module | contains |
//! |---|---|
//! | [`process`] | [`ProcessRef`](process::ProcessRef): a reference to a process that survives pid reuse |
//! | [`starter`] | the process that started us, and which processes to watch so that we end with it |
//! | [`peer`] | the process at the other end of a Unix socket |
//! | [`passing`] | descriptors that a peer passes: refused, or closed without blocking |
//! | [`confinement`] | restrictions of a process that others of its user do not have |
//! | [`net`] | listening TCP sockets and their connections |
//! | [`tree`] | one server with all its descendants, under a warden |
//! | [`orphans`] | servers that no process can talk to any more |
//! | [`detach`] | starting a detached process; adopting inherited descriptors |
//! | [`handover`] | executing another program in the same process |
//! | [`runtime_dir`] | the user's runtime directory, checked before it is used |
//! | [`lock`] | locks that name their holder |
//! | [`fs`] | files and directories, accessed through open descriptors |
//! | [`user`] | users of this machine |
//! | [`program`] | the program of this process, and executing another one |
//! | [`stdio`] | the inherited stdin, stdout and stderr |
//! | [`terminal`] | the terminal at stdin and stdout |
//! | [`text`] | strings of the operating system and their bytes |
//! | [`random`] | random values |
//! | [`events`] | blocking until an event |
//! | [`io`] | a reactor for many sources, and sockets |
//! | [`signals`] | caught signals as an event source |
//! | [`duration`](mod@duration) | durations as text for people |
//! | [`escape`] | escaping text from outside for a terminal |
//! | [`env`](mod@env) | environment variables that must not be inherited |
//! | [`limits`] | the limit on open descriptors |
//! | [`memory`] | large pages for long lines |
//! | [`kernel`] | features of this kernel, and the switch that turns them off in tests |
//!
//! # Platforms
//! Linux is served. Code that only one kernel supports is in `linux`, which the rest of the crate calls `os`. On other
//! platforms `unserved` takes its place: every function that creates a process, a tree, a lock or a runtime directory fails
//! with [`std::io::ErrorKind::Unsupported`]. A new platform is a new folder beside `linux`.

#![cfg_attr(
    any(not(target_os = "linux"), kennel_unserved),
    expect(
        dead_code,
        unused_imports,
        unreachable_pub,
        reason = "only called on a served platform"
    )
)]

#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod linux;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
use linux as os;

mod backend;

mod unix;
pub use unix::{fs, program, random, stdio, terminal, text, user};

pub mod confinement;
pub mod detach;
mod detached;
pub mod duration;
pub mod env;
pub mod escape;
pub mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod for_fuzzing;
pub mod handover;
mod identity;
pub mod io;
pub mod kernel;
pub mod limits;
pub mod lock;
pub mod net;
pub mod orphans;
pub mod passing;
pub mod peer;
pub mod process;
pub mod runtime_dir;
pub mod signals;
pub mod starter;
pub mod tree;

mod switch;

/// Hints about memory, which change nothing but its use.
pub mod memory {
    pub use crate::os::{in_large_pages, release_free_memory, release_large_blocks};
}

#[cfg(not(unix))]
compile_error!(
    "kennel does not serve this platform yet: Linux is served, other Unix systems compile and say so"
);

#[cfg(any(not(target_os = "linux"), kennel_unserved))]
mod unserved;
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
use unserved as os;

pub use rustix::process::Signal;
