//! A daemon becomes a newer build: its snapshot is restored in another engine.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::engine::daemon::{self as engine, HandoverWait, ServerSlot, SlotId, SlotSnapshot};
use kennel_core::mux::ClientId;
use kennel_core::time::Moment;
use serde_json::{Value, json};

use super::clients::ClientPipes;
use super::slots::{Slot, Unwritten};
use super::{Daemon, Phase};
use crate::coverage::Situation;
use crate::kernel::Kernel;
use crate::lines::{Inbox, Outbox};

/// Maximum time until a daemon that may hand over has become the newer build.
const MAX_HANDOVER_DELAY: Duration = Duration::from_secs(10);

/// A newer build that is available.
pub(super) struct Handover {
    wait: HandoverWait,
    since: Moment,
    /// Whether it starts; else its start fails after the snapshot was taken.
    starts: bool,
}

impl Handover {
    pub(super) fn next_timeout(&self, now: Moment) -> Option<Moment> {
        self.wait.next_timeout(now)
    }
}

type Restored = (engine::Daemon, BTreeMap<SlotId, Slot>, Vec<Value>);

impl Daemon {
    /// Makes a newer build available.
    pub(crate) fn upgrade(&mut self, starts: bool, kernel: &Kernel) {
        if self.phase == Phase::Serving {
            let wait = HandoverWait::new(kernel.now);
            let since = kernel.now;
            self.handover.get_or_insert(Handover {
                wait,
                since,
                starts,
            });
        }
    }

    /// Whether the daemon could have become the newer build for longer than it waits for pending requests.
    pub(crate) fn hand_over_is_late(&self, kernel: &Kernel) -> bool {
        let runs = kernel.runs(self.pid) && self.engine.may_hand_over();
        let is_ending = self.slots.values().any(|slot| !slot.may_be_handed_over());
        let since = self.handover.as_ref().map(|it| it.since);
        let since = since.map(|since| since.max(kernel.changed(self.pid)));
        runs && !is_ending && since.is_some_and(|since| kernel.now > since + MAX_HANDOVER_DELAY)
    }

    pub(super) fn may_hand_over(&self, kernel: &Kernel) -> bool {
        let is_ending = |slot: &Slot| !slot.may_be_handed_over();
        let is_good_moment = self.handover.as_ref().is_some_and(|it| {
            let held: usize = self.engine.slots().map(ServerSlot::held_bytes).sum();
            let is_light = held <= it.wait.max_bytes(super::MAX_LINE, kernel.now);
            is_light && it.wait.is_quiet(&self.engine, kernel.now)
        });
        is_good_moment && self.engine.may_hand_over() && !self.slots.values().any(is_ending)
    }

    /// Replaces the engine by one that is restored from its snapshot.
    pub(super) fn hand_over(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        if !self.may_hand_over(kernel) {
            return false;
        }
        let Some(handover) = self.handover.take() else {
            return false;
        };
        match self.restored(handover.starts, kernel) {
            Ok(None) => {
                kernel.occurred(Situation::HandOverFails);
                kernel.trace(self.pid, || "keeps its build".to_owned());
            }
            Ok(Some((engine, slots, clients))) => {
                self.count_handed_over_state(kernel);
                kernel.trace(self.pid, || "becomes another build".to_owned());
                (self.engine, self.slots) = (engine, slots);
                for (client, snapshot) in self.clients.values_mut().zip(&clients) {
                    client.from = Inbox::of(bytes(&snapshot["half_line"]));
                    client.to = Outbox::of(bytes(&snapshot["unwritten"]));
                    if let Some(pipes) = &mut client.pipes {
                        pipes.reads_pipe = snapshot["listens"] == true;
                        pipes.writes_pipe = snapshot["speaks"] == true;
                    }
                }
                self.owner_reported = false;
                if self.clients.is_empty() {
                    self.no_clients_since = Some(kernel.now);
                }
                self.carry_out(kernel);
            }
            Err(why) => kernel.check(false, || format!("cannot restore the snapshot: {why}")),
        }
        true
    }

    fn count_handed_over_state(&self, kernel: &mut Kernel) {
        kernel.occurred(Situation::HandsOver);
        if !self.engine.is_quiet() {
            kernel.occurred(Situation::HandsOverBusy);
        }
        let half_line = |it: &Inbox| !it.rest().is_empty();
        let servers = || self.slots.values().filter_map(|it| it.server.as_ref());
        if self.clients.values().any(|it| half_line(&it.from))
            || servers().any(|it| half_line(&it.from))
        {
            kernel.occurred(Situation::HandsOverHalfLine);
        }
        if self.clients.values().any(|it| !it.to.is_empty())
            || self.slots.values().any(|it| !it.unwritten.is_empty())
        {
            kernel.occurred(Situation::HandsOverUnwritten);
        }
        let in_use = |it: &ClientPipes| it.reads_pipe && it.writes_pipe;
        if self
            .clients
            .values()
            .any(|it| it.pipes.as_ref().is_some_and(in_use))
        {
            kernel.occurred(Situation::HandsOverPipes);
        }
    }

    /// The engine and driver state that a newer build restores; `None` if it does not start.
    fn restored(&mut self, starts: bool, kernel: &Kernel) -> Result<Option<Restored>, String> {
        let mut new = super::engine(kernel);
        let state = self.engine.snapshot();
        new.restore(state.next_client, state.modern);
        let mut clients = Vec::new();
        let mut restored = BTreeMap::new();
        let ids: Vec<SlotId> = self.engine.slots().map(|slot| slot.id()).collect();
        let mut numbers = Vec::new();
        for id in ids {
            let slot = self.slots.get(&id).ok_or("the driver has no such slot")?;
            let snapshot = self.engine.slot(id).ok_or("a slot is gone")?;
            let snapshot = slot.snapshot(snapshot)?;
            numbers.push((id, new.restore_slot(snapshot, &slot.session, kernel.now)));
        }
        for id in self.clients.keys() {
            clients.push(self.restore_client(&mut new, *id, kernel)?);
        }
        if !starts {
            return Ok(None);
        }
        for (former, id) in numbers {
            let mut slot = self.slots.remove(&former).unwrap_or_default();
            slot.restore_from_text()?;
            restored.insert(id, slot);
        }
        Ok(Some((new, restored, clients)))
    }

    fn restore_client(
        &self,
        new: &mut engine::Daemon,
        id: ClientId,
        kernel: &Kernel,
    ) -> Result<Value, String> {
        let client = &self.clients[&id];
        let snapshot = self.engine.client_snapshot(id).ok_or("a client is gone")?;
        let snapshot = serde_json::to_string(&snapshot).map_err(|it| it.to_string())?;
        let snapshot = serde_json::from_str(&snapshot).map_err(|it| it.to_string())?;
        let (introduction, liveness) = (client.introduction(), kernel.settings.liveness);
        new.restore_client(id, snapshot, introduction, liveness, kernel.now)
            .ok_or("a client's slot is gone")?;
        restored_text(&json!({
            "half_line": client.from.rest(),
            "unwritten": client.to.rest(),
            "listens": client.pipes.is_some_and(|it| it.reads_pipe),
            "speaks": client.pipes.is_some_and(|it| it.writes_pipe),
        }))
    }
}

impl Slot {
    pub(super) fn snapshot(&self, slot: &ServerSlot) -> Result<SlotSnapshot, String> {
        let failed = |error: serde_json::Error| error.to_string();
        let slot = slot.snapshot();
        let mux = serde_json::to_string(slot.mux).map_err(failed)?;
        let lanes = serde_json::to_string(slot.lanes).map_err(failed)?;
        let snapshot = SlotSnapshot {
            mux: serde_json::from_str(&mux).map_err(failed)?,
            lanes: serde_json::from_str(&lanes).map_err(failed)?,
            running: self.server.is_some(),
            writing: !self.unwritten.is_empty(),
            start_at: slot.start_at,
            empty_since: slot.empty_since,
            first_process: None,
        };
        let text = serde_json::to_string(&snapshot).map_err(failed)?;
        serde_json::from_str(&text).map_err(failed)
    }

    /// Serializes and deserializes the driver's state.
    fn restore_from_text(&mut self) -> Result<(), String> {
        let half_line = self.server.as_ref().map_or(&[][..], |it| it.from.rest());
        let text = restored_text(&json!({
            "half_line": half_line,
            "lines": self.unwritten.lines,
            "done": self.unwritten.done,
        }))?;
        if let Some(server) = &mut self.server {
            server.from = Inbox::of(bytes(&text["half_line"]));
        }
        self.unwritten = Unwritten {
            lines: bytes(&text["lines"]),
            done: text["done"].as_u64().unwrap_or(0) as usize,
        };
        Ok(())
    }
}

fn restored_text(value: &Value) -> Result<Value, String> {
    serde_json::from_str(&value.to_string()).map_err(|error| error.to_string())
}

fn bytes(value: &Value) -> Vec<u8> {
    let bytes = value.as_array().into_iter().flatten();
    bytes
        .filter_map(|it| u8::try_from(it.as_u64()?).ok())
        .collect()
}
