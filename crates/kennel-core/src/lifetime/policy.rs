//! The time limits of a lifetime, and its owner.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a shared server outlives its last client.
pub const SHARED_LINGER: Duration = Duration::from_secs(60);

/// How long a dedicated server outlives its session: not at all.
pub const DEDICATED_LINGER: Duration = Duration::ZERO;

/// How long the owner must be gone, without clients, before the server ends.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long clients that cannot be watched may be silent before they count as gone.
pub const MAX_IDLE: Duration = Duration::from_secs(30 * 60);

/// The time limits of a [`Lifetime`](super::Lifetime).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// How long it outlives the last client. `None`: it does not end for lack of clients, for servers that do not count
    /// their sessions.
    pub linger: Option<Duration>,

    /// How long the owner must be gone, without clients, before it ends. Any client cancels this.
    pub grace: Duration,

    /// How long its clients may be silent while none of them is [`Liveness::Watchable`]. `None`: for ever.
    pub max_idle: Option<Duration>,
}

impl Policy {
    /// The limits of a shared server.
    pub const SHARED: Policy = Policy {
        linger: Some(SHARED_LINGER),
        grace: GRACE,
        max_idle: Some(MAX_IDLE),
    };

    /// The limits of a dedicated server.
    pub const DEDICATED: Policy = Policy {
        linger: Some(DEDICATED_LINGER),
        ..Policy::SHARED
    };
}

/// A client, as long as it is attached. The caller assigns the numbers and does not reuse them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// Whether a client's process can be watched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Liveness {
    /// Its process cannot be watched: only its traffic shows that it lives.
    #[serde(rename = "Unseen")]
    Unwatchable,

    /// Its process can be watched: it is certainly alive until reported gone, however silent (lesson 25).
    #[serde(rename = "Seen")]
    Watchable,
}

/// Whether a lifetime depends on a process outside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// No owner: grace never starts, and a report of its end is ignored.
    None,

    /// An owner whose exit is reported.
    Watched,
}
