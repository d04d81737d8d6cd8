//! A server's place in a daemon: a real [`Mux`], its clients, and what is on its way to the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kennel_core::message::Key;
use kennel_core::mux::{Class, ClientId, Lane, Mux, Out, Policy};
use kennel_core::time::Moment;

use crate::kernel::{Kernel, Pid, PipeId};

/// How many lines a server's pipe takes: few, so that some wait.
const ROOM: usize = 3;

pub(crate) struct Station {
    pub(crate) number: u64,
    pub(crate) class: Class,
    pub(crate) start_at: Moment,
    pub(crate) mux: Mux,
    lanes: BTreeMap<Lane, VecDeque<Vec<u8>>>,
    pub(crate) server: Option<Running>,
    pub(crate) members: BTreeSet<ClientId>,
    /// Nobody joins it any more.
    pub(crate) closing: bool,
    pub(crate) deserted: Option<Moment>,
}

#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) stdin: PipeId,
    pub(crate) stdout: PipeId,
    /// Its warden was asked for the ladder.
    pub(crate) stopped: bool,
    /// It closed its output.
    pub(crate) silent: bool,
}

impl Station {
    pub(crate) fn new(number: u64, class: Class, policy: Policy, start_at: Moment) -> Station {
        Station {
            number,
            mux: Mux::new(class.clone(), policy),
            class,
            start_at,
            lanes: BTreeMap::new(),
            server: None,
            members: BTreeSet::new(),
            closing: false,
            deserted: None,
        }
    }

    /// What follows for clients; what is for the server waits in its lane.
    pub(crate) fn settle(&mut self) -> Vec<Out> {
        let mut out = Vec::new();
        while let Some(next) = self.mux.poll() {
            match next {
                Out::ToServer { lane, line } => {
                    self.lanes.entry(lane).or_default().push_back(line.to_vec());
                }
                other => out.push(other),
            }
        }
        while self.mux.poll_note().is_some() {}
        out
    }

    pub(crate) fn may_feed(&self, kernel: &Kernel) -> bool {
        let takes = |it: &Running| !it.stopped && kernel.waiting(it.stdin) < ROOM;
        !self.lanes.is_empty() && self.server.as_ref().is_some_and(takes)
    }

    /// Writes one line to the server: of the front, else of any lane.
    pub(crate) fn feed(&mut self, salt: u64, kernel: &mut Kernel) {
        let front = self.lanes.contains_key(&Lane::Front);
        let nth = salt as usize % self.lanes.len().max(1);
        let lane = match front {
            true => Some(Lane::Front),
            false => self.lanes.keys().nth(nth).copied(),
        };
        let (Some(lane), Some(server)) = (lane, self.server) else {
            return;
        };
        if let Some(lines) = self.lanes.get_mut(&lane) {
            let line = lines.pop_front();
            if lines.is_empty() {
                self.lanes.remove(&lane);
            }
            if let Some(line) = line {
                kernel.write(server.stdin, &line);
            }
        }
    }

    /// The requests of each client that the server has never heard.
    pub(crate) fn unsent(&self) -> BTreeMap<ClientId, Vec<Key>> {
        let lines = self.lanes.values().flatten().map(|line| &line[..]);
        let unheard = lines.chain(self.mux.lines_in_turn());
        let mut unsent = BTreeMap::<ClientId, Vec<Key>>::new();
        for (client, id) in unheard.flat_map(|line| self.mux.askers(line)) {
            unsent.entry(client).or_default().extend(Key::of(&id));
        }
        for client in &self.members {
            let held = self.mux.held_of(*client);
            unsent.entry(*client).or_default().extend(held);
        }
        unsent
    }

    /// Another program goes on with it.
    pub(crate) fn is_carried_over(&mut self) -> Result<(), String> {
        let text = serde_json::to_string(&self.mux).map_err(|error| error.to_string())?;
        self.mux = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(())
    }
}
