//! How long the server is needed: its owner, and once that is gone, whoever is connected.

use std::time::{Duration, Instant};

use kennel_core::lifetime::{self, ClientId, Lifetime, Policy, Sight};
use kennel_core::time::Moment;
use kennel_guard::Owner;
use kennel_sys::process::ProcessRef;

use super::sessions::{SWEEP, Seen};

/// All connections are one client: what counts is whether there is any.
const CONNECTIONS: ClientId = ClientId(1);

/// The owner, and what follows from its end.
pub(super) struct Life {
    pub(super) epoch: Instant,
    pub(super) lifetime: Lifetime,
    pub(super) owner: Option<ProcessRef>,
    /// When connections were looked at last; `None` while there is no reason to.
    pub(super) looked: Option<Instant>,
    pub(super) sweep: Duration,
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
            looked: None,
            sweep: SWEEP,
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
        self.lifetime.owner_gone(self.now());
        self.looked = Some(Instant::now());
    }

    /// When something is due, if nothing happens before.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let sweep = self
            .looked
            .map(|looked| self.sweep.saturating_sub(looked.elapsed()));
        let deadline = self.lifetime.deadline().map(|end| end - self.now());
        sweep.into_iter().chain(deadline).min()
    }

    pub(super) fn saw(&mut self, seen: Seen) {
        let now = self.now();
        match seen {
            Seen::Connected => self.lifetime.client_attached(CONNECTIONS, Sight::Seen, now),
            Seen::Nobody => self.lifetime.client_gone(CONNECTIONS, now),
            Seen::CameAndWent => {
                self.lifetime.client_attached(CONNECTIONS, Sight::Seen, now);
                self.lifetime.client_gone(CONNECTIONS, now);
            }
        }
    }
}
