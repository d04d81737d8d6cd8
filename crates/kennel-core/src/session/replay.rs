//! Decides which requests of a lost upstream are replayed to the next one.
//!
//! A request of a lost upstream may or may not have been processed. Whether it is replayed depends on the effect of
//! running it twice, and on who judges that: [`Replay`].

use std::fmt;
use std::str::FromStr;

use crate::message::{Part, Request};

use super::in_flight::PendingRequest;
use super::tools::Tools;

/// Maximum number of replays of a request. A request that is pending whenever a server dies may be the cause, and on a
/// shared server it would harm all other clients.
const MAX_REPLAYS: u32 = 2;

/// Selects the requests that are replayed when their upstream is lost.
///
/// In every mode, requests that were certainly not received are sent; cancelled ones are not; pings are answered by the
/// session itself; and handshake, log level and subscriptions of both eras are restored.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Replay {
    /// Requests that do no harm a second time: lists, reads, prompts, completions, and calls of tools that the server
    /// declares as read-only or idempotent.
    #[default]
    Safe,

    /// All requests but a handshake in a batch. For servers whose calls may all run twice.
    All,

    /// No requests.
    None,
}

impl Replay {
    /// All modes, the default first.
    pub const EACH: [Replay; 3] = [Replay::Safe, Replay::All, Replay::None];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Replay::Safe => "safe",
            Replay::All => "all",
            Replay::None => "none",
        }
    }

    /// Whether this request may run twice.
    fn replays(self, request: &Request<'_>, tools: &Tools) -> bool {
        let method = request.method.name();
        match self {
            Replay::Safe => is_harmless(request, &method, tools),
            Replay::All => method != "initialize",
            Replay::None => false,
        }
    }

    /// Decides about a request that was sent to a lost upstream. `unsent`: it was certainly not received.
    pub(super) fn decide(
        self,
        lost: &PendingRequest,
        unsent: bool,
        tools: &Tools,
    ) -> ReplayDecision {
        if lost.is_ping() {
            return ReplayDecision::Pong;
        }
        let again = match lost.kept_request() {
            None => false,
            Some(_) if unsent || lost.is_subscription() => true,
            Some(request) => lost.replays() < MAX_REPLAYS && self.replays(&request, tools),
        };
        match again {
            true => ReplayDecision::Replay,
            false => ReplayDecision::Refuse,
        }
    }
}

/// The action for a request of a lost upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReplayDecision {
    /// Answer the ping: the session lives.
    Pong,
    /// Send it to the next upstream.
    Replay,
    /// Answer it with an error.
    Refuse,
}

/// Whether running it twice has no further effect.
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
    harmless && !continues_exchange(request)
}

fn tool(request: &Request<'_>) -> Option<String> {
    let name = request.params?.member("name").ok().flatten()?;
    name.string().map(|name| name.into_owned())
}

/// Whether it continues an exchange whose state was created by the lost process: another process may not understand it.
fn continues_exchange(request: &Request<'_>) -> bool {
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

/// A name that is no [`Replay`] mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownReplay(String);

impl fmt::Display for UnknownReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not safe, all or none", self.0)
    }
}

impl std::error::Error for UnknownReplay {}
