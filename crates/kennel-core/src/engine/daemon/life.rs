//! When the daemon ends, and how: no client came back, its owner is gone, somebody asked, or its runtime directory is gone.

use std::time::Duration;

use super::{Action, Daemon, LeaveTried, Report};
use crate::hello::Control;
use crate::lifetime::{ClientId, Lifetime, Owner, Policy, Reason, Sight};
use crate::time::Moment;

/// When to try again to lock a file that another process has locked: no event tells when it is free.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long a client has to take its last line.
const LAST_LINE: Duration = Duration::from_secs(1);

/// The daemon's lifetime. Unlike a [`Lifetime`], it is not over until the daemon is gone: a client that arrives before
/// that cancels the end, unless somebody asked for it.
#[derive(Debug)]
pub(super) struct Life {
    lifetime: Lifetime,
    policy: Policy,
    owner: Owner,
    owner_gone: bool,
    stop_asked: bool,
}

/// How far the daemon's end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    /// All clients are disconnected and all servers stopped; the last attempt to leave failed, and this is the next.
    Closing {
        try_at: Option<Moment>,
    },
    /// The driver tries to leave.
    Trying,
    /// Somebody asked: clients have until this moment to take their last line.
    Telling {
        until: Moment,
    },
    /// Somebody asked, and what is left is ending.
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
            stop_asked: false,
        }
    }

    fn arrived(&mut self, client: ClientId, sight: Sight, now: Moment) {
        if self.lifetime.verdict().is_some() && !self.stop_asked {
            self.lifetime = Lifetime::new(self.policy, self.owner, now);
            if self.owner_gone {
                self.lifetime.owner_gone(now);
            }
        }
        self.lifetime.client_attached(client, sight, now);
    }

    pub(super) fn linger(&self) -> Option<Duration> {
        self.policy.linger
    }

    fn verdict(&mut self, now: Moment) -> Option<Reason> {
        self.lifetime.tick(now);
        match self.stop_asked {
            true => Some(Reason::StopAsked),
            false => self.lifetime.verdict().map(|verdict| verdict.reason),
        }
    }
}

impl Daemon {
    /// The next client's number. It counts from its connection on.
    pub fn client_arrived(&mut self, sight: Sight, now: Moment) -> ClientId {
        let client = ClientId(self.next_client);
        self.next_client += 1;
        self.add_client(client);
        self.life.arrived(client, sight, now);
        client
    }

    pub(super) fn restored_client_arrived(&mut self, client: ClientId, sight: Sight, now: Moment) {
        self.life.arrived(client, sight, now);
    }

    /// The client's process can be watched from now on.
    pub fn client_is_watched(&mut self, client: ClientId, now: Moment) {
        let life = &mut self.life.lifetime;
        life.client_attached(client, Sight::Seen, now);
    }

    /// Bytes came from a client.
    pub fn client_spoke(&mut self, client: ClientId, now: Moment) {
        self.life.lifetime.traffic(client, now);
    }

    pub(super) fn client_left(&mut self, client: ClientId, now: Moment) {
        self.life.lifetime.client_gone(client, now);
    }

    /// The owner's process is gone.
    pub fn owner_gone(&mut self, now: Moment) {
        self.life.owner_gone = true;
        self.life.lifetime.owner_gone(now);
    }

    /// Somebody asks for the end. No arrival cancels that.
    pub fn stop_asked(&mut self, now: Moment) {
        self.life.stop_asked = true;
        self.life.lifetime.stop_asked(now);
    }

    /// The path of `daemon.lock` does not lead to this daemon's lock any more: another daemon may be elected, and nothing
    /// at that path is this one's. It serves the clients that it has. `true` if that is news.
    pub fn runtime_dir_lost(&mut self) -> bool {
        if std::mem::replace(&mut self.moved, true) {
            return false;
        }
        self.closed = true;
        self.close_deserted();
        self.tell_all(&Control::Moved);
        true
    }

    /// Its runtime directory is gone.
    pub fn has_moved(&self) -> bool {
        self.moved
    }

    /// No further client is let in.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether another program could take over now: not one on its way out, or without its runtime directory.
    pub fn may_hand_over(&self) -> bool {
        let ends = self.life.stop_asked || self.life.lifetime.verdict().is_some();
        !self.closed && !ends
    }

    /// Where the daemon's life stands, in words.
    pub fn life_state(&self) -> String {
        self.life.lifetime.state().to_string()
    }

    /// The durations that the daemon lives by.
    pub fn lifetime_policy(&self) -> Policy {
        self.life.policy
    }

    /// Whether it has neither clients nor servers.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.slots.is_empty()
    }

    /// Does what is due for the daemon's own end. Call it after any other event.
    pub fn advance_life(&mut self, now: Moment) {
        self.now = now;
        if self.ending == Ending::Left {
            return;
        }
        let verdict = self.life.verdict(now);
        if self.moved && self.is_empty() {
            return self.leave();
        }
        match verdict {
            None if self.ending == Ending::No => {}
            None => {
                self.ending = Ending::No;
                self.actions.push_back(Action::DisarmWatchdog);
            }
            Some(Reason::StopAsked) => self.advance_stop(now),
            Some(reason) => self.advance_end(reason, now),
        }
    }

    fn advance_end(&mut self, reason: Reason, now: Moment) {
        if self.ending == Ending::No {
            self.report(Report::Ending(reason));
            self.actions.push_back(Action::ArmWatchdog);
            self.disconnect_all();
            self.close_all();
            self.ending = Ending::Closing { try_at: None };
        }
        if let Ending::Closing { try_at } = self.ending
            && self.is_empty()
            && try_at.is_none_or(|at| now >= at)
        {
            self.ending = Ending::Trying;
            self.actions.push_back(Action::TryToLeave);
        }
    }

    fn advance_stop(&mut self, now: Moment) {
        match self.ending {
            Ending::No | Ending::Closing { .. } | Ending::Trying => {
                self.closed = true;
                self.actions.push_back(Action::ArmWatchdog);
                self.tell_all(&Control::Stopped);
                let all = self.clients.keys().copied();
                let all: Vec<ClientId> = all.collect();
                for client in all {
                    self.actions.push_back(Action::Finish { client });
                }
                let until = now + LAST_LINE;
                self.ending = Ending::Telling { until };
                self.advance_stop(now);
            }
            Ending::Telling { until } if self.clients.is_empty() || now >= until => {
                self.disconnect_all();
                self.close_all();
                self.ending = Ending::Stopping;
                self.advance_stop(now);
            }
            Ending::Stopping if self.is_empty() => self.leave(),
            Ending::Telling { .. } | Ending::Stopping | Ending::Left => {}
        }
    }

    /// Answers [`Action::TryToLeave`].
    pub fn leave_tried(&mut self, tried: LeaveTried, now: Moment) {
        self.ending = match tried {
            LeaveTried::Left => {
                self.closed = true;
                Ending::Left
            }
            LeaveTried::Arrivals => Ending::Closing { try_at: None },
            LeaveTried::Contended => {
                // Held up by others: not stuck.
                self.actions.push_back(Action::ArmWatchdog);
                let try_at = Some(now + TRY_AGAIN);
                Ending::Closing { try_at }
            }
        };
    }

    fn leave(&mut self) {
        self.closed = true;
        self.ending = Ending::Left;
        self.actions.push_back(Action::Leave);
    }

    /// When to call [`advance_life`](Self::advance_life), if nothing happens before.
    pub fn life_timeout(&self) -> Option<Moment> {
        let is_empty = self.is_empty();
        match self.ending {
            Ending::Left | Ending::Trying => None,
            _ if self.moved && is_empty => Some(self.now),
            Ending::No => self.life.lifetime.deadline(),
            Ending::Closing { try_at } => is_empty.then(|| try_at.unwrap_or(self.now)),
            Ending::Telling { .. } if self.clients.is_empty() => Some(self.now),
            Ending::Telling { until } => Some(until),
            Ending::Stopping => is_empty.then_some(self.now),
        }
    }

    fn disconnect_all(&mut self) {
        let all = self.clients.keys().copied();
        let all: Vec<ClientId> = all.collect();
        for client in all {
            self.actions.push_back(Action::Disconnect { client });
        }
    }

    fn tell_all(&mut self, control: &Control) {
        let all: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in all {
            self.tell(client, control.clone());
        }
    }
}
