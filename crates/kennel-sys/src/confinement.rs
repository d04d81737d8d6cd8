//! The confinement of a process: restrictions that other processes of its user may not have.
//!
//! A process that acts on behalf of another one must not lift that one's restrictions. So both sides read the same facts by
//! the same function: a process about itself, and a daemon about a client. The facts come from the kernel, never from the
//! other process.
//!
//! | fact | read from |
//! |---|---|
//! | the eight kinds of namespaces, `time` included, and those for children (`pid`, `time`) | `/proc/<pid>/ns/…` |
//! | the root directory (device, inode and mount) | `/proc/<pid>/root` |
//! | the user and group ids, and the supplementary groups | `/proc/<pid>/status` |
//! | the five capability sets | `/proc/<pid>/status` |
//! | the umask bits that hide files from others | `/proc/<pid>/status` |
//! | `NoNewPrivs`, the seccomp mode and the number of filters | `/proc/<pid>/status` |
//! | the label of the security module | `/proc/<pid>/attr/current` |
//!
//! Not compared: resource limits (they limit use, not access, and reading them would cost as much as all other facts), and
//! facts that the kernel does not show: securebits, and the devices and network that BPF programs of its cgroup allow.
//!
//! The rules of a seccomp filter or a Landlock domain cannot be read: [`is_filtered`](Confinement::is_filtered) says that
//! there may be one. To create a Landlock domain, a process needs `NoNewPrivs` or `CAP_SYS_ADMIN`; a domain that was created
//! with the capability alone cannot be seen.

use std::io;

use crate::os;
use crate::process::ProcessRef;

/// Every kind of namespace. `time` counts because a process in another time namespace sees other start times.
pub(crate) const NAMESPACES: [&str; 8] =
    ["mnt", "pid", "net", "user", "ipc", "uts", "cgroup", "time"];

/// Stands for a root that was not read; no file has these numbers.
pub(crate) const UNREAD_ROOT: (u64, u64, u64) = (0, 0, 0);

/// The restrictions of one process. Two processes with equal values are equally confined, unless one is
/// [filtered](Self::is_filtered).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// The inodes of the [`NAMESPACES`]; 0 for a kind that this kernel does not have.
    pub(crate) namespaces: [u64; NAMESPACES.len()],
    /// Device, inode and mount id; [`UNREAD_ROOT`] if it was not read because other values already differed.
    pub(crate) root: (u64, u64, u64),
    /// User ids, group ids and supplementary groups, in the kernel's format.
    pub(crate) ids: [String; 3],
    /// Inheritable, permitted, effective, bounding, ambient.
    pub(crate) capabilities: [u64; 5],
    /// The bits of its umask by which others may neither read nor use its files; 0 before Linux 4.7, which does not show
    /// them.
    pub(crate) hides_files: u32,
    pub(crate) label: Vec<u8>,
    pub(crate) no_new_privs: bool,
    pub(crate) seccomp_mode: u32,
    pub(crate) seccomp_filters: u32,
}

impl Confinement {
    /// The confinement of a living process, to be compared with `ours`: its root is read only if all other values are
    /// equal. An error if the process ended or cannot be seen.
    pub fn of(process: &ProcessRef, ours: &Confinement) -> io::Result<Confinement> {
        Self::read(process, false, ours)
    }

    /// The same for a process and its children: an error if they would be in other namespaces.
    pub fn of_process_and_children(
        process: &ProcessRef,
        ours: &Confinement,
    ) -> io::Result<Confinement> {
        Self::read(process, true, ours)
    }

    fn read(process: &ProcessRef, children: bool, ours: &Confinement) -> io::Result<Confinement> {
        os::pid_of(process.pid())?;
        let read = os::confinement(&process.pid().to_string(), children, Some(ours));
        // The process lives after the reading, so the facts are about it (rule 6).
        match process.is_alive() {
            true => read,
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The confinement of this process.
    pub fn of_this_process() -> io::Result<Confinement> {
        os::confinement("self", false, None)
    }

    /// Whether it has restrictions that cannot be compared: a seccomp filter, or `NoNewPrivs`, which may come with a
    /// Landlock domain. Some domains come without it: see the module documentation.
    pub fn is_filtered(&self) -> bool {
        self.no_new_privs || self.seccomp_mode != 0 || self.seccomp_filters != 0
    }

    /// Whether all values except the root are equal.
    pub(crate) fn equals_but_for_root(&self, other: &Confinement) -> bool {
        let with_other_root = Confinement {
            root: other.root,
            ..self.clone()
        };
        with_other_root == *other
    }

    /// Whether it permits all that `other` permits.
    pub fn permits_all_of(&self, other: &Confinement) -> bool {
        let mut sets = self.capabilities.iter().zip(&other.capabilities);
        !self.is_filtered()
            && self.namespaces == other.namespaces
            && self.root == other.root
            && self.ids == other.ids
            && self.hides_files == other.hides_files
            && self.label == other.label
            && sets.all(|(ours, others)| ours & others == *others)
    }

    /// The values as text, always in the same order, as input for a hash.
    pub fn facts(&self) -> Vec<String> {
        let Confinement {
            namespaces,
            root: (device, inode, mount),
            ids,
            capabilities: [inheritable, permitted, effective, bounding, ambient],
            hides_files,
            label,
            no_new_privs,
            seccomp_mode,
            seccomp_filters,
        } = self;
        let namespace = |(kind, inode): (&str, &u64)| format!("{kind} {inode}");
        let mut facts: Vec<String> = NAMESPACES
            .into_iter()
            .zip(namespaces)
            .map(namespace)
            .collect();
        facts.push(format!("root {device} {inode} {mount}"));
        facts.push(format!("ids {ids:?}"));
        facts.push(format!(
            "capabilities {inheritable:x} {permitted:x} {effective:x} {bounding:x} {ambient:x}"
        ));
        facts.push(format!("umask {hides_files:03o}"));
        facts.push(format!("label {label:?}"));
        facts.push(format!(
            "filters {no_new_privs} {seccomp_mode} {seccomp_filters}"
        ));
        facts
    }

    /// The inode of a namespace, such as `pid`; `None` if this kernel does not have that kind.
    pub fn namespace(&self, kind: &str) -> Option<u64> {
        let at = NAMESPACES.iter().position(|it| *it == kind)?;
        Some(self.namespaces[at]).filter(|inode| *inode != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Confinement {
        Confinement::of_this_process().expect("we can be seen")
    }

    #[test]
    fn a_process_and_an_observer_read_the_same_facts() {
        let me = ProcessRef::me().expect("we are here");
        let of_me = Confinement::of(&me, &ours());
        assert_eq!(ours(), of_me.expect("we can be seen"));
        let with_children = Confinement::of_process_and_children(&me, &ours());
        assert_eq!(ours(), with_children.expect("they would be where we are"));
        assert!(ours().namespace("pid").is_some());
        assert_eq!(ours().namespace("pi"), None);
    }

    #[test]
    fn the_root_is_read_only_if_all_other_facts_are_equal() {
        let me = ProcessRef::me().expect("we are here");
        let mut others = vec![ours(); 5];
        others[0].namespaces[0] = 1;
        others[1].capabilities[3] ^= 1;
        others[2].label = b"confined".to_vec();
        others[3].seccomp_filters += 1;
        others[4].ids[2] += " 4242";
        for other in &others {
            let of_me = Confinement::of(&me, other).expect("we can be seen");
            assert_eq!(of_me.root, UNREAD_ROOT);
            assert_ne!(of_me, *other);
        }
        let mut elsewhere = ours();
        elsewhere.root.1 += 1;
        let of_me = Confinement::of(&me, &elsewhere).expect("we can be seen");
        assert_eq!(of_me, ours(), "only the root differs: it was read");
    }

    #[test]
    fn each_fact_changes_the_text() {
        let base = ours();
        let mut others = vec![base.clone(); 9];
        others[0].namespaces[0] = 1;
        others[1].root.1 += 1;
        others[2].capabilities[3] ^= 1;
        others[3].label = b"confined".to_vec();
        others[4].no_new_privs ^= true;
        others[5].seccomp_filters += 1;
        others[6].root.2 += 1;
        others[7].ids[2] += " 4242";
        others[8].hides_files = 0o055;
        for other in &others {
            assert_ne!(other.facts(), base.facts());
        }
    }

    #[test]
    fn fewer_capabilities_or_a_filter_are_less_free() {
        let free = Confinement {
            capabilities: [0, 3, 3, 3, 0],
            no_new_privs: false,
            seccomp_mode: 0,
            seccomp_filters: 0,
            ..ours()
        };
        assert!(free.permits_all_of(&free) && !free.is_filtered());
        let mut fewer = free.clone();
        fewer.capabilities[3] = 1;
        assert!(!fewer.permits_all_of(&free));
        assert!(free.permits_all_of(&fewer));
        let mut filtered = free.clone();
        filtered.seccomp_filters = 1;
        assert!(filtered.is_filtered() && !filtered.permits_all_of(&filtered));
        let mut elsewhere = free.clone();
        elsewhere.namespaces[7] = 1;
        assert!(!elsewhere.permits_all_of(&free));
    }

    #[test]
    fn a_process_that_ended_has_no_confinement() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("sleep");
        let process = ProcessRef::open(child.id()).expect("it lives");
        let of_child = Confinement::of(&process, &ours());
        assert_eq!(of_child.expect("it can be seen").root, ours().root);
        child.kill().expect("our child");
        assert!(
            process
                .wait(Some(std::time::Duration::from_secs(60)))
                .expect("an exit")
        );
        assert!(Confinement::of(&process, &ours()).is_err(), "a zombie");
        child.wait().expect("our child");
        assert!(Confinement::of(&process, &ours()).is_err());
    }
}
