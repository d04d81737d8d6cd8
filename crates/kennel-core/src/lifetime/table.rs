//! The table of all states and events.
//!
//! It contains no data and no time. What an event means (is this the last client?) is decided before, and
//! [`Lifetime`](super::Lifetime) knows when a timer ends.

use std::fmt;

use super::verdict::Reason;

/// The state of a lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Clients are attached.
    Serving,

    /// Clients are attached, the owner is gone. That ends nothing while they stay (lesson 27).
    ServingUnowned,

    /// Clients are attached, the server is not running. Whether it is started again is decided elsewhere.
    Down,

    /// Like [`Down`](State::Down), and the owner is gone.
    DownUnowned,

    /// No client is attached: linger runs.
    Idle,

    /// No client is attached and the owner is gone: grace and linger run, and the first to end decides.
    Abandoned,

    /// The verdict is given.
    Ended,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Serving => "serving",
            State::ServingUnowned => "serving, owner gone",
            State::Down => "server down",
            State::DownUnowned => "server down, owner gone",
            State::Idle => "idle",
            State::Abandoned => "idle, owner gone",
            State::Ended => "ended",
        })
    }
}

/// An event, refined until the state alone decides what follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A client attached that was not attached before.
    Arrival,

    /// A client left while others stay; or a client was reported gone again (its connection ended first, its process
    /// later).
    Departure,

    /// The only client left.
    LastDeparture,

    /// A client sent something.
    Traffic,

    /// The owner exited.
    OwnerGone,

    /// The server exited.
    ServerExited,

    /// A server was started, for the first time or again.
    ServerStarted,

    /// A person stopped the server.
    StopRequested,

    /// Time went by.
    Advance,
}

/// The response to an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Response {
    /// Nothing.
    Stay,

    /// Another state.
    ChangeTo(State),

    /// The verdict.
    End(Reason),

    /// The verdict if one of the state's [`timers`] is over, else nothing.
    EndIfDue,
}

/// A timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// No client is attached.
    Linger,

    /// No client is attached and the owner is gone.
    Grace,

    /// Clients are attached; none is certainly alive and none sent anything.
    Silence,
}

/// The timers that run in a state. If two end at the same time, the first gives the reason.
pub(super) const fn timers(state: State) -> &'static [Timer] {
    match state {
        State::Serving | State::ServingUnowned => &[Timer::Silence],
        State::Down | State::DownUnowned => &[Timer::Silence],
        State::Idle => &[Timer::Linger],
        State::Abandoned => &[Timer::Grace, Timer::Linger],
        State::Ended => &[],
    }
}

/// The response to `event` in `state`. There are no wildcards: a new event does not compile until every state handles
/// it.
#[rustfmt::skip]
pub(super) const fn respond(state: State, event: Event) -> Response {
    use Response::{End, EndIfDue, ChangeTo, Stay};
    use Event::*;
    use Reason as R;
    use State::*;

    match (state, event) {
        (Serving,        Arrival)       => Stay,
        (Serving,        Departure)     => Stay,
        (Serving,        LastDeparture) => ChangeTo(Idle),
        (Serving,        Traffic)       => Stay,
        (Serving,        OwnerGone)     => ChangeTo(ServingUnowned),
        (Serving,        ServerExited)  => ChangeTo(Down),
        (Serving,        ServerStarted) => Stay,
        (Serving,        StopRequested)     => End(R::StopRequested),
        (Serving,        Advance)          => EndIfDue,

        (ServingUnowned, Arrival)       => Stay,
        (ServingUnowned, Departure)     => Stay,
        (ServingUnowned, LastDeparture) => ChangeTo(Abandoned),
        (ServingUnowned, Traffic)       => Stay,
        (ServingUnowned, OwnerGone)     => Stay,
        (ServingUnowned, ServerExited)  => ChangeTo(DownUnowned),
        (ServingUnowned, ServerStarted) => Stay,
        (ServingUnowned, StopRequested)     => End(R::StopRequested),
        (ServingUnowned, Advance)          => EndIfDue,

        (Down,           Arrival)       => Stay,
        (Down,           Departure)     => Stay,
        (Down,           LastDeparture) => End(R::ServerExited),
        (Down,           Traffic)       => Stay,
        (Down,           OwnerGone)     => ChangeTo(DownUnowned),
        (Down,           ServerExited)  => Stay,
        (Down,           ServerStarted) => ChangeTo(Serving),
        (Down,           StopRequested)     => End(R::StopRequested),
        (Down,           Advance)          => EndIfDue,

        (DownUnowned,    Arrival)       => Stay,
        (DownUnowned,    Departure)     => Stay,
        (DownUnowned,    LastDeparture) => End(R::ServerExited),
        (DownUnowned,    Traffic)       => Stay,
        (DownUnowned,    OwnerGone)     => Stay,
        (DownUnowned,    ServerExited)  => Stay,
        (DownUnowned,    ServerStarted) => ChangeTo(ServingUnowned),
        (DownUnowned,    StopRequested)     => End(R::StopRequested),
        (DownUnowned,    Advance)          => EndIfDue,

        (Idle,           Arrival)       => ChangeTo(Serving),
        (Idle,           Departure)     => Stay,
        (Idle,           LastDeparture) => Stay, // cannot be: nobody is there to leave
        (Idle,           Traffic)       => Stay,
        (Idle,           OwnerGone)     => ChangeTo(Abandoned),
        (Idle,           ServerExited)  => End(R::ServerExited),
        (Idle,           ServerStarted) => Stay,
        (Idle,           StopRequested)     => End(R::StopRequested),
        (Idle,           Advance)          => EndIfDue,

        (Abandoned,      Arrival)       => ChangeTo(ServingUnowned),
        (Abandoned,      Departure)     => Stay,
        (Abandoned,      LastDeparture) => Stay, // cannot be: nobody is there to leave
        (Abandoned,      Traffic)       => Stay,
        (Abandoned,      OwnerGone)     => Stay,
        (Abandoned,      ServerExited)  => End(R::ServerExited),
        (Abandoned,      ServerStarted) => Stay,
        (Abandoned,      StopRequested)     => End(R::StopRequested),
        (Abandoned,      Advance)          => EndIfDue,

        (Ended,          Arrival)       => Stay,
        (Ended,          Departure)     => Stay,
        (Ended,          LastDeparture) => Stay,
        (Ended,          Traffic)       => Stay,
        (Ended,          OwnerGone)     => Stay,
        (Ended,          ServerExited)  => Stay,
        (Ended,          ServerStarted) => Stay,
        (Ended,          StopRequested)     => Stay,
        (Ended,          Advance)          => Stay,
    }
}
