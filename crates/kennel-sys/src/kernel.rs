//! Which features this kernel has: probed once, and each can be switched off in tests.
//!
//! `KENNEL_FEATURES_OFF=pidfs,peer-pidfd,pidfd` makes a process behave as on a kernel without them,
//! so that every fallback is tested on every machine.

use std::sync::OnceLock;

use crate::linux;

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Process file descriptors (Linux 5.3): exit as an event, signals without races.
    pub pidfd: bool,
    /// Process file descriptors with an inode that is never used twice (Linux 6.9).
    pub pidfs: bool,
    /// A socket tells its peer as a process file descriptor (Linux 6.5).
    pub peer_pidfd: bool,
}

/// The features in force for this process.
pub fn features() -> Features {
    static FEATURES: OnceLock<Features> = OnceLock::new();
    *FEATURES.get_or_init(|| {
        let off = std::env::var("KENNEL_FEATURES_OFF").unwrap_or_default();
        without(linux::probe_features(), &off)
    })
}

fn without(present: Features, off: &str) -> Features {
    let off = |name: &str| off.split(',').any(|word| word.trim() == name);
    let pidfd = present.pidfd && !off("pidfd");
    Features {
        pidfd,
        pidfs: pidfd && present.pidfs && !off("pidfs"),
        peer_pidfd: pidfd && present.peer_pidfd && !off("peer-pidfd"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Features = Features {
        pidfd: true,
        pidfs: true,
        peer_pidfd: true,
    };

    #[test]
    fn each_feature_can_be_switched_off() {
        assert_eq!(without(ALL, ""), ALL);
        assert_eq!(
            without(ALL, "pidfs"),
            Features {
                pidfs: false,
                ..ALL
            }
        );
        assert_eq!(
            without(ALL, "peer-pidfd"),
            Features {
                peer_pidfd: false,
                ..ALL
            }
        );
        let none = Features {
            pidfd: false,
            pidfs: false,
            peer_pidfd: false,
        };
        assert_eq!(without(ALL, "pidfd"), none);
        assert_eq!(without(ALL, "pidfs, peer-pidfd, pidfd"), none);
        assert_eq!(without(none, ""), none);
    }
}
