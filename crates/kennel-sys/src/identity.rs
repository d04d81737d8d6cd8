//! The identity of a process, as a value that can be written to a record and checked later (rule 6).

use std::fmt;
use std::str::FromStr;

/// The identity of a process: a pid with facts that no later process with the same pid has.
///
/// Its text form is one word for records, which other processes of this machine can parse:
/// `pid:unique:boot:start:namespace`, with `-` for unknown parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// 0 if the process is in a pid namespace that we cannot see.
    pub(crate) pid: u32,
    /// The kernel's own number for the process, never reused in one boot (the pidfs inode on Linux 6.9+).
    pub(crate) unique: Option<u64>,
    /// The boot to which the other numbers belong.
    pub(crate) boot: Option<u128>,
    /// The start time in clock ticks since boot.
    pub(crate) start: Option<u64>,
    /// The pid namespace in which `pid` is valid.
    pub(crate) namespace: Option<u64>,
}

impl Identity {
    /// The pid, for people. Never signal or trust a process by this number alone.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether both are *proven* to be the same process. `false` if they cannot be compared.
    pub fn same_process(&self, other: &Identity) -> bool {
        if self.pid != other.pid || self.boot.is_none() || self.boot != other.boot {
            return false;
        }
        // The same pid in two pid namespaces means two processes.
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

/// The error for text that is not an [`Identity`].
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
