//! The settings of a daemon, as one argument of its command line, written by the election.

use std::ffi::OsStr;
use std::time::Duration;

use kennel_core::lifetime::Policy;
use kennel_sys::process::Identity;

use crate::size::DEFAULT_MAX_LINE;

/// How long a start may take if the argument does not say.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings. A descriptor that is not passed is missing, or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonArgs {
    pub(super) key: String,
    /// The locked `spawn.lock`, to unlock when the daemon is ready.
    pub(super) spawn: Option<i32>,
    /// The pipe for the report that the daemon is ready, or why it is not.
    pub(super) ready: Option<i32>,
    /// The first client's connection.
    pub(super) first: Option<i32>,
    pub(super) policy: Policy,
    pub(super) owner: Option<Identity>,
    /// How long the start may take: an orphaned start must not hold `spawn.lock` for ever.
    pub(super) alarm: Duration,
    /// Maximum bytes of a line.
    pub(super) max_line: usize,
}

impl DaemonArgs {
    /// Orders of a daemon that continues after an exec.
    pub(super) fn restored(
        key: &str,
        policy: Policy,
        owner: Option<Identity>,
        max_line: Option<usize>,
    ) -> DaemonArgs {
        DaemonArgs {
            key: key.to_owned(),
            spawn: None,
            ready: None,
            first: None,
            policy,
            owner,
            alarm: DEFAULT_START_TIMEOUT,
            max_line: max_line.unwrap_or(DEFAULT_MAX_LINE),
        }
    }

    /// Ignores unknown fields, which a later version may write.
    pub(super) fn parse(word: &OsStr) -> Option<DaemonArgs> {
        let text = word.to_str()?;
        let field = |name: &str| {
            text.split(',')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
                .filter(|&value| value != "-")
        };
        let millis = |name, default| match field(name) {
            None => Some(default),
            Some(value) => value.parse().ok().map(Duration::from_millis),
        };
        let shared = Policy::SHARED;
        let timeout = |name, default: Option<Duration>| millis(name, default.unwrap_or_default());
        Some(DaemonArgs {
            key: field("key").filter(|key| is_key(key))?.to_owned(),
            spawn: descriptor(field("spawn"))?,
            ready: descriptor(field("ready"))?,
            first: descriptor(field("first"))?,
            policy: Policy {
                linger: Some(timeout("linger", shared.linger)?),
                grace: millis("grace", shared.grace)?,
                max_idle: Some(timeout("max-idle", shared.max_idle)?),
            },
            alarm: millis("alarm", DEFAULT_START_TIMEOUT)?,
            max_line: match field("max-line") {
                None => DEFAULT_MAX_LINE,
                Some(bytes) => bytes.parse().ok()?,
            },
            owner: match field("owner") {
                None => None,
                Some(identity) => Some(identity.parse().ok()?),
            },
        })
    }
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn descriptor(field: Option<&str>) -> Option<Option<i32>> {
    match field {
        None => Some(None),
        Some(number) => number.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_as_they_were_given() {
        let me = kennel_sys::process::ProcessRef::me().unwrap();
        let owner = me.identity();
        let word = format!(
            "key=cafe,spawn=7,ready=8,first=9,linger=60000,grace=5,max-idle=7,owner={owner}"
        );
        let args = DaemonArgs::parse(OsStr::new(&word)).unwrap();
        assert_eq!(args.key, "cafe");
        assert_eq!(
            (args.spawn, args.ready, args.first),
            (Some(7), Some(8), Some(9))
        );
        assert_eq!(args.policy.linger, Some(Duration::from_secs(60)));
        assert_eq!(args.policy.grace, Duration::from_millis(5));
        assert_eq!(args.owner, Some(*owner));
    }

    #[test]
    fn missing_fields_have_defaults_and_unknown_ones_are_ignored() {
        let args = DaemonArgs::parse(OsStr::new("key=cafe,first=-,owner=-,later=1")).unwrap();
        assert_eq!((args.first, args.owner), (None, None));
        assert_eq!(args.policy, Policy::SHARED);
    }

    #[test]
    fn invalid_arguments_start_no_daemon() {
        for word in ["", "key=", "key=../x", "key=a,ready=x", "key=a,linger=soon"] {
            assert_eq!(DaemonArgs::parse(OsStr::new(word)), None, "{word}");
        }
    }
}
