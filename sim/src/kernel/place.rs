//! The directory of the key: doors, and the two locks.

use std::collections::VecDeque;

use super::{BACKLOG, Dialled, Door, End, Kernel, Pid};

impl Kernel {
    pub(crate) fn listen(&mut self, pid: Pid) -> u32 {
        self.next += 1;
        let queue = VecDeque::new();
        self.doors.insert(self.next, Door { pid, queue });
        self.next
    }

    pub(crate) fn dial(&mut self, pid: Pid, generation: u32) -> Dialled {
        let Some(door) = self.doors.get(&generation) else {
            return Dialled::Refused;
        };
        if door.queue.len() >= BACKLOG {
            return Dialled::Busy;
        }
        let (ours, its) = self.pair(pid, door.pid);
        self.doors
            .get_mut(&generation)
            .expect("it is there")
            .queue
            .push_back(its);
        Dialled::Connected(ours)
    }

    pub(crate) fn accept(&mut self, generation: u32) -> Option<End> {
        self.doors.get_mut(&generation)?.queue.pop_front()
    }

    pub(crate) fn somebody_waits_at(&self, generation: u32) -> bool {
        let door = self.doors.get(&generation);
        door.is_some_and(|door| !door.queue.is_empty())
    }

    pub(crate) fn shut(&mut self, generation: u32) -> Vec<End> {
        let door = self.doors.remove(&generation);
        door.map_or_else(Vec::new, |door| door.queue.into())
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

    /// By any of those who hold it: it is one open file.
    pub(crate) fn unlock_spawn(&mut self, pid: Pid) {
        if self.spawn_lock.contains(&pid) {
            self.spawn_lock.clear();
        }
    }

    /// One that was closed, and not unlocked: the others of that open file keep it.
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
