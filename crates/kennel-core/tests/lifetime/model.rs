//! The same decisions a second time, without states: from everything that ever happened, by the
//! design's words. Slow and plain, to be compared with.

use std::collections::BTreeMap;

use kennel_core::lifetime::{ClientId, Liveness, Owner, Policy, Reason, Verdict};
use kennel_core::time::Moment;

use crate::world::Happening;

/// What was so after each thing that happened.
#[derive(Clone, Debug)]
struct Snapshot {
    at: Moment,
    attached: BTreeMap<ClientId, Liveness>,
    owner_gone: bool,
    server_down: bool,
    /// A client came, left or was heard just then.
    last_activity: bool,
}

#[derive(Debug)]
pub(crate) struct Model {
    policy: Policy,
    owner: Owner,
    past: Vec<Snapshot>,
    verdict: Option<Verdict>,
}

impl Model {
    pub(crate) fn new(policy: Policy, owner: Owner, at: Moment) -> Model {
        let beginning = Snapshot {
            at,
            attached: BTreeMap::new(),
            owner_gone: false,
            server_down: false,
            last_activity: false,
        };
        Model {
            policy,
            owner,
            past: vec![beginning],
            verdict: None,
        }
    }

    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    pub(crate) fn clients(&self) -> usize {
        self.present().attached.len()
    }

    /// When time alone brings the end.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.verdict {
            Some(_) => None,
            None => self.endings().into_iter().map(|(end, _)| end).min(),
        }
    }

    pub(crate) fn hand_in(&mut self, happening: Happening, at: Moment) {
        let mut next = self.present().clone();
        next.at = at;
        next.last_activity = false;
        match happening {
            Happening::Attached(id, sight) => {
                let seen_before = next.attached.get(&id) == Some(&Liveness::Watchable);
                let sight = if seen_before {
                    Liveness::Watchable
                } else {
                    sight
                };
                next.attached.insert(id, sight);
                next.last_activity = true;
            }
            Happening::Gone(id) => next.last_activity = next.attached.remove(&id).is_some(),
            Happening::Traffic(id) => next.last_activity = next.attached.contains_key(&id),
            Happening::OwnerGone => next.owner_gone = self.owner == Owner::Watched,
            Happening::ServerExited => next.server_down = true,
            Happening::ServerStarted => next.server_down = false,
            Happening::StopRequested | Happening::Tick => {}
        }
        self.past.push(next);

        let reason = match happening {
            Happening::StopRequested => Some(Reason::StopRequested),
            _ if self.present().server_down && self.clients() == 0 => Some(Reason::ServerExited),
            Happening::Tick => self.reason_by_time(),
            _ => None,
        };
        if self.verdict.is_none() {
            self.verdict = reason.map(|reason| Verdict { reason, at });
        }
    }

    fn present(&self) -> &Snapshot {
        self.past.last().expect("there always was a beginning")
    }

    fn reason_by_time(&self) -> Option<Reason> {
        let now = self.present().at;
        let (end, reason) = self.endings().into_iter().min_by_key(|&(end, _)| end)?;
        (end <= now).then_some(reason)
    }

    /// When each condition that holds now will have held for long enough. The owner comes first, so
    /// that of two at the same moment it is named.
    fn endings(&self) -> Vec<(Moment, Reason)> {
        let now = self.present().at;
        let alone = self.held_since(|then| then.attached.is_empty() && then.owner_gone);
        let empty = self.held_since(|then| then.attached.is_empty());
        let unseen = |then: &Snapshot| {
            !then
                .attached
                .values()
                .any(|&sight| sight == Liveness::Watchable)
        };
        let silent = match self.clients() {
            0 => None,
            _ => self
                .held_since(unseen)
                .max(
                    self.past
                        .iter()
                        .rfind(|then| then.last_activity)
                        .map(|then| then.at),
                )
                .filter(|_| unseen(self.present())),
        };
        let grace = alone.map(|since| {
            let without_clients_for = now - since;
            (
                since + self.policy.grace,
                Reason::OwnerGone {
                    without_clients_for,
                },
            )
        });
        let linger = empty.zip(self.policy.linger).map(|(since, linger)| {
            let without_clients_for = now - since;
            (
                since + linger,
                Reason::LingerOver {
                    without_clients_for,
                },
            )
        });
        let silence = silent.zip(self.policy.max_idle).map(|(since, max_idle)| {
            let silent_for = now - since;
            (since + max_idle, Reason::Silent { silent_for })
        });
        [grace, linger, silence].into_iter().flatten().collect()
    }

    /// Since when `condition` holds without a break, if it holds now.
    fn held_since(&self, condition: impl Fn(&Snapshot) -> bool) -> Option<Moment> {
        self.past
            .iter()
            .rev()
            .take_while(|then| condition(then))
            .last()
            .map(|then| then.at)
    }
}
