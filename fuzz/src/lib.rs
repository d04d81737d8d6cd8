//! What must hold for every line and every schedule, whoever thinks it up.
//!
//! A [`Target`] takes any bytes. It panics where a rule is broken; bytes that mean nothing to it pass. Two
//! feed it: `cargo xtask fuzz` with bytes that reach what no bytes before have reached, and the tests with
//! those that are kept in `corpus/`.
//!
//! | target | its bytes |
//! |---|---|
//! | `message` | one line |
//! | `mux` | a schedule of several clients and a server, a step on each line: see `mux.rs` |
//! | `session` | a schedule of an app and its upstreams: see `session.rs` |
//! | `lines` | what a reader of lines reads, and how it is cut: see `lines.rs` |
//! | `hello` | a first line, or one of Kennel's own |
//! | `record` | what a daemon, a warden or `wrap` wrote down |
//! | `lock` | the content of a lock's file |
//! | `servers` | a `servers.toml` |
//! | `wrap` | a letter for the shape of an app's configuration, then the configuration: see `configuration.rs` |

mod configuration;
mod hello;
mod ledger;
mod lines;
mod lock;
mod message;
mod mux;
mod record;
mod servers;
mod session;

// What reads files is no crate's to give away. It is compiled here once more, from where it is; there it calls its
// neighbours by these names.
/// Of `kennel-sys`.
#[expect(dead_code, unreachable_pub, reason = "only what reads is used here")]
#[path = "../../crates/kennel-sys/src/lock/record.rs"]
mod lock_record;
#[expect(dead_code, reason = "only what reads is used here")]
#[path = "../../crates/kennel-sys/src/tree/record.rs"]
mod tree_record;
#[path = "../../crates/kennel-sys/src/tree/whole_file.rs"]
mod whole_file;
mod detached {
    pub(crate) use kennel_sys::tree::Detached;
}
mod process {
    pub(crate) use kennel_sys::process::{Identity, ProcessRef};
}
/// Of `kennel`.
#[path = "../../crates/kennel/src/duration.rs"]
mod duration;
/// Of `kennel`.
#[path = "../../crates/kennel/src/key"]
mod key {
    #[cfg_attr(not(test), expect(dead_code, reason = "only what reads is used here"))]
    pub(crate) mod rights;
    #[expect(dead_code, reason = "only what reads is used here")]
    pub(crate) mod variables;
}
#[cfg_attr(not(test), expect(dead_code, reason = "only what reads is used here"))]
#[path = "../../crates/kennel/src/judged_dir.rs"]
mod judged_dir;
#[expect(dead_code, reason = "only what reads is used here")]
#[path = "../../crates/kennel/src/meeting.rs"]
mod meeting;
/// Of `kennel`.
#[path = "../../crates/kennel/src/names.rs"]
mod names;
#[expect(dead_code, unused_imports, reason = "only what reads is used here")]
#[path = "../../crates/kennel/src/sharing/mod.rs"]
mod sharing;
/// Of `kennel`. What reads lines keeps a long line's memory there.
#[path = "../../crates/kennel/src/shim"]
mod shim {
    #[cfg_attr(not(test), expect(dead_code, reason = "nobody waits here"))]
    pub(crate) mod spare;
}
#[path = "../../crates/kennel/src/size.rs"]
mod size;
#[expect(dead_code, reason = "only what reads is used here")]
#[path = "../../crates/kennel/src/timers.rs"]
mod timers;
#[expect(dead_code, reason = "only what reads is used here")]
#[path = "../../crates/kennel/src/values.rs"]
mod values;
#[expect(dead_code, reason = "only what reads and edits is used here")]
#[path = "../../crates/kennel/src/wrap"]
mod wrap {
    mod anywhere;
    pub(crate) mod clients;
    pub(crate) mod entry;
    mod json;
    pub(crate) mod places;
    pub(crate) mod plan;
    pub(crate) mod shapes;
    mod splice;
    mod toml;
    pub(crate) mod undo;
    pub(crate) mod yaml;
}

/// Where the program would tell a person. Nobody is told here.
fn warn(_: &str) {}

use std::str::FromStr;

/// What bytes are thrown at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// `kennel_core::message`
    Message,
    /// `kennel_core::mux`
    Mux,
    /// `kennel_core::session`
    Session,
    /// What cuts bytes into lines, in shim and daemon
    Lines,
    /// `kennel_core::hello`
    Hello,
    /// `daemon.json`, the record of a tree, and what `wrap` remembers
    Record,
    /// The content of a lock's file
    Lock,
    /// `servers.toml`
    Servers,
    /// The configurations of apps
    Wrap,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 9] = [
        Target::Message,
        Target::Mux,
        Target::Session,
        Target::Lines,
        Target::Hello,
        Target::Record,
        Target::Lock,
        Target::Servers,
        Target::Wrap,
    ];

    /// As it is called on a command line, and where its corpus is.
    pub fn name(self) -> &'static str {
        match self {
            Target::Message => "message",
            Target::Mux => "mux",
            Target::Session => "session",
            Target::Lines => "lines",
            Target::Hello => "hello",
            Target::Record => "record",
            Target::Lock => "lock",
            Target::Servers => "servers",
            Target::Wrap => "wrap",
        }
    }

    /// Panics if these bytes break a rule.
    pub fn check(self, bytes: &[u8]) {
        match self {
            Target::Message => message::check(bytes),
            Target::Mux => mux::check(bytes),
            Target::Session => session::check(bytes),
            Target::Lines => lines::check(bytes),
            Target::Hello => hello::check(bytes),
            Target::Record => record::check(bytes),
            Target::Lock => lock::check(bytes),
            Target::Servers => servers::check(bytes),
            Target::Wrap => configuration::check(bytes),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Target, String> {
        let called = |target: &Target| target.name() == name;
        let found = Target::ALL.into_iter().find(called);
        found.ok_or_else(|| format!("no target is called {name}"))
    }
}
