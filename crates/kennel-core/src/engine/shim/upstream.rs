//! What a session talks to.

use crate::election::Watch;
use crate::time::Moment;

/// The upstream of a session: a server of its own, a daemon, or why there is none.
#[derive(Debug)]
pub(super) enum Upstream {
    /// None before this moment: the first start, or the backoff after a loss.
    Waiting { until: Moment },
    /// None before the app's first request: it decides whether this session may share.
    Unintroduced,
    /// An election is under way.
    Electing,
    /// A server of its own.
    Dedicated,
    /// A server of its own that is ending; what follows when nothing is left of it.
    Draining(Next),
    /// A connection to a daemon.
    Attached(Attached),
    /// None before the next request: the server hibernates, or a person stopped it.
    Hibernating,
    /// None: it ended too often, or cannot be started. A request may try again.
    GaveUp,
}

/// What follows when a process tree is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another start, at this moment.
    Start {
        at: Moment,
    },
    /// The connection to a daemon that was made meanwhile.
    Attach,
    Hibernate,
    GiveUp,
}

/// What is known of the daemon behind a connection.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// It does not start the server again before a request.
    pub(super) gave_up: bool,
    /// Its runtime directory is gone: it serves the clients that it has.
    pub(super) moved: bool,
    pub(super) silence: Silence,
}

/// How long a daemon has owed an answer.
#[derive(Debug, Default)]
pub(super) enum Silence {
    /// It owes none, or spoke since it was looked at.
    #[default]
    None,
    /// It owes an answer, and has said nothing since this moment.
    Since(Moment),
    /// It was asked whether it is there, and is checked at this moment.
    Asked { watch: Watch, check_at: Moment },
    /// An election finds out whether it is stuck.
    Suspected,
}

impl Upstream {
    /// Whether there is none, and none comes without a request.
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

    /// Whether a request wakes it.
    pub(super) fn hibernates(&self) -> bool {
        matches!(
            self,
            Upstream::Hibernating | Upstream::Draining(Next::Hibernate)
        )
    }
}
