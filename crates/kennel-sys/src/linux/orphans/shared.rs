//! Shared memory, semaphores and message queues through which processes outside may use a suspect.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::io;

use super::doubts::RING;
use crate::os::{self, SharedMapping};

/// Shared objects of all processes at one moment.
#[derive(Debug, Default)]
pub(super) struct SharedObjects {
    /// Processes that map the same memory, and whether each can write to it.
    mappings: OnceCell<HashMap<String, Vec<(u32, bool)>>>,
    /// Last users of System V objects.
    system_v: OnceCell<io::Result<Vec<(u32, String)>>>,
}

impl SharedObjects {
    /// Why a process outside the tree may use a member through shared objects. Each text completes "pid 4711 …". `orphaned`
    /// are suspects themselves, which need no other process. An error if that cannot be seen.
    pub(super) fn doubts(
        &self,
        pid: u32,
        tree: &HashSet<u32>,
        orphaned: &HashSet<u32>,
    ) -> io::Result<Vec<String>> {
        let mut doubts: Vec<String> = Vec::new();
        let mappings = os::shared_mappings(pid)?;
        let doubt = |mapping| self.memory(mapping, tree, orphaned);
        doubts.extend(mappings.iter().filter_map(doubt));
        let users = self.system_v.get_or_init(os::system_v_users).as_ref();
        // The error is kept for all suspects. `io::Error` cannot be cloned.
        let users = users.map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let used = users.iter().filter(|(user, _)| *user == pid);
        doubts.extend(used.map(|(_, object)| format!("uses the System V {object}")));
        doubts.dedup();
        Ok(doubts)
    }

    fn memory(
        &self,
        mapping: &SharedMapping,
        tree: &HashSet<u32>,
        orphaned: &HashSet<u32>,
    ) -> Option<String> {
        let path = &mapping.path;
        if path == os::IO_URING {
            return Some(RING.to_owned());
        }
        if path.contains("[aio]") {
            return Some(
                "has a context for asynchronous I/O, whose operations cannot be seen".into(),
            );
        }
        if mapping.has_name() {
            return Some(format!("has the shared memory {path} open"));
        }
        let holders = self
            .mappings
            .get_or_init(holders_of_mappings)
            .get(&mapping.id);
        let holders = holders.map(Vec::as_slice).unwrap_or_default();
        // Memory that the member writes may be read by others. Memory that it only reads, such as a library, matters if
        // others write to it.
        let uses_it = |(_, writes): &&(u32, bool)| mapping.writable || *writes;
        let mut users = holders.iter().filter(uses_it).map(|(pid, _)| pid);
        if let Some(other) = users.find(|pid| !tree.contains(pid) && !orphaned.contains(pid)) {
            return Some(format!("shares memory ({path}) with pid {other}"));
        }
        // The kernel also counts a process whose maps are hidden.
        let hidden = os::attached(mapping).is_some_and(|count| count > holders.len());
        hidden.then(|| format!("shares memory ({path}) with a process that is hidden"))
    }
}

/// The processes that map each object, and whether each can write to it.
fn holders_of_mappings() -> HashMap<String, Vec<(u32, bool)>> {
    let mut holders: HashMap<String, Vec<(u32, bool)>> = HashMap::new();
    for pid in os::processes().unwrap_or_default() {
        for (mapping, writes) in os::all_mappings(pid).unwrap_or_default() {
            holders.entry(mapping).or_default().push((pid, writes));
        }
    }
    holders
}
