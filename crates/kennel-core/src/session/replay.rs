//! What is asked again of the next upstream, and what is not.
//!
//! A request whose upstream is lost may be done or not. Whether it is sent again is a matter of what a
//! second time would do, and of who is to judge that: [`Replay`].

use std::fmt;
use std::str::FromStr;

use crate::message::{Part, Request};

use super::in_flight::Awaited;
use super::tools::Tools;

/// How often a request is sent again. One that is under way whenever a server dies may be what kills it,
/// and on a shared server it would take all the others with it.
const MOST_REPEATS: u32 = 2;

/// Which requests are sent again when the upstream that had them is lost.
///
/// Whatever is chosen: what is known never to have reached it is sent, for it never ran; what was
/// cancelled is not; a ping is answered by the session itself; and what the session stands on (the
/// handshake, the log level, subscriptions of both eras) is said again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Replay {
    /// What does no harm a second time: lists, reads, prompts, completions, and calls of tools that the
    /// server itself says are read-only or idempotent.
    #[default]
    Safe,

    /// Everything but a handshake in a batch. For servers whose every call may be made twice.
    All,

    /// Nothing.
    None,
}

impl Replay {
    /// All of them, the default first.
    pub const EACH: [Replay; 3] = [Replay::Safe, Replay::All, Replay::None];

    /// As it is called on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Replay::Safe => "safe",
            Replay::All => "all",
            Replay::None => "none",
        }
    }

    /// Whether this request may run a second time.
    fn repeats(self, request: &Request<'_>, tools: &Tools) -> bool {
        let method = request.method.name();
        match self {
            Replay::Safe => is_harmless(request, &method, tools),
            Replay::All => method != "initialize",
            Replay::None => false,
        }
    }

    /// What becomes of a request that was sent to a lost upstream; `unsent` if that never heard it.
    pub(super) fn judge(self, lost: &Awaited, unsent: bool, tools: &Tools) -> Judgement {
        if lost.is_ping() {
            return Judgement::Pong;
        }
        let again = match lost.kept_request() {
            None => false,
            Some(_) if unsent || lost.is_subscription() => true,
            Some(request) => lost.repeats() < MOST_REPEATS && self.repeats(&request, tools),
        };
        match again {
            true => Judgement::Again,
            false => Judgement::Refuse,
        }
    }
}

/// What becomes of a request whose upstream is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Judgement {
    /// The session lives, and that was the question.
    Pong,
    /// The next upstream is asked.
    Again,
    /// It is answered with an error.
    Refuse,
}

/// Whether a second time does nothing that the first did not.
fn is_harmless(request: &Request<'_>, method: &str, tools: &Tools) -> bool {
    let harmless = match method {
        "server/discover"
        | "tools/list"
        | "prompts/list"
        | "prompts/get"
        | "resources/list"
        | "resources/templates/list"
        | "resources/read"
        | "resources/subscribe"
        | "resources/unsubscribe"
        | "completion/complete"
        | "logging/setLevel" => true,
        "tools/call" => tool(request).is_some_and(|tool| tools.may_repeat(&tool)),
        _ => false,
    };
    harmless && !goes_on(request)
}

fn tool(request: &Request<'_>) -> Option<String> {
    let name = request.params?.member("name").ok().flatten()?;
    name.string().map(|name| name.into_owned())
}

/// Whether it is the next step of an exchange whose state the lost process minted: another one may not
/// understand it.
fn goes_on(request: &Request<'_>) -> bool {
    let state = |params: Part<'_>| {
        params.mentions("requestState") && !matches!(params.member("requestState"), Ok(None))
    };
    request.params.is_some_and(state)
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Replay {
    type Err = UnknownReplay;

    fn from_str(name: &str) -> Result<Replay, UnknownReplay> {
        let called = |replay: &Replay| replay.name() == name;
        let found = Replay::EACH.into_iter().find(called);
        found.ok_or_else(|| UnknownReplay(name.to_owned()))
    }
}

/// A word that is none of [`Replay`]'s.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownReplay(String);

impl fmt::Display for UnknownReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not safe, all or none", self.0)
    }
}

impl std::error::Error for UnknownReplay {}
