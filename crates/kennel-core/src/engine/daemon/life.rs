//! When the daemon ends: no client came back, its owner is gone, a person stopped it, or its runtime directory is gone.

use std::time::Duration;

use super::{Action, Daemon, ExitAttempt, Report};
use crate::hello::Control;
use crate::lifetime::{ClientId, Lifetime, Liveness, Owner, Policy, Reason};
use crate::time::Moment;

/// Delay before another attempt to lock a file that another process has locked: no event reports its release.
const LOCK_RETRY: Duration = Duration::from_millis(100);
/// How long a client may take to read its last line.
const LAST_LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// The daemon's lifetime. Unlike a [`Lifetime`], it does not end before the daemon exits: a client that arrives earlier
/// cancels the end, unless a person asked for it.
#[derive(Debug)]
pub(super) struct Life {
    lifetime: Lifetime,
    pub(super) policy: Policy,
    owner: Owner,
    owner_gone: bool,
    stop_requested: bool,
}

/// The progress of the daemon's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shutdown {
    None,
    /// All clients are disconnected and all servers stopped. `try_at`: when to try to exit again.
    Closing {
        try_at: Option<Moment>,
    },
    /// The driver tries to exit.
    Trying,
    /// A person stopped the daemon: clients may read their last line until then.
    Notifying {
        until: Moment,
    },
    /// A person stopped the daemon, and its last servers are ending.
    Stopping,
    Left,
}

impl Life {
    pub(super) fn new(policy: Policy, owner: Owner, now: Moment) -> Life {
        Life {
            lifetime: Lifetime::new(policy, owner, now),
            policy,
            owner,
            owner_gone: false,
            stop_requested: false,
        }
    }

    fn handle_arrival(&mut self, client: ClientId, sight: Liveness, now: Moment) {
        if self.lifetime.verdict().is_some() && !self.stop_requested {
            self.lifetime = Lifetime::new(self.policy, self.owner, now);
            if self.owner_gone {
                self.lifetime.handle_owner_gone(now);
            }
        }
        self.lifetime.handle_client_attached(client, sight, now);
    }

    pub(super) fn linger(&self) -> Option<Duration> {
        self.policy.linger
    }

    fn verdict(&mut self, now: Moment) -> Option<Reason> {
        self.lifetime.advance(now);
        match self.stop_requested {
            true => Some(Reason::StopRequested),
            false => self.lifetime.verdict().map(|verdict| verdict.reason),
        }
    }
}

impl Daemon {
    /// Adds a client and returns its id. It counts from its connection on.
    pub fn handle_client_arrived(&mut self, sight: Liveness, now: Moment) -> ClientId {
        let client = ClientId(self.next_client);
        self.next_client += 1;
        self.add_client(client);
        self.life.handle_arrival(client, sight, now);
        client
    }

    pub(super) fn restored_client_arrived(
        &mut self,
        client: ClientId,
        sight: Liveness,
        now: Moment,
    ) {
        self.life.handle_arrival(client, sight, now);
    }

    /// Records that the client's process can be watched from now on.
    pub fn handle_client_watchable(&mut self, client: ClientId, now: Moment) {
        let life = &mut self.life.lifetime;
        life.handle_client_attached(client, Liveness::Watchable, now);
    }

    /// Handles bytes of a client.
    pub fn handle_client_bytes(&mut self, client: ClientId, now: Moment) {
        self.life.lifetime.handle_traffic(client, now);
    }

    pub(super) fn client_left(&mut self, client: ClientId, now: Moment) {
        self.life.lifetime.handle_client_gone(client, now);
    }

    /// Handles the exit of the owner's process.
    pub fn handle_owner_gone(&mut self, now: Moment) {
        self.life.owner_gone = true;
        self.life.lifetime.handle_owner_gone(now);
    }

    /// Handles a request to end the daemon. A client that arrives does not cancel it.
    pub fn handle_stop(&mut self, now: Moment) {
        self.life.stop_requested = true;
        self.life.lifetime.handle_stop(now);
    }

    /// Handles the loss of the runtime directory: the path of `daemon.lock` does not lead to this daemon's lock any
    /// more. Another daemon may be elected, and nothing at that path belongs to this one. It serves its present
    /// clients. Returns `false` if this was known.
    pub fn handle_runtime_dir_lost(&mut self) -> bool {
        if std::mem::replace(&mut self.moved, true) {
            return false;
        }
        self.closed = true;
        self.close_empty_slots();
        self.send_control_to_all(&Control::Moved);
        true
    }

    /// Whether its runtime directory is gone.
    pub fn has_moved(&self) -> bool {
        self.moved
    }

    /// Whether no client is admitted any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a newer build could take over now: not while the daemon ends, or without its runtime directory.
    pub fn may_hand_over(&self) -> bool {
        let ends = self.life.stop_requested || self.life.lifetime.verdict().is_some();
        !self.closed && !ends
    }

    /// The state of the daemon's lifetime, for people.
    pub fn life_state(&self) -> String {
        self.life.lifetime.state().to_string()
    }

    /// Whether it has neither clients nor servers.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.slots.is_empty()
    }

    /// Does what is due for the daemon's end. Call it after any other event.
    pub fn advance_life(&mut self, now: Moment) {
        self.now = now;
        if self.shutdown == Shutdown::Left {
            return;
        }
        let verdict = self.life.verdict(now);
        if self.moved && self.is_empty() {
            return self.leave();
        }
        match verdict {
            None if self.shutdown == Shutdown::None => {}
            None => {
                self.shutdown = Shutdown::None;
                self.actions.push_back(Action::DisarmWatchdog);
            }
            Some(Reason::StopRequested) => self.advance_stop(now),
            Some(reason) => self.advance_end(reason, now),
        }
    }

    fn advance_end(&mut self, reason: Reason, now: Moment) {
        if self.shutdown == Shutdown::None {
            self.report(Report::Ending(reason));
            self.actions.push_back(Action::ArmWatchdog);
            self.disconnect_all();
            self.close_all();
            self.shutdown = Shutdown::Closing { try_at: None };
        }
        if let Shutdown::Closing { try_at } = self.shutdown
            && self.is_empty()
            && try_at.is_none_or(|at| now >= at)
        {
            self.shutdown = Shutdown::Trying;
            self.actions.push_back(Action::TryToExit);
        }
    }

    fn advance_stop(&mut self, now: Moment) {
        match self.shutdown {
            Shutdown::None | Shutdown::Closing { .. } | Shutdown::Trying => {
                self.closed = true;
                self.actions.push_back(Action::ArmWatchdog);
                self.send_control_to_all(&Control::Stopped);
                let all = self.clients.keys().copied();
                let all: Vec<ClientId> = all.collect();
                for client in all {
                    self.actions.push_back(Action::Finish { client });
                }
                let until = now + LAST_LINE_TIMEOUT;
                self.shutdown = Shutdown::Notifying { until };
                self.advance_stop(now);
            }
            Shutdown::Notifying { until } if self.clients.is_empty() || now >= until => {
                self.disconnect_all();
                self.close_all();
                self.shutdown = Shutdown::Stopping;
                self.advance_stop(now);
            }
            Shutdown::Stopping if self.is_empty() => self.leave(),
            Shutdown::Notifying { .. } | Shutdown::Stopping | Shutdown::Left => {}
        }
    }

    /// Handles the result of [`Action::TryToExit`].
    pub fn handle_exit_attempt(&mut self, tried: ExitAttempt, now: Moment) {
        self.shutdown = match tried {
            ExitAttempt::Exited => {
                self.closed = true;
                Shutdown::Left
            }
            ExitAttempt::ClientsArrived => Shutdown::Closing { try_at: None },
            ExitAttempt::LockHeld => {
                // Another process holds the lock: the daemon is not stuck.
                self.actions.push_back(Action::ArmWatchdog);
                let try_at = Some(now + LOCK_RETRY);
                Shutdown::Closing { try_at }
            }
        };
    }

    fn leave(&mut self) {
        self.closed = true;
        self.shutdown = Shutdown::Left;
        self.actions.push_back(Action::Exit);
    }

    /// When to call [`advance_life`](Self::advance_life).
    pub fn life_timeout(&self) -> Option<Moment> {
        let is_empty = self.is_empty();
        match self.shutdown {
            Shutdown::Left | Shutdown::Trying => None,
            _ if self.moved && is_empty => Some(self.now),
            Shutdown::None => self.life.lifetime.next_timeout(),
            Shutdown::Closing { try_at } => is_empty.then(|| try_at.unwrap_or(self.now)),
            Shutdown::Notifying { .. } if self.clients.is_empty() => Some(self.now),
            Shutdown::Notifying { until } => Some(until),
            Shutdown::Stopping => is_empty.then_some(self.now),
        }
    }

    fn disconnect_all(&mut self) {
        let all = self.clients.keys().copied();
        let all: Vec<ClientId> = all.collect();
        for client in all {
            self.actions.push_back(Action::Disconnect { client });
        }
    }

    fn send_control_to_all(&mut self, control: &Control) {
        let all: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in all {
            self.send_control(client, control.clone());
        }
    }
}
