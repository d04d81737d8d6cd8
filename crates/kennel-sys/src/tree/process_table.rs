//! The process table at one moment, and the walk over the descendants of a process.

use std::collections::{HashMap, HashSet};
use std::io;

use crate::os;
use crate::process::{Identity, ProcessRef};

/// The living processes and their parents at one moment. A pid in it may belong to another process by now: the functions
/// that return a [`ProcessRef`] check that.
#[derive(Debug, Default)]
pub struct ProcessTable {
    /// The children of each process, by the pid of their parent.
    children: HashMap<u32, Vec<u32>>,
}

impl ProcessTable {
    /// Reads the process table. Zombies are left out.
    pub fn now() -> io::Result<ProcessTable> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for pid in os::processes()? {
            if let Ok(stat) = os::stat(pid)
                && !stat.ended()
            {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        Ok(ProcessTable { children })
    }

    /// The pids of the children of a process.
    pub fn children(&self, pid: u32) -> &[u32] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// The pids of a process and its descendants.
    pub fn with_descendants(&self, pid: u32) -> Vec<u32> {
        let mut pids = vec![pid];
        let mut visited = 0;
        while let Some(&parent) = pids.get(visited) {
            visited += 1;
            pids.extend(self.children(parent));
        }
        pids
    }

    /// The parent of each process.
    pub(super) fn parents(&self) -> HashMap<u32, u32> {
        let children = self.children.iter();
        let pairs = children.flat_map(|(&parent, pids)| pids.iter().map(move |&pid| (pid, parent)));
        pairs.collect()
    }

    /// The descendants of `root` that `judge` collects, parents before their children. `judge` is called with a process and
    /// its parent.
    pub(crate) fn descendants(
        &self,
        root: &ProcessRef,
        mut judge: impl FnMut(&ProcessRef, &ProcessRef) -> Step,
    ) -> Vec<ProcessRef> {
        let judge = |process: &ProcessRef, parent: Option<&ProcessRef>| {
            judge(process, parent.unwrap_or(root))
        };
        let mut found = Vec::new();
        Walk::new(self, judge, |process| found.push(process)).visit(root.pid(), Some(root));
        found.reverse();
        found
    }

    /// The descendants of this process that `judge` collects, parents before their children, by identity: a large tree
    /// would need too many descriptors. `judge` is called with a process and its parent; `None` is this process.
    ///
    /// Also returns whether a process ended during the walk: its descendants may be missing.
    pub(super) fn own_descendants(
        &self,
        judge: impl FnMut(&ProcessRef, Option<&ProcessRef>) -> Step,
    ) -> (Vec<Identity>, bool) {
        let mut found = Vec::new();
        let mut walk = Walk::new(self, judge, |process: ProcessRef| {
            found.push(*process.identity());
        });
        walk.visit(std::process::id(), None);
        let incomplete = walk.incomplete;
        found.reverse();
        (found, incomplete)
    }
}

/// The action of a walk for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Collect it, and continue with its children.
    Collect,
    /// Do not collect it, but continue with its children.
    Pass,
    /// Leave out the process and its descendants.
    Skip,
}

/// A walk down from one process. Besides the processes that `collect` keeps, it holds one descriptor per level of the tree.
struct Walk<'a, J, C> {
    table: &'a ProcessTable,
    visited: HashSet<u32>,
    judge: J,
    /// Called with each collected process: children before their parents.
    collect: C,
    /// Whether a process of the table had ended, or had another parent, when it was visited.
    incomplete: bool,
}

impl<'a, J, C> Walk<'a, J, C>
where
    J: FnMut(&ProcessRef, Option<&ProcessRef>) -> Step,
    C: FnMut(ProcessRef),
{
    fn new(table: &'a ProcessTable, judge: J, collect: C) -> Walk<'a, J, C> {
        Walk {
            table,
            visited: HashSet::new(),
            judge,
            collect,
            incomplete: false,
        }
    }

    /// Visits the descendants of `parent_pid`. `parent` is `None` for this process.
    fn visit(&mut self, parent_pid: u32, parent: Option<&ProcessRef>) {
        let table = self.table;
        for &pid in table.children(parent_pid) {
            if !self.visited.insert(pid) {
                continue;
            }
            let Ok(process) = ProcessRef::open(pid) else {
                self.incomplete = true;
                continue;
            };
            // A grandchild may have been reaped, and its pid reused, since the table was read. This process is the right one
            // if its parent is still the process that we hold, and that one still lives (rule 6).
            let is_child = os::stat(pid).is_ok_and(|stat| stat.parent == parent_pid)
                && process.is_alive()
                && parent.is_none_or(ProcessRef::is_alive);
            if !is_child {
                self.incomplete = true;
                continue;
            }
            let step = (self.judge)(&process, parent);
            if step != Step::Skip {
                self.visit(pid, Some(&process));
            }
            if step == Step::Collect {
                (self.collect)(process);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    /// The kernel truncates a name after 15 bytes, which may split a character.
    #[test]
    fn a_process_whose_name_is_not_utf8_is_found() {
        let dir = std::env::temp_dir().join(format!("kt-walk-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let program = dir.join(OsStr::from_bytes(b"\xff\xfe"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("600").spawn().unwrap();
        let table = ProcessTable::now().unwrap();
        let seen = table.children(std::process::id()).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(seen);
    }
}
