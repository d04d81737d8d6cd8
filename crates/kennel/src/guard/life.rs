//! How long the server is needed: while its owner lives, and then while a client is connected.

use std::time::{Duration, Instant};

use kennel_core::lifetime::{self, ClientId, Lifetime, Liveness, Policy};
use kennel_core::time::Moment;
use kennel_guard::Owner;
use kennel_sys::process::ProcessRef;

use super::sessions::{COUNT_INTERVAL, Connections};

/// All connections count as one client: only whether there are any matters.
const CONNECTIONS: ClientId = ClientId(1);

/// The owner, and the effect of its exit.
pub(super) struct Life {
    pub(super) epoch: Instant,
    pub(super) lifetime: Lifetime,
    pub(super) owner: Option<ProcessRef>,
    /// When connections were last counted; `None` while the owner lives.
    pub(super) counted_at: Option<Instant>,
    pub(super) interval: Duration,
}

impl Life {
    pub(super) fn new(owner: Option<Owner>, grace: Duration) -> Life {
        let policy = Policy {
            linger: None,
            grace,
            max_idle: None,
        };
        let watched = match owner {
            Some(_) => lifetime::Owner::Watched,
            None => lifetime::Owner::None,
        };
        let mut life = Life {
            epoch: Instant::now(),
            lifetime: Lifetime::new(policy, watched, Moment::START),
            owner: None,
            counted_at: None,
            interval: COUNT_INTERVAL,
        };
        match owner {
            Some(Owner::Alive(process)) => life.owner = Some(process),
            Some(Owner::Gone) => life.owner_is_gone(),
            None => {}
        }
        life
    }

    pub(super) fn now(&self) -> Moment {
        Moment::START + self.epoch.elapsed()
    }

    pub(super) fn owner_is_gone(&mut self) {
        self.owner = None;
        self.lifetime.handle_owner_gone(self.now());
        self.counted_at = Some(Instant::now());
    }

    /// The time until the next deadline, if no event comes before.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let interval = self
            .counted_at
            .map(|counted_at| self.interval.saturating_sub(counted_at.elapsed()));
        let deadline = self.lifetime.next_timeout().map(|end| end - self.now());
        interval.into_iter().chain(deadline).min()
    }

    pub(super) fn record_connections(&mut self, seen: Connections) {
        let now = self.now();
        match seen {
            Connections::Connected => {
                self.lifetime
                    .handle_client_attached(CONNECTIONS, Liveness::Watchable, now)
            }
            Connections::NoClient => self.lifetime.handle_client_gone(CONNECTIONS, now),
            Connections::CameAndWent => {
                self.lifetime
                    .handle_client_attached(CONNECTIONS, Liveness::Watchable, now);
                self.lifetime.handle_client_gone(CONNECTIONS, now);
            }
        }
    }
}
