//! What must hold for every line and every schedule, whoever thinks it up.
//!
//! A [`Target`] takes any bytes. It panics where a rule is broken; bytes that mean nothing to it pass. The engine of
//! `cargo xtask fuzz` and `cargo fuzz` feeds it bytes that reach what no bytes before have reached, and the tests feed it
//! those that are kept in `corpus/`. Each target is a program in `fuzz_targets/`.
//!
//! | target | its bytes |
//! |---|---|
//! | `message` | one line |
//! | `mux` | a schedule of several clients and a server, a step on each line: see `mux.rs` |
//! | `session` | a schedule of an app and its upstreams: see `session.rs` |
//! | `lines` | what a reader of lines reads, and how it is cut: see `crates/kennel/src/for_fuzzing/lines.rs` |
//! | `hello` | a first line, or one of Kennel's own |
//! | `record` | what a daemon, a warden or `wrap` wrote down |
//! | `lock` | the content of a lock's file |
//! | `servers` | a `servers.toml` |
//! | `wrap` | a letter for the shape of an app's configuration, then the configuration: see `configuration.rs` there |

mod hello;
mod ledger;
mod message;
mod mux;
mod session;

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
            Target::Lines => kennel::for_fuzzing::lines(bytes),
            Target::Hello => hello::check(bytes),
            Target::Record => kennel::for_fuzzing::record(bytes),
            Target::Lock => kennel_sys::for_fuzzing::lock(bytes),
            Target::Servers => kennel::for_fuzzing::servers(bytes),
            Target::Wrap => kennel::for_fuzzing::configuration(bytes),
        }
    }
}

/// The program of a target: with the engine where `cargo fuzz` or `cargo xtask fuzz` builds it, else [`check_files`].
#[macro_export]
macro_rules! fuzz_target {
    ($target:ident) => {
        #[cfg(fuzzing)]
        ::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::Target::$target.check(bytes));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::check_files($crate::Target::$target)
        }
    };
}

/// Checks the files that the arguments name, as the engine wrote them.
pub fn check_files(target: Target) -> std::io::Result<()> {
    for file in std::env::args_os().skip(1) {
        target.check(&std::fs::read(file)?);
    }
    Ok(())
}
