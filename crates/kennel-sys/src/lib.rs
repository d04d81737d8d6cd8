//! What the operating system knows: who a process is and when it ends, what belongs to its tree,
//! where one user's processes meet, who holds a lock, who is at the other end of a socket.
//!
//! This room states facts and carries out orders; it decides nothing and knows nothing of MCP.
//! It is the only room with `unsafe` in it.
//!
//! | module | what it gives |
//! |---|---|
//! | [`process`] | [`ProcessRef`](process::ProcessRef): a process as a reference, not a number |
//! | [`starter`] | who started us, and whom to watch so that we end with it |
//! | [`peer`] | who is at the other end of a unix socket |
//! | [`passing`] | descriptors that a peer passes: refused, or closed without waiting |
//! | [`confinement`] | what keeps a process from doing what other processes of its user can do |
//! | [`net`] | who listens on a port, and who is connected to it |
//! | [`tree`] | one server with all its descendants, under a warden |
//! | [`orphans`] | servers nobody can talk to any more, whoever started them |
//! | [`detach`] | starting a process that is nobody's |
//! | [`handover`] | becoming another program and staying the same process |
//! | [`runtime_dir`] | the user's meeting place, checked before it is believed |
//! | [`lock`] | locks that say who holds them |
//! | [`fs`] | files and directories, used through what was opened |
//! | [`user`] | users of this machine |
//! | [`program`] | the program of this process, and becoming another |
//! | [`stdio`] | stdin, stdout and stderr as they were inherited |
//! | [`terminal`] | the terminal that they are |
//! | [`text`] | words of the operating system and their bytes |
//! | [`random`] | words that nobody can guess |
//! | [`events`] | sleeping until something happens |
//! | [`signals`] | caught signals as something to poll |
//! | [`escape`] | text from outside, made harmless for a terminal |
//! | [`env`](mod@env) | variables that must not travel on |
//! | [`limits`] | as many descriptors as are allowed |
//! | [`memory`] | large pages for long lines |
//! | [`kernel`] | which features this kernel has, and the switch that turns them off in tests |
//!
//! # Platforms
//! Linux is served. What only one kernel can be asked is in `linux`, which the rest of the crate calls `os`. Everywhere else
//! `unserved` takes its place: every way to make a process, a tree, a lock or a runtime directory answers
//! [`std::io::ErrorKind::Unsupported`]; nothing pretends. A new platform is a new folder beside `linux`.

#![cfg_attr(
    any(not(target_os = "linux"), kennel_unserved),
    expect(
        dead_code,
        unused_imports,
        reason = "what only a served platform calls"
    )
)]

#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod linux;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
use linux as os;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
pub use linux::memory;

mod unix;
pub use unix::{fs, program, random, stdio, terminal, text, user};

pub mod confinement;
pub mod detach;
mod detached;
pub mod env;
pub mod escape;
pub mod events;
pub mod handover;
mod identity;
pub mod kernel;
pub mod limits;
pub mod lock;
pub mod net;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
pub mod orphans;
pub mod passing;
pub mod peer;
pub mod process;
pub mod runtime_dir;
pub mod signals;
pub mod starter;
pub mod tree;

mod switch;

#[cfg(not(unix))]
compile_error!(
    "kennel does not serve this platform yet: Linux is served, other Unix systems compile and say so"
);

#[cfg(any(not(target_os = "linux"), kennel_unserved))]
mod unserved;
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
use unserved as os;
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
pub use unserved::{memory, orphans};

pub use rustix::process::Signal;
