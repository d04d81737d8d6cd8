//! The features of this kernel: probed once, and each can be switched off in tests.
//!
//! `KENNEL_FEATURES_OFF=pidfs,peer-pidfd,pidfd,pass-rights,sock-diag,proc-syscall` makes a process behave as on a kernel
//! without them, so that every fallback is tested on every machine.

use std::sync::OnceLock;

use crate::os;

/// The features of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Process file descriptors (Linux 5.3): exit as an event, signals without races.
    pub pidfd: bool,
    /// Process file descriptors with an inode that is never reused (Linux 6.9).
    pub pidfs: bool,
    /// A socket returns a process file descriptor of its peer (Linux 6.5).
    pub peer_pidfd: bool,
    /// A socket can refuse descriptors that its peer passes (Linux 6.16). Not probed: the first attempt shows it.
    pub pass_rights: bool,
    /// Sockets can be listed by netlink. Not probed: the fallback for an error is `/proc`.
    pub sock_diag: bool,
    /// `/proc/<pid>/syscall` of processes that we may not trace. Not probed: Yama decides for each process.
    pub proc_syscall: bool,
}

impl Features {
    /// No features.
    #[cfg(any(not(target_os = "linux"), kennel_unserved))]
    pub(crate) const NONE: Features = Features {
        pidfd: false,
        pidfs: false,
        peer_pidfd: false,
        pass_rights: false,
        sock_diag: false,
        proc_syscall: false,
    };
}

/// The features that this process uses.
pub fn features() -> Features {
    static FEATURES: OnceLock<Features> = OnceLock::new();
    *FEATURES.get_or_init(|| {
        let off = std::env::var("KENNEL_FEATURES_OFF").unwrap_or_default();
        without(os::probe_features(), &off)
    })
}

fn without(present: Features, off: &str) -> Features {
    let off = |name: &str| off.split(',').any(|word| word.trim() == name);
    let pidfd = present.pidfd && !off("pidfd");
    Features {
        pidfd,
        pidfs: pidfd && present.pidfs && !off("pidfs"),
        peer_pidfd: pidfd && present.peer_pidfd && !off("peer-pidfd"),
        pass_rights: present.pass_rights && !off("pass-rights"),
        sock_diag: present.sock_diag && !off("sock-diag"),
        proc_syscall: present.proc_syscall && !off("proc-syscall"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Features = Features {
        pidfd: true,
        pidfs: true,
        peer_pidfd: true,
        pass_rights: true,
        sock_diag: true,
        proc_syscall: true,
    };

    #[test]
    fn each_feature_can_be_switched_off() {
        type Switch = fn(&mut Features);
        assert_eq!(without(ALL, ""), ALL);
        let switches: [(&str, Switch); 5] = [
            ("pidfs", |it| it.pidfs = false),
            ("peer-pidfd", |it| it.peer_pidfd = false),
            ("pass-rights", |it| it.pass_rights = false),
            ("sock-diag", |it| it.sock_diag = false),
            ("proc-syscall", |it| it.proc_syscall = false),
        ];
        for (name, switch_off) in switches {
            let mut expected = ALL;
            switch_off(&mut expected);
            assert_eq!(without(ALL, name), expected, "{name}");
        }
        let no_process = Features {
            pidfd: false,
            pidfs: false,
            peer_pidfd: false,
            ..ALL
        };
        assert_eq!(without(ALL, "pidfd"), no_process);
        assert_eq!(without(ALL, "pidfs, peer-pidfd, pidfd"), no_process);
        assert_eq!(without(no_process, ""), no_process);
    }
}
