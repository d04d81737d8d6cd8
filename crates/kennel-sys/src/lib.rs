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
//! Linux is served. Everywhere else the same types and functions exist, and every way to make one
//! answers [`std::io::ErrorKind::Unsupported`]; nothing pretends. A new platform is a new file beside `linux`.

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

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub use unix::{fs, program, random, stdio, terminal, text, user};

#[cfg(unix)]
pub mod confinement;
#[cfg(unix)]
pub mod detach;
mod detached;
#[cfg(unix)]
pub mod env;
pub mod escape;
#[cfg(unix)]
pub mod events;
#[cfg(unix)]
pub mod handover;
mod identity;
#[cfg(unix)]
pub mod kernel;
#[cfg(unix)]
pub mod limits;
#[cfg(unix)]
pub mod lock;
#[cfg(unix)]
pub mod net;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
pub mod orphans;
#[cfg(unix)]
pub mod passing;
#[cfg(unix)]
pub mod peer;
#[cfg(unix)]
pub mod process;
#[cfg(unix)]
pub mod runtime_dir;
#[cfg(unix)]
pub mod signals;
#[cfg(unix)]
pub mod starter;
#[cfg(unix)]
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

#[cfg(unix)]
pub use rustix::process::Signal;
