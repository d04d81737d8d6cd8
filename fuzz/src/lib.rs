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
//! | `hello` | a first line, or one of Kennel's own |

mod hello;
mod ledger;
mod message;
mod mux;
mod session;

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
    /// `kennel_core::hello`
    Hello,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 4] = [Target::Message, Target::Mux, Target::Session, Target::Hello];

    /// As it is called on a command line, and where its corpus is.
    pub fn name(self) -> &'static str {
        match self {
            Target::Message => "message",
            Target::Mux => "mux",
            Target::Session => "session",
            Target::Hello => "hello",
        }
    }

    /// Panics if these bytes break a rule.
    pub fn check(self, bytes: &[u8]) {
        match self {
            Target::Message => message::check(bytes),
            Target::Mux => mux::check(bytes),
            Target::Session => session::check(bytes),
            Target::Hello => hello::check(bytes),
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
