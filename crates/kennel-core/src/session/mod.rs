//! Decides what an app gets while the upstream of its session is replaced.
//!
//! A shim *is* the session: it outlives its **upstream**, the dedicated server or daemon that it talks to. [`Session`]
//! stands between app and upstream. It inspects each line, forwards it unchanged (rule 11), and stores just enough to
//! begin again with another upstream.
//!
//! The next upstream gets, in this order: the handshake; the log level and subscriptions; the requests of the lost
//! upstream that may run twice; the queued lines. The app notices nothing: no duplicate responses or acknowledgements,
//! and no progress that goes back. A request that must not run twice gets an error that says that its outcome is
//! unknown (rule 5). So every request gets exactly one response (rule 4). [`Replay`] decides which requests may run
//! twice. If the next server offers other tools, prompts or resources, and the first one had announced such
//! notifications, the app is notified.
//!
//! | file | contains |
//! |---|---|
//! | `handshake.rs` | `initialize` and `initialized`, for later upstreams |
//! | `features.rs` | the features that the server announced in its handshake |
//! | `server_state.rs` | log level and subscriptions (legacy), for later upstreams |
//! | `in_flight.rs` | the app's requests that wait for a response, for replay |
//! | `queue.rs` | the app's lines that wait for an upstream |
//! | `priority_lines.rs` | lines for the present upstream only, which go ahead of the queue |
//! | `tools.rs` | which tools may be called twice, and the first page of their list |
//! | `progress.rs` | the progress that the app was told |
//! | `server_exit.rs` | how a server exited, as text |
//! | `own_requests.rs` | requests that the session itself sends |
//! | `server_requests.rs` | server requests that wait for the app's response, and their ids |
//! | `era.rs` | the protocol era that the server has shown |
//! | `replay.rs`, `loss.rs` | which requests of a lost upstream are replayed, and how the next one begins |
//! | `batch.rs` | splitting and joining batches |
//! | `from_app.rs`, `from_upstream.rs` | dispatch of a line by its sender |

mod batch;
mod era;
mod features;
mod from_app;
mod from_upstream;
mod handshake;
mod in_flight;
mod loss;
mod note;
mod own_requests;
mod priority_lines;
mod progress;
mod queue;
mod replay;
mod reply;
mod server_exit;
mod server_requests;
mod server_state;
mod tools;

use std::collections::VecDeque;

pub use crate::message::reply::{IN_FLIGHT_LIMIT, NAME_LIMIT};
pub use in_flight::{REPLAY_LIMIT, Unsent};
pub use note::{Note, Side};
pub use queue::QUEUE_LIMIT;
pub use replay::{Replay, UnknownReplay};
pub use reply::{SERVER_RESTARTED, SERVER_UNAVAILABLE};
pub use server_exit::ServerExit;

use era::EraSeen;
use handshake::Handshake;
use in_flight::InFlight;
use own_requests::OwnRequests;
use priority_lines::PriorityLines;
use queue::Queue;
use reply::Refusal;
use server_requests::ServerRequests;
use server_state::ServerState;
use tools::Tools;

use crate::message::{Id, Message};
use crate::note::Notes;

/// A session of an app, and its successive upstreams.
///
/// Three kinds of methods:
/// - **events**: [`handle_app_line`](Self::handle_app_line), [`handle_upstream_line`](Self::handle_upstream_line),
///   [`handle_upstream_attached`](Self::handle_upstream_attached), [`handle_upstream_lost`](Self::handle_upstream_lost),
///   [`give_up`](Self::give_up), [`expect_upstream`](Self::expect_upstream), [`handle_app_eof`](Self::handle_app_eof).
/// - **actions**: the [`Verdict`] on the line, and then [`poll_to_app`](Self::poll_to_app),
///   [`poll_to_upstream`](Self::poll_to_upstream) and [`poll_note`](Self::poll_note).
/// - **queries**: the others.
///
/// The order of calls: pass in one event; do what the verdict says with that line; then poll. A side that cannot be
/// written to need not be polled: its lines stay in order, and later lines queue behind them. An upstream is attached
/// or not: call `handle_upstream_lost` between two of them. Lines of the old one are dropped after that. Lines have no
/// newline, neither input nor output.
///
/// ```
/// use kennel_core::session::{SERVER_RESTARTED, Session, Unsent, Verdict};
///
/// let mut session = Session::new();
/// session.handle_upstream_attached();
/// let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}"#;
/// assert_eq!(session.handle_app_line(call), Verdict::Forward);
///
/// let list = br#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
/// assert_eq!(session.handle_app_line(list), Verdict::Forward);
///
/// session.handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
/// let answer = session.poll_to_app().expect("an error for the call");
/// let data = r#""data":{"reason":"server_restarted","outcome":"unknown","replayed":false}"#;
/// assert!(String::from_utf8(answer).expect("text").contains(data));
///
/// let read = br#"{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"a:b"}}"#;
/// assert_eq!(session.handle_app_line(read), Verdict::Drop); // not forwarded: it waits
/// session.handle_upstream_attached();
/// assert_eq!(session.poll_to_upstream().as_deref(), Some(&list[..])); // again: that does no harm
/// assert_eq!(session.poll_to_upstream().as_deref(), Some(&read[..]));
/// ```
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    handshake: Option<Handshake>,
    in_flight: InFlight,
    queue: Queue,
    server_requests: ServerRequests,
    replay: Replay,
    tools: Tools,
    server_state: ServerState,
    own_requests: OwnRequests,
    /// Bytes sent to the present upstream.
    sent_bytes: u64,
    /// Whether the present upstream may be working on something that outlasts its request.
    began_a_task: bool,
    to_app: VecDeque<Vec<u8>>,
    /// Lines for the present upstream only, ahead of the queue: handshake, restored state, responses, cancellations.
    to_upstream: PriorityLines,
    notes: Notes<Note>,
    app_is_done: bool,
    requests: u64,
    era: EraSeen,
    /// How the server of the last upstream exited, if known.
    ending: Option<ServerExit>,
    /// When a request may start a server, in milliseconds.
    retry_after: Option<u64>,
}

/// The action for the line that was passed in.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the line was not written anywhere yet"]
pub enum Verdict {
    /// Write it to the other side as it is.
    Forward,

    /// Write this to the other side instead: the same line with another id.
    Replace(Vec<u8>),

    /// Write nothing: the line is queued, answered here, or invalid.
    Drop,

    /// Write nothing, and disconnect from this upstream: it refused a handshake that an earlier one had accepted. The
    /// session has recorded its loss.
    Abandon,
}

#[derive(Debug)]
enum Phase {
    /// No upstream: lines are queued.
    Detached,

    /// `initialize` was sent again; lines are queued until the response.
    Handshaking,

    /// Lines pass.
    Open,

    /// No upstream, and none expected: requests are refused.
    GivenUp(Refusal),
}

impl Session {
    /// Creates a session without upstream that replays safe requests.
    pub fn new() -> Session {
        Session::replaying(Replay::default())
    }

    /// Creates a session without upstream.
    pub fn replaying(replay: Replay) -> Session {
        Session {
            replay,
            tools: Tools::default(),
            server_state: ServerState::default(),
            own_requests: OwnRequests::default(),
            sent_bytes: 0,
            began_a_task: false,
            phase: Phase::Detached,
            handshake: None,
            in_flight: InFlight::default(),
            queue: Queue::default(),
            server_requests: ServerRequests::default(),
            to_app: VecDeque::new(),
            to_upstream: PriorityLines::default(),
            notes: Notes::default(),
            app_is_done: false,
            requests: 0,
            era: EraSeen::default(),
            ending: None,
            retry_after: None,
        }
    }

    /// Number of the app's requests, without pings.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Sets how the server exited that is lost next, or was lost last. Errors to its requests mention it.
    pub fn set_server_exit(&mut self, ending: Option<ServerExit>) {
        self.ending = ending;
    }

    /// Sets in how many milliseconds a request may start a server. The errors of [`give_up`](Self::give_up) and to
    /// later requests mention it.
    pub fn set_retry_after(&mut self, millis: Option<u64>) {
        self.retry_after = millis;
        if let Phase::GivenUp(refusal) = &mut self.phase {
            refusal.retry_after = millis;
        }
    }

    /// Lets requests wait for an upstream again.
    pub fn expect_upstream(&mut self) {
        if matches!(self.phase, Phase::GivenUp(_)) {
            self.phase = Phase::Detached;
        }
    }

    /// Handles the end of the app's input. The app still reads. Its subscriptions end with their upstream.
    pub fn handle_app_eof(&mut self) {
        self.app_is_done = true;
        if let Phase::GivenUp(_) = self.phase {
            self.refuse_queued();
        }
    }

    /// Returns the next line for the app.
    pub fn poll_to_app(&mut self) -> Option<Vec<u8>> {
        self.to_app.pop_front()
    }

    /// Returns the next line for the upstream, which counts as sent.
    pub fn poll_to_upstream(&mut self) -> Option<Vec<u8>> {
        if let Some(line) = self.to_upstream.pop_front() {
            self.record_sent(&line, None);
            return Some(line);
        }
        if !matches!(self.phase, Phase::Open) {
            return None;
        }
        let line = self.queue.pop()?.line;
        // Only messages are queued.
        let message = Message::parse(&line).ok();
        self.record_sent(&line, message.as_ref());
        Some(line)
    }

    /// The first line for the next upstream, if the app has sent `initialize`:
    /// [`poll_to_upstream`](Self::poll_to_upstream) returns it first after
    /// [`handle_upstream_attached`](Self::handle_upstream_attached). An upstream that gets it and disconnects has done
    /// no harm.
    pub fn handshake_request(&self) -> Option<&[u8]> {
        self.handshake.as_ref().map(Handshake::request)
    }

    /// Returns the next note for the log.
    pub fn poll_note(&mut self) -> Option<Note> {
        self.notes.pop(Note::MoreNotes)
    }

    /// Whether the app should not be read: [`QUEUE_LIMIT`] bytes wait for an upstream. A line that is passed in
    /// nevertheless is queued.
    pub fn queue_is_full(&self) -> bool {
        self.queue.bytes() + self.to_upstream.bytes() >= QUEUE_LIMIT
    }

    /// Number of the app's requests without a response, including queued ones and excluding cancelled ones.
    pub fn in_flight(&self) -> usize {
        self.in_flight.awaited().count()
    }

    /// Whether a request with this id, as spelled, has no response yet.
    pub fn is_in_flight(&self, id: &[u8]) -> bool {
        let id = std::str::from_utf8(id).ok().and_then(Id::from_text);
        id.is_some_and(|id| self.in_flight.stage(&id.key()).is_some())
    }

    /// Whether the app waits for any response; faster than `pending_requests() > 0`.
    pub fn has_pending_requests(&self) -> bool {
        let mut awaited = self.in_flight.awaited();
        awaited.any(|it| !it.is_open_subscription())
    }

    /// Number of responses that the app waits for. A subscription that is known to be open is in flight but waits for
    /// no response.
    pub fn pending_requests(&self) -> usize {
        let awaited = self.in_flight.awaited();
        awaited.filter(|it| !it.is_open_subscription()).count()
    }

    /// Whether every request has its response and no line is queued. After [`handle_app_eof`](Self::handle_app_eof),
    /// the session is over.
    pub fn is_idle(&self) -> bool {
        // While the handshake is sent again, only the handshake is queued.
        let upstream_has_all =
            self.to_upstream.is_empty() || matches!(self.phase, Phase::Handshaking);
        self.in_flight.awaited().next().is_none()
            && self.queue.is_empty()
            && upstream_has_all
            && self.to_app.is_empty()
    }

    /// Whether the upstream may be replaced now: only subscriptions are pending, which are opened again.
    pub fn is_quiet(&self) -> bool {
        !self.began_a_task
            && self.in_flight.is_quiet()
            && !self.server_requests.any_is_open()
            && self.to_upstream.is_empty()
            && !self.handshake_is_in_progress()
    }

    /// Whether no line waits for an upstream. After [`handle_app_eof`](Self::handle_app_eof), a dedicated server may
    /// get the end of its input.
    pub fn all_is_sent(&self) -> bool {
        self.queue.is_empty() && self.to_upstream.is_empty() && !self.handshake_is_in_progress()
    }

    /// Whether [`handle_app_eof`](Self::handle_app_eof) was called.
    pub fn app_is_done(&self) -> bool {
        self.app_is_done
    }

    /// Whether the server has shown that it is modern, or that it is not.
    pub fn is_modern(&self) -> Option<bool> {
        self.era.is_modern()
    }

    /// Whether there is an upstream, even if its handshake is not complete.
    pub fn is_attached(&self) -> bool {
        match self.phase {
            Phase::Handshaking | Phase::Open => true,
            Phase::Detached | Phase::GivenUp(_) => false,
        }
    }

    /// Whether a valid message of the app would be forwarded at once: then the beginning of a long one may be sent
    /// before its end is read.
    pub fn can_forward(&self) -> bool {
        self.can_forward_now()
    }

    /// Whether `initialize` waits for an upstream, or `initialized` for its response.
    fn handshake_is_in_progress(&self) -> bool {
        match (&self.phase, &self.handshake) {
            (Phase::Handshaking, _) => true,
            (Phase::Detached, Some(handshake)) => !handshake.is_answered(),
            _ => false,
        }
    }

    /// Whether no line is ahead of a line for the upstream.
    fn can_forward_now(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.queue.is_empty() && self.to_upstream.is_empty()
    }
}

impl Default for Session {
    fn default() -> Session {
        Session::new()
    }
}
