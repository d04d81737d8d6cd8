//! One walk over everyone below a process, whoever wants to know.

use std::collections::{HashMap, HashSet};
use std::io;

use crate::os;
use crate::process::ProcessRef;

/// The children of each process, by the pid of their parent.
pub(crate) type Children = HashMap<u32, Vec<u32>>;

/// Everyone's children, in one look at the process table. A zombie is nobody's, and has none.
pub(crate) fn children_by_parent() -> io::Result<Children> {
    let mut children = Children::new();
    for pid in os::processes()? {
        if let Ok(stat) = os::stat(pid)
            && !stat.ended()
        {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    Ok(children)
}

/// What a walk does with a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Collects it, and goes on below it.
    Collect,
    /// Goes on below it.
    Pass,
    /// Leaves it alone, with everyone below it.
    Skip,
}

/// A walk down from one process. Holds no more descriptors than the tree is deep, but for what `collect` keeps.
pub(crate) struct Walk<'a, J, C> {
    children: &'a Children,
    visited: HashSet<u32>,
    /// Called with a process and its parent, which is `None` for a child of this process where the walk began there.
    judge: J,
    /// Called with each process that is collected: children before their parents.
    collect: C,
    /// Somebody in the list was gone, or had another parent, when it was looked at.
    lost: bool,
}

impl<'a, J, C> Walk<'a, J, C>
where
    J: FnMut(&ProcessRef, Option<&ProcessRef>) -> Step,
    C: FnMut(ProcessRef),
{
    pub(crate) fn new(children: &'a Children, judge: J, collect: C) -> Walk<'a, J, C> {
        Walk {
            children,
            visited: HashSet::new(),
            judge,
            collect,
            lost: false,
        }
    }

    /// Walks over everyone below `root`. True if somebody was lost on the way: what was below it may be missing.
    pub(crate) fn below(mut self, root: &ProcessRef) -> bool {
        self.go_on(root.pid(), Some(root));
        self.lost
    }

    /// The same for everyone below this process.
    pub(crate) fn below_this_process(mut self) -> bool {
        self.go_on(std::process::id(), None);
        self.lost
    }

    fn go_on(&mut self, parent_pid: u32, parent: Option<&ProcessRef>) {
        let children = self.children;
        for &pid in children.get(&parent_pid).into_iter().flatten() {
            if !self.visited.insert(pid) {
                continue;
            }
            let Ok(process) = ProcessRef::open(pid) else {
                self.lost = true;
                continue;
            };
            // A grandchild may have been reaped, and its pid given away, since the list was made. This one is who it
            // seems if its parent is still the one we hold, and is so now (rule 6).
            let is_child = os::stat(pid).is_ok_and(|stat| stat.parent == parent_pid)
                && process.is_alive()
                && parent.is_none_or(ProcessRef::is_alive);
            if !is_child {
                self.lost = true;
                continue;
            }
            let step = (self.judge)(&process, parent);
            if step != Step::Skip {
                self.go_on(pid, Some(&process));
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

    /// The kernel cuts a name after 15 bytes, also in the middle of a letter.
    #[test]
    fn a_process_whose_name_is_no_text_is_seen() {
        let dir = std::env::temp_dir().join(format!("kt-walk-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let program = dir.join(OsStr::from_bytes(b"\xff\xfe"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("600").spawn().unwrap();
        let children = children_by_parent().unwrap();
        let seen = children[&std::process::id()].contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(seen);
    }
}
