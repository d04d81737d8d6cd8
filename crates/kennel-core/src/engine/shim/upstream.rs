//! The upstream of a session.

use crate::election::StuckWatch;
use crate::time::Moment;

/// The upstream of a session: a dedicated server, a daemon, or the reason why there is none.
#[derive(Debug)]
pub(super) enum Upstream {
    /// None before this time: the first start, or the backoff after a loss.
    Waiting { until: Moment },
    /// None before the app's first request, which decides whether this session may share.
    Unintroduced,
    /// An election is in progress.
    Electing,
    /// A dedicated server.
    Dedicated,
    /// A dedicated server that is ending, and what follows when its process tree is empty.
    Draining(Next),
    /// A connection to a daemon.
    Attached(Attached),
    /// None before the next request: the server hibernates, or a person stopped it.
    Hibernating,
    /// None: it exited too often, or cannot be started. A request may try again.
    GaveUp,
}

/// The next state, once the process tree is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another start, at this time.
    Start {
        at: Moment,
    },
    /// The connection to a daemon that was made meanwhile.
    Attach,
    Hibernate,
    GiveUp,
}

/// The state of a connection to a daemon.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// The daemon starts its server again only on request.
    pub(super) gave_up: bool,
    /// The daemon's runtime directory is gone: it serves only its present clients.
    pub(super) moved: bool,
    pub(super) silence: Silence,
}

/// How long a daemon has been silent with a request pending.
#[derive(Debug, Default)]
pub(super) enum Silence {
    /// No request is pending, or the daemon answered since the last check.
    #[default]
    None,
    /// Silent with a request pending since this time.
    Since(Moment),
    /// It was pinged. `check_at`: the time of the next check.
    Asked { watch: StuckWatch, check_at: Moment },
    /// An election examines it.
    Suspected,
}

impl Upstream {
    /// Whether only a request of the app can start an upstream.
    pub(super) fn needs_a_request(&self) -> bool {
        match self {
            Upstream::Unintroduced | Upstream::Hibernating | Upstream::GaveUp => true,
            Upstream::Attached(attached) => attached.gave_up,
            Upstream::Waiting { .. }
            | Upstream::Electing
            | Upstream::Dedicated
            | Upstream::Draining(_) => false,
        }
    }

    /// Whether a request starts it again.
    pub(super) fn hibernates(&self) -> bool {
        matches!(
            self,
            Upstream::Hibernating | Upstream::Draining(Next::Hibernate)
        )
    }
}
