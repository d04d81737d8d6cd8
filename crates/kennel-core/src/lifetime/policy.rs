//! How patient a lifetime is, and whom it asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a shared server outlives its last client.
pub const SHARED_LINGER: Duration = Duration::from_secs(60);

/// How long a solo server outlives its session: not at all.
pub const SOLO_LINGER: Duration = Duration::ZERO;

/// How long the owner must be gone, with nobody attached, before that counts.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long clients that cannot be seen may be silent before they count as phantoms.
pub const MAX_IDLE: Duration = Duration::from_secs(30 * 60);

/// The three patiences of a [`Lifetime`](super::Lifetime).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// How long to outlive the last client; `None`: an empty house alone is never a reason to end,
    /// for authors whose server does not count its sessions.
    pub linger: Option<Duration>,

    /// How long *owner gone and nobody attached* must hold. Any client cancels it.
    pub grace: Duration,

    /// The backstop: how long clients none of which is [`Sight::Seen`] may be silent; `None`: for ever.
    pub max_idle: Option<Duration>,
}

impl Policy {
    /// The policy of a shared server.
    pub const SHARED: Policy = Policy {
        linger: Some(SHARED_LINGER),
        grace: GRACE,
        max_idle: Some(MAX_IDLE),
    };

    /// The policy of a server with one session.
    pub const SOLO: Policy = Policy {
        linger: Some(SOLO_LINGER),
        ..Policy::SHARED
    };
}

/// One client, for as long as it is attached. The caller numbers them and uses no number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// Whether a client's process can be watched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Sight {
    /// It cannot: only its traffic shows that it lives.
    Unseen,

    /// It can: it is provably alive until it is reported gone, however quiet it is (lesson 25).
    Seen,
}

/// Whether a process outside bounds this lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// None was given: the grace is never armed, and a report of its end is ignored.
    None,

    /// One was given, and its exit will be reported.
    Watched,
}
