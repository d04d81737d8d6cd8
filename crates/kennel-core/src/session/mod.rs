//! What an app hears while the upstream behind its session is replaced.
//!
//! A shim *is* the session: it outlives the server of its own, or the daemon, that it talks to (its
//! **upstream**). [`Session`] stands between the two. It looks at each line that passes, lets it
//! through unchanged (rule 11), and remembers just enough to begin again with another upstream.
//!
//! The next upstream hears, in this order: the handshake; the log level and the subscriptions that stand;
//! the requests that the lost one had and that may run twice, as they were sent; what waited meanwhile. The
//! app hears nothing of it, neither second answers and acknowledgements nor progress that goes back. What
//! may not run twice is answered with an error that says that its outcome is unknown (rule 5); so every
//! request gets exactly one answer, and its own (rule 4). Which may run twice is [`Replay`]'s to say. An app that
//! lists tools, prompts or resources is told that they changed if the next server is another one, or shows
//! other tools, and the first had said that it might say so.
//!
//! | file | what it keeps |
//! |---|---|
//! | `handshake.rs` | `initialize` and `initialized`, to be sent again |
//! | `offer.rs` | what the server offered by it, to be compared |
//! | `standing.rs` | the log level, and subscriptions (legacy) |
//! | `in_flight.rs` | the app's requests that wait for an answer, to be sent again |
//! | `queue.rs` | the app's lines that wait for an upstream |
//! | `urgent.rs` | lines for the present upstream alone, which go ahead of those |
//! | `tools.rs` | which tools the server said may be called twice, and how its list began |
//! | `progress.rs` | how far the app was told its requests have come |
//! | `ending.rs` | nothing: words for how a server ended |
//! | `errands.rs` | what the session asks on its own account |
//! | `reverse.rs` | the server's requests that wait for the app's answer, and their ids |
//! | `era.rs` | which protocol the server was seen to speak |
//! | `replay.rs`, `loss.rs` | nothing: what becomes of what a lost upstream had, and how the next begins |
//! | `batch.rs` | nothing: it takes batches apart and puts them together |
//! | `from_app.rs`, `from_upstream.rs` | nothing: what follows from a line |

mod batch;
mod ending;
mod era;
mod errands;
mod from_app;
mod from_upstream;
mod handshake;
mod in_flight;
mod loss;
mod note;
mod offer;
mod progress;
mod queue;
mod replay;
mod reply;
mod reverse;
mod standing;
mod tools;
mod urgent;

use std::collections::VecDeque;

pub use crate::message::reply::{IN_FLIGHT_LIMIT, NAME_LIMIT};
pub use ending::Ending;
pub use in_flight::{REPLAY_LIMIT, Unsent};
pub use note::{Note, Side};
pub use queue::QUEUE_LIMIT;
pub use replay::{Replay, UnknownReplay};
pub use reply::{SERVER_RESTARTED, SERVER_UNAVAILABLE};

use era::EraSeen;
use errands::Errands;
use handshake::Handshake;
use in_flight::InFlight;
use queue::Queue;
use reply::Refusal;
use reverse::Reverse;
use standing::Standing;
use tools::Tools;
use urgent::Urgent;

use crate::message::{Id, Message};

/// One session of one app, over however many upstreams.
///
/// Three kinds of methods:
/// - **what happened**: [`from_app`](Self::from_app), [`from_upstream`](Self::from_upstream) with a
///   line each; [`upstream_attached`](Self::upstream_attached),
///   [`upstream_lost`](Self::upstream_lost), [`give_up`](Self::give_up),
///   [`upstream_expected`](Self::upstream_expected), [`app_eof`](Self::app_eof).
/// - **what follows**: the [`Verdict`] on the line handed in, and then
///   [`poll_to_app`](Self::poll_to_app), [`poll_to_upstream`](Self::poll_to_upstream) and
///   [`poll_note`](Self::poll_note).
/// - **where it stands**: [`queue_is_full`](Self::queue_is_full), [`in_flight`](Self::in_flight), [`owed`](Self::owed),
///   [`is_idle`](Self::is_idle), [`all_is_sent`](Self::all_is_sent),
///   [`is_attached`](Self::is_attached), [`forwards`](Self::forwards).
///
/// The order of calls: hand in one thing that happened; do what the verdict says with that very line;
/// then poll. A side that cannot be written to just now need not be polled: what waits for it stays
/// in order, and later lines for it wait behind. An upstream is attached or not: between two of them
/// `upstream_lost` is called, and after it, nothing that was read from the old one is handed in
/// (what is, is dropped). Lines have no newline, neither those handed in nor those handed out.
///
/// ```
/// use kennel_core::session::{SERVER_RESTARTED, Session, Unsent, Verdict};
///
/// let mut session = Session::new();
/// session.upstream_attached();
/// let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}"#;
/// assert_eq!(session.from_app(call), Verdict::Forward);
///
/// let list = br#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
/// assert_eq!(session.from_app(list), Verdict::Forward);
///
/// session.upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
/// let answer = session.poll_to_app().expect("an error for the call");
/// let data = r#""data":{"reason":"server_restarted","outcome":"unknown","replayed":false}"#;
/// assert!(String::from_utf8(answer).expect("text").contains(data));
///
/// let read = br#"{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"a:b"}}"#;
/// assert_eq!(session.from_app(read), Verdict::Drop); // not forwarded: it waits
/// session.upstream_attached();
/// assert_eq!(session.poll_to_upstream().as_deref(), Some(&list[..])); // again: that does no harm
/// assert_eq!(session.poll_to_upstream().as_deref(), Some(&read[..]));
/// ```
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    handshake: Option<Handshake>,
    in_flight: InFlight,
    queue: Queue,
    reverse: Reverse,
    replay: Replay,
    tools: Tools,
    standing: Standing,
    errands: Errands,
    /// How many bytes the present upstream was sent.
    handed: u64,
    /// The present upstream may be working on something that outlasts its request.
    began_a_task: bool,
    to_app: VecDeque<Vec<u8>>,
    /// For this upstream alone, and ahead of the queue: handshake, what stands, answers, cancellations.
    to_upstream: Urgent,
    notes: note::Notes,
    app_is_done: bool,
    requests: u64,
    era: EraSeen,
    /// How the last upstream's server ended, if that is known.
    ending: Option<Ending>,
    /// When a request may have a server started, in milliseconds.
    retry_after: Option<u64>,
}

/// What to do with the line that was handed in.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the line was not written anywhere yet"]
pub enum Verdict {
    /// Write it to the other side as it is.
    Forward,

    /// Write this to the other side instead: the same line with another id.
    Replace(Vec<u8>),

    /// Write nothing: it waits here, or is answered here, or is no good.
    Drop,

    /// Write nothing, and end this upstream: it refused a handshake that an earlier one had
    /// accepted. It is lost already as far as the session is concerned.
    Abandon,
}

#[derive(Debug)]
enum Phase {
    /// No upstream: lines wait.
    Detached,

    /// `initialize` was sent again; lines wait until it is answered.
    Greeting,

    /// Lines pass.
    Open,

    /// No upstream, and none to be expected: requests are refused.
    GivenUp(Refusal),
}

impl Session {
    /// A session that has no upstream yet, and sends again what is safe.
    pub fn new() -> Session {
        Session::replaying(Replay::default())
    }

    /// A session that has no upstream yet.
    pub fn replaying(replay: Replay) -> Session {
        Session {
            replay,
            tools: Tools::default(),
            standing: Standing::default(),
            errands: Errands::default(),
            handed: 0,
            began_a_task: false,
            phase: Phase::Detached,
            handshake: None,
            in_flight: InFlight::default(),
            queue: Queue::default(),
            reverse: Reverse::default(),
            to_app: VecDeque::new(),
            to_upstream: Urgent::default(),
            notes: note::Notes::default(),
            app_is_done: false,
            requests: 0,
            era: EraSeen::default(),
            ending: None,
            retry_after: None,
        }
    }

    /// How many requests the app made, pings aside.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// How the server ended that is lost next, or was lost last. The errors for its requests say so.
    pub fn upstream_ended(&mut self, ending: Option<Ending>) {
        self.ending = ending;
    }

    /// In how many milliseconds a request may have a server started: errors that say that there is none say so, those
    /// of [`give_up`](Self::give_up) to come and those to later requests.
    pub fn retry_after(&mut self, millis: Option<u64>) {
        self.retry_after = millis;
        if let Phase::GivenUp(refusal) = &mut self.phase {
            refusal.retry_after = millis;
        }
    }

    /// An upstream is to be expected after all: requests wait for it again.
    pub fn upstream_expected(&mut self) {
        if matches!(self.phase, Phase::GivenUp(_)) {
            self.phase = Phase::Detached;
        }
    }

    /// The app will say nothing more, but still listens (a half-close). Its subscriptions end with their
    /// upstream.
    pub fn app_eof(&mut self) {
        self.app_is_done = true;
        if let Phase::GivenUp(_) = self.phase {
            self.refuse_what_waits();
        }
    }

    /// The next line for the app.
    pub fn poll_to_app(&mut self) -> Option<Vec<u8>> {
        self.to_app.pop_front()
    }

    /// The next line for the upstream. With this it counts as sent.
    pub fn poll_to_upstream(&mut self) -> Option<Vec<u8>> {
        if let Some(line) = self.to_upstream.pop_front() {
            self.handed_out(&line, None);
            return Some(line);
        }
        if !matches!(self.phase, Phase::Open) {
            return None;
        }
        let line = self.queue.pop()?.line;
        // Only messages wait.
        let message = Message::parse(&line).ok();
        self.handed_out(&line, message.as_ref());
        Some(line)
    }

    /// What the next upstream hears first, if the app has begun: after [`upstream_attached`](Self::upstream_attached), it
    /// is what [`poll_to_upstream`](Self::poll_to_upstream) gives first. Whoever hears it and goes has done no harm.
    pub fn greeting(&self) -> Option<&[u8]> {
        self.handshake.as_ref().map(Handshake::request)
    }

    /// The next thing worth a line in the log.
    pub fn poll_note(&mut self) -> Option<Note> {
        self.notes.pop()
    }

    /// Whether the app's next line had better stay in its pipe: [`QUEUE_LIMIT`] bytes wait for an
    /// upstream. A line that is handed in all the same is kept.
    pub fn queue_is_full(&self) -> bool {
        self.queue.bytes() + self.to_upstream.bytes() >= QUEUE_LIMIT
    }

    /// How many of the app's requests have no answer yet, those that wait for an upstream included.
    /// A cancelled one is not waited for.
    pub fn in_flight(&self) -> usize {
        self.in_flight.awaited().count()
    }

    /// Whether the request with this id, as spelled, has no answer yet.
    pub fn awaits(&self, id: &[u8]) -> bool {
        let id = std::str::from_utf8(id).ok().and_then(Id::alone);
        id.is_some_and(|id| self.in_flight.stage(&id.key()).is_some())
    }

    /// Whether the app waits for any answer: the same as `owed() > 0`, and as quick with many as with one.
    pub fn owes(&self) -> bool {
        let mut awaited = self.in_flight.awaited();
        awaited.any(|it| !it.is_open_subscription())
    }

    /// How many answers the app waits for. A subscription that it knows to be open lasts until somebody ends
    /// it: it is in flight, and nothing is owed to it.
    pub fn owed(&self) -> usize {
        let awaited = self.in_flight.awaited();
        awaited.filter(|it| !it.is_open_subscription()).count()
    }

    /// Whether nothing is owed to anybody: no request without its answer, no line that waits for the
    /// upstream or the app. After [`app_eof`](Self::app_eof), the session is over.
    pub fn is_idle(&self) -> bool {
        // What waits while an upstream is greeted again is the greeting.
        let upstream_has_all = self.to_upstream.is_empty() || matches!(self.phase, Phase::Greeting);
        self.in_flight.awaited().next().is_none()
            && self.queue.is_empty()
            && upstream_has_all
            && self.to_app.is_empty()
    }

    /// Whether this is a good moment to put another upstream in the place of this one: nobody waits for anything
    /// but news of a subscription, which is opened again.
    pub fn is_quiet(&self) -> bool {
        !self.began_a_task
            && self.in_flight.is_quiet()
            && !self.reverse.any_is_open()
            && self.to_upstream.is_empty()
            && !self.handshake_is_under_way()
    }

    /// Whether no line waits for an upstream. After [`app_eof`](Self::app_eof), a server of its own
    /// may have its end of input now.
    pub fn all_is_sent(&self) -> bool {
        self.queue.is_empty() && self.to_upstream.is_empty() && !self.handshake_is_under_way()
    }

    /// Whether [`app_eof`](Self::app_eof) was called.
    pub fn app_is_done(&self) -> bool {
        self.app_is_done
    }

    /// Whether the server was seen to speak the protocol without a handshake; `None` if nobody tried.
    pub fn is_modern(&self) -> Option<bool> {
        self.era.is_modern()
    }

    /// Whether there is an upstream, be it only greeted yet.
    pub fn is_attached(&self) -> bool {
        match self.phase {
            Phase::Greeting | Phase::Open => true,
            Phase::Detached | Phase::GivenUp(_) => false,
        }
    }

    /// Whether a message of the app's, unless the session has something to say about it, would be forwarded at once: then
    /// the beginning of a long one may be sent before its end is seen.
    pub fn forwards(&self) -> bool {
        self.way_is_clear()
    }

    /// `initialize` waits for an upstream, or `initialized` for the answer to it.
    fn handshake_is_under_way(&self) -> bool {
        match (&self.phase, &self.handshake) {
            (Phase::Greeting, _) => true,
            (Phase::Detached, Some(handshake)) => !handshake.is_answered(),
            _ => false,
        }
    }

    /// Nothing is ahead of a line for the upstream: it may pass at once.
    fn way_is_clear(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.queue.is_empty() && self.to_upstream.is_empty()
    }
}

impl Default for Session {
    fn default() -> Session {
        Session::new()
    }
}
