//! The table: every state, every event, and what follows.
//!
//! It holds no data and no time. What an event means (is this departure the last?) is settled before
//! it comes here, and when a timer ends is asked of [`Lifetime`](super::Lifetime).

use std::fmt;

use super::verdict::Reason;

/// Where a lifetime stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Clients are attached.
    Serving,

    /// Clients are attached, the owner is gone. Nothing follows from that while they stay (lesson 27).
    ServingUnowned,

    /// Clients are attached, the server is not there. Whether it comes back is decided elsewhere.
    Down,

    /// As [`Down`](State::Down), and the owner is gone.
    DownUnowned,

    /// Nobody is attached: linger runs.
    Idle,

    /// Nobody is attached and the owner is gone: grace and linger run, the first to end decides.
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

/// What happened, refined until the state alone decides what follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A client attached that was not attached before.
    Arrival,

    /// A client left while others stay; or one was reported gone that was not attached any more
    /// (its connection ended first, its process after).
    Departure,

    /// The only client left.
    LastDeparture,

    /// A client was heard.
    Traffic,

    /// The owner's process is gone.
    OwnerGone,

    /// The server is gone.
    ServerExited,

    /// A server is there, for the first time or again.
    ServerStarted,

    /// Somebody wants the end.
    StopAsked,

    /// Time went by.
    Tick,
}

/// What follows from an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Nothing.
    Stay,

    /// Another state.
    Go(State),

    /// The verdict.
    End(Reason),

    /// The verdict if one of the state's [`timers`] is over, else nothing.
    EndIfDue,
}

/// What waits for time to pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// Nobody is attached.
    Linger,

    /// Nobody is attached and the owner is gone.
    Grace,

    /// Clients are attached, none provably alive and none heard.
    Silence,
}

/// The timers that run in a state. Of two that end at the same moment the first gives the reason.
pub(super) const fn timers(state: State) -> &'static [Timer] {
    match state {
        State::Serving | State::ServingUnowned => &[Timer::Silence],
        State::Down | State::DownUnowned => &[Timer::Silence],
        State::Idle => &[Timer::Linger],
        State::Abandoned => &[Timer::Grace, Timer::Linger],
        State::Ended => &[],
    }
}

/// What follows from `event` in `state`. No wildcards: a new event does not compile until every state
/// answers it.
#[rustfmt::skip]
pub(super) const fn answer(state: State, event: Event) -> Answer {
    use Answer::{End, EndIfDue, Go, Stay};
    use Event::*;
    use Reason as R;
    use State::*;

    match (state, event) {
        (Serving,        Arrival)       => Stay,
        (Serving,        Departure)     => Stay,
        (Serving,        LastDeparture) => Go(Idle),
        (Serving,        Traffic)       => Stay,
        (Serving,        OwnerGone)     => Go(ServingUnowned),
        (Serving,        ServerExited)  => Go(Down),
        (Serving,        ServerStarted) => Stay,
        (Serving,        StopAsked)     => End(R::StopAsked),
        (Serving,        Tick)          => EndIfDue,

        (ServingUnowned, Arrival)       => Stay,
        (ServingUnowned, Departure)     => Stay,
        (ServingUnowned, LastDeparture) => Go(Abandoned),
        (ServingUnowned, Traffic)       => Stay,
        (ServingUnowned, OwnerGone)     => Stay,
        (ServingUnowned, ServerExited)  => Go(DownUnowned),
        (ServingUnowned, ServerStarted) => Stay,
        (ServingUnowned, StopAsked)     => End(R::StopAsked),
        (ServingUnowned, Tick)          => EndIfDue,

        (Down,           Arrival)       => Stay,
        (Down,           Departure)     => Stay,
        (Down,           LastDeparture) => End(R::ServerExited),
        (Down,           Traffic)       => Stay,
        (Down,           OwnerGone)     => Go(DownUnowned),
        (Down,           ServerExited)  => Stay,
        (Down,           ServerStarted) => Go(Serving),
        (Down,           StopAsked)     => End(R::StopAsked),
        (Down,           Tick)          => EndIfDue,

        (DownUnowned,    Arrival)       => Stay,
        (DownUnowned,    Departure)     => Stay,
        (DownUnowned,    LastDeparture) => End(R::ServerExited),
        (DownUnowned,    Traffic)       => Stay,
        (DownUnowned,    OwnerGone)     => Stay,
        (DownUnowned,    ServerExited)  => Stay,
        (DownUnowned,    ServerStarted) => Go(ServingUnowned),
        (DownUnowned,    StopAsked)     => End(R::StopAsked),
        (DownUnowned,    Tick)          => EndIfDue,

        (Idle,           Arrival)       => Go(Serving),
        (Idle,           Departure)     => Stay,
        (Idle,           LastDeparture) => Stay, // cannot be: nobody is there to leave
        (Idle,           Traffic)       => Stay,
        (Idle,           OwnerGone)     => Go(Abandoned),
        (Idle,           ServerExited)  => End(R::ServerExited),
        (Idle,           ServerStarted) => Stay,
        (Idle,           StopAsked)     => End(R::StopAsked),
        (Idle,           Tick)          => EndIfDue,

        (Abandoned,      Arrival)       => Go(ServingUnowned),
        (Abandoned,      Departure)     => Stay,
        (Abandoned,      LastDeparture) => Stay, // cannot be: nobody is there to leave
        (Abandoned,      Traffic)       => Stay,
        (Abandoned,      OwnerGone)     => Stay,
        (Abandoned,      ServerExited)  => End(R::ServerExited),
        (Abandoned,      ServerStarted) => Stay,
        (Abandoned,      StopAsked)     => End(R::StopAsked),
        (Abandoned,      Tick)          => EndIfDue,

        (Ended,          Arrival)       => Stay,
        (Ended,          Departure)     => Stay,
        (Ended,          LastDeparture) => Stay,
        (Ended,          Traffic)       => Stay,
        (Ended,          OwnerGone)     => Stay,
        (Ended,          ServerExited)  => Stay,
        (Ended,          ServerStarted) => Stay,
        (Ended,          StopAsked)     => Stay,
        (Ended,          Tick)          => Stay,
    }
}
