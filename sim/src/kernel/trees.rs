//! Servers and their wardens.

use std::time::Duration;

use kennel_core::time::Moment;

use super::{Kernel, NewProcess, Pid, PipeId, Tree};

impl Kernel {
    /// Starts a server under a warden, which ends it after the served process.
    pub(crate) fn start_server(
        &mut self,
        served: Pid,
        slot: Option<String>,
    ) -> (Pid, PipeId, PipeId) {
        let pid = self.begin("server");
        if let Some(slot) = &slot {
            let other = self
                .trees
                .iter()
                .find(|(_, tree)| tree.slot.as_ref() == Some(slot));
            let other = other.map(|(pid, _)| *pid);
            self.check(other.is_none(), || {
                format!("two servers of {slot} at once: {other:?} is still there")
            });
        }
        let tree = Tree {
            served,
            ends: None,
            slot,
        };
        self.trees.insert(pid, tree);
        let (stdin, stdout) = (self.pipe(served, pid), self.pipe(pid, served));
        self.new_processes
            .push(NewProcess::Server { pid, stdin, stdout });
        (pid, stdin, stdout)
    }

    /// Makes the warden begin its stop ladder.
    pub(crate) fn stop_tree(&mut self, server: Pid) {
        let now = self.now;
        if let Some(tree) = self.trees.get_mut(&server)
            && tree.ends.is_none()
        {
            let delay = u64::from(server) * 397 % 4000;
            tree.ends = Some(now + Duration::from_millis(delay));
        }
    }

    /// Whether there are wardens whose served process is gone.
    pub(crate) fn orphaned_trees(&self) -> bool {
        self.trees.values().any(|tree| !self.alive(tree.served))
    }

    pub(crate) fn tree_is_empty(&self, server: Pid) -> bool {
        !self.trees.contains_key(&server)
    }

    pub(crate) fn next_tree_end(&self) -> Option<Moment> {
        self.trees.values().filter_map(|tree| tree.ends).min()
    }

    /// Ends the servers whose stop ladder is over.
    pub(crate) fn end_due_trees(&mut self) {
        let due = |tree: &Tree| tree.ends.is_some_and(|at| at <= self.now);
        let due: Vec<Pid> = self
            .trees
            .iter()
            .filter(|(_, tree)| due(tree))
            .map(|(pid, _)| *pid)
            .collect();
        for server in due {
            self.trace(server, || "is ended by its warden".to_owned());
            self.end(server);
        }
    }

    pub(crate) fn trees(&self) -> impl Iterator<Item = (Pid, Pid)> {
        self.trees
            .iter()
            .map(|(server, tree)| (*server, tree.served))
    }
}
