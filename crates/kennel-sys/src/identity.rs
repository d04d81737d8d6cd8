//! Who a process is, as a value that can be written down and checked later (rule 6).

use std::fmt;
use std::str::FromStr;

/// Which process was meant: a pid with what makes it unmistakable.
///
/// Its text is one word that starts with the pid, made to be written into a record and read back
/// by another process of the same machine: `pid:unique:boot:start:namespace`, with `-` for what is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// 0 where the process lives in a pid namespace we cannot see into.
    pub(crate) pid: u32,
    /// The kernel's own number for it, never used twice in one boot (the pidfs inode on Linux 6.9+).
    pub(crate) unique: Option<u64>,
    /// Which boot the other numbers belong to.
    pub(crate) boot: Option<u128>,
    /// When it started, in clock ticks since boot.
    pub(crate) start: Option<u64>,
    /// The pid namespace in which `pid` is its number.
    pub(crate) namespace: Option<u64>,
}

impl Identity {
    /// Its pid, for people to read. Never signal or believe it by this number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether both are *proven* to mean the same process. What cannot be compared is not the same.
    pub fn same_process(&self, other: &Identity) -> bool {
        if self.pid != other.pid || self.boot.is_none() || self.boot != other.boot {
            return false;
        }
        // The same number in two pid namespaces is two processes.
        if let (Some(mine), Some(theirs)) = (self.namespace, other.namespace)
            && mine != theirs
        {
            return false;
        }
        match (self.unique, other.unique) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => self.start.is_some() && self.start == other.start,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.pid)?;
        match self.unique {
            Some(unique) => write!(f, "{unique}:")?,
            None => f.write_str("-:")?,
        }
        match self.boot {
            Some(boot) => write!(f, "{boot:032x}:")?,
            None => f.write_str("-:")?,
        }
        match self.start {
            Some(start) => write!(f, "{start}:")?,
            None => f.write_str("-:")?,
        }
        match self.namespace {
            Some(namespace) => write!(f, "{namespace}"),
            None => f.write_str("-"),
        }
    }
}

/// Text that is no [`Identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a process identity (expected `pid:unique:boot:start:namespace`)")]
pub struct ParseIdentityError;

impl FromStr for Identity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split(':').collect();
        let [pid, unique, boot, start, namespace] = parts[..] else {
            return Err(ParseIdentityError);
        };
        Ok(Identity {
            pid: pid.parse().map_err(|_| ParseIdentityError)?,
            unique: known(unique, |text| text.parse().ok())?,
            boot: known(boot, |text| u128::from_str_radix(text, 16).ok())?,
            start: known(start, |text| text.parse().ok())?,
            namespace: known(namespace, |text| text.parse().ok())?,
        })
    }
}

fn known<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, ParseIdentityError> {
    match text {
        "-" => Ok(None),
        text => parse(text).map(Some).ok_or(ParseIdentityError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Identity = Identity {
        pid: 4711,
        unique: Some(99),
        boot: Some(0x00ff_0000_0000_0000_0000_0000_0000_0001),
        start: Some(1234),
        namespace: Some(4_026_531_836),
    };

    #[test]
    fn text_reads_back_as_the_same_identity() {
        let bare = Identity {
            unique: None,
            boot: None,
            start: None,
            namespace: None,
            ..FULL
        };
        for identity in [FULL, bare] {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
        assert!(FULL.to_string().starts_with("4711:"));
    }

    #[test]
    fn garbage_is_refused() {
        for text in [
            "",
            "4711",
            "a:b:c:d:e",
            "1:2:3",
            "1:2:3:4",
            "1:2:3:4:5:6",
            "-1:-:-:-:-",
            "1:-:zz:-:-",
        ] {
            assert_eq!(
                text.parse::<Identity>(),
                Err(ParseIdentityError),
                "{text:?}"
            );
        }
    }

    #[test]
    fn rule_6_a_pid_alone_proves_nothing() {
        let bare = Identity {
            unique: None,
            start: None,
            ..FULL
        };
        assert!(FULL.same_process(&FULL));
        assert!(!bare.same_process(&bare));
        assert!(!FULL.same_process(&bare));
        assert!(!FULL.same_process(&Identity {
            unique: Some(98),
            ..FULL
        }));
        assert!(!FULL.same_process(&Identity {
            boot: Some(2),
            ..FULL
        }));
        assert!(!FULL.same_process(&Identity { pid: 4712, ..FULL }));
        let elsewhere = Identity {
            namespace: Some(4_026_531_999),
            ..FULL
        };
        assert!(!FULL.same_process(&elsewhere));
        let fallback = Identity {
            unique: None,
            ..FULL
        };
        assert!(FULL.same_process(&fallback));
        assert!(!fallback.same_process(&Identity {
            start: Some(1235),
            ..fallback
        }));
    }
}
