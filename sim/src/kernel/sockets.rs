//! The runtime directory: listening sockets, and the two locks.

use std::collections::VecDeque;

use super::{BACKLOG, DialResult, End, Kernel, Listener, Pid};

impl Kernel {
    pub(crate) fn listen(&mut self, pid: Pid) -> u32 {
        self.next += 1;
        let queue = VecDeque::new();
        self.listeners.insert(self.next, Listener { pid, queue });
        self.next
    }

    pub(crate) fn dial(&mut self, pid: Pid, generation: u32) -> DialResult {
        let Some(listener) = self.listeners.get(&generation) else {
            return DialResult::Refused;
        };
        if listener.queue.len() >= BACKLOG {
            return DialResult::Busy;
        }
        let (ours, its) = self.pair(pid, listener.pid);
        self.listeners
            .get_mut(&generation)
            .expect("the listener exists")
            .queue
            .push_back(its);
        DialResult::Connected(ours)
    }

    pub(crate) fn accept(&mut self, generation: u32) -> Option<End> {
        self.listeners.get_mut(&generation)?.queue.pop_front()
    }

    pub(crate) fn has_waiting_connections(&self, generation: u32) -> bool {
        let listener = self.listeners.get(&generation);
        listener.is_some_and(|listener| !listener.queue.is_empty())
    }

    pub(crate) fn close_listener(&mut self, generation: u32) -> Vec<End> {
        let listener = self.listeners.remove(&generation);
        listener.map_or_else(Vec::new, |listener| listener.queue.into())
    }

    pub(crate) fn try_spawn_lock(&mut self, pid: Pid) -> bool {
        let free = self.spawn_lock.is_empty();
        if free {
            self.spawn_lock.insert(pid);
        }
        free
    }

    pub(crate) fn hand_over_spawn_lock(&mut self, from: Pid, to: Pid) {
        if self.spawn_lock.contains(&from) {
            self.spawn_lock.insert(to);
        }
    }

    pub(crate) fn has_spawn_lock(&self, pid: Pid) -> bool {
        self.spawn_lock.contains(&pid)
    }

    pub(crate) fn spawn_lock_holders(&self) -> impl Iterator<Item = Pid> {
        self.spawn_lock.iter().copied()
    }

    /// Any holder can unlock it: it is one open file.
    pub(crate) fn unlock_spawn(&mut self, pid: Pid) {
        if self.spawn_lock.contains(&pid) {
            self.spawn_lock.clear();
        }
    }

    /// Closes the file without unlocking: other holders of the open file keep the lock.
    pub(crate) fn close_spawn_lock(&mut self, pid: Pid) {
        self.spawn_lock.remove(&pid);
    }

    pub(crate) fn try_daemon_lock(&mut self, pid: Pid) -> bool {
        let free = self.daemon_lock.is_none();
        if free {
            self.daemon_lock = Some(pid);
        }
        free
    }

    pub(crate) fn daemon_lock(&self) -> Option<Pid> {
        self.daemon_lock
    }
}
