//! When a daemon hands over to a newer build.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Daemon;
use crate::hello::Build;
use crate::time::Moment;

/// Maximum wait for a moment without pending requests.
const MAX_QUIET_WAIT: Duration = Duration::from_secs(2);
/// Maximum bytes stored in the daemon when its snapshot is written: writing takes up to five times as much memory.
const SMALL_SNAPSHOT: usize = 4 << 20;
/// How long that limit holds. After it, half of the maximum line length may be stored.
const SMALL_SNAPSHOT_WAIT: Duration = Duration::from_secs(60);
/// Wait after which half lines of clients are dropped if they are older than [`STALE`]: a line that never ends must not
/// prevent an upgrade.
const HALF_LINE_WAIT: Duration = Duration::from_secs(120);
const STALE: Duration = Duration::from_secs(60);
/// Minimum time between two counts of the stored bytes.
const RECOUNT_AFTER: Duration = Duration::from_secs(1);
/// Counting takes at most one part in this many of the time, because clients wait meanwhile.
const COUNTING_SHARE: u32 = 50;
/// How long to wait after a shortage, such as of descriptors.
const SHORTAGE_WAIT: Duration = Duration::from_secs(10);

/// A wait for a good moment to write the daemon's snapshot.
///
/// A moment without pending requests is preferred, because their clients would lose most if the new program failed. But
/// pending requests are handed over, too, so the wait is limited.
#[derive(Debug, Clone, Copy)]
pub struct HandoverWait {
    since: Moment,
    /// No check before then.
    check_at: Moment,
}

impl HandoverWait {
    /// Starts a wait.
    pub fn new(now: Moment) -> HandoverWait {
        HandoverWait {
            since: now,
            check_at: now,
        }
    }

    /// Whether the next check of the conditions is due.
    pub fn is_due(&self, now: Moment) -> bool {
        now >= self.check_at
    }

    /// Maximum bytes stored when the snapshot is written. `max_line`: maximum bytes of a line.
    pub fn max_bytes(&self, max_line: usize, now: Moment) -> usize {
        match now >= self.since + SMALL_SNAPSHOT_WAIT {
            true => SMALL_SNAPSHOT.max(max_line / 2),
            false => SMALL_SNAPSHOT,
        }
    }

    /// Whether a client's half line that began then is dropped, because it is all that the daemon waits for.
    pub fn drops_half_line(&self, began: Moment, now: Moment) -> bool {
        now >= self.since + HALF_LINE_WAIT && now - began >= STALE
    }

    /// Records that the moment was not good, and that it took this long to find out.
    pub fn not_yet(&mut self, took: Duration, now: Moment) {
        self.check_at = now + (took * COUNTING_SHARE).clamp(RECOUNT_AFTER, SMALL_SNAPSHOT_WAIT);
    }

    /// Records that something was short. Other processes may cause that, and end it.
    pub fn shortage(&mut self, now: Moment) {
        self.check_at = now + SHORTAGE_WAIT;
    }

    /// Whether no request is pending, or the wait for that is over.
    pub fn is_quiet(&self, daemon: &Daemon, now: Moment) -> bool {
        now >= self.since + MAX_QUIET_WAIT || daemon.is_quiet()
    }

    /// When to check again.
    pub fn next_timeout(&self, now: Moment) -> Option<Moment> {
        let waits = [MAX_QUIET_WAIT, SMALL_SNAPSHOT_WAIT, HALF_LINE_WAIT];
        let timeouts = waits.map(|wait| self.since + wait).into_iter();
        let timeouts = timeouts.filter(|at| *at >= self.check_at);
        let timeouts = timeouts.chain([self.check_at]);
        timeouts.filter(|at| *at > now).min()
    }
}

/// The answer of a program that was asked whether it can continue as the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckAnswer {
    /// The text of its [`Build`].
    pub build: String,
    /// The formats of snapshots that it can read.
    pub reads: Vec<u32>,
}

impl CheckAnswer {
    /// Returns the build of a program with this output if it can replace the daemon: it exited with success, reads the
    /// `format` of the daemon's snapshots, and is newer than `ours`. A build of the same or a lower version is refused,
    /// so that two versions do not replace each other repeatedly. `Err`: the reason, for people.
    pub fn accepted_build(
        output: &[u8],
        success: bool,
        format: u32,
        ours: Option<Build>,
    ) -> Result<Build, String> {
        let text = || String::from_utf8_lossy(output).trim_end().to_owned();
        if !success {
            return Err(format!("its check failed: {}", text()));
        }
        let answer: CheckAnswer = serde_json::from_slice(output)
            .map_err(|_| format!("the answer of its check is {:?}", text()))?;
        if !answer.reads.contains(&format) {
            let reads = answer.reads;
            return Err(format!(
                "it reads states of format {reads:?}, and this build writes {format}"
            ));
        }
        match (answer.build.parse::<Build>(), ours) {
            (Ok(build), Some(ours)) if build > ours => Ok(build),
            _ => Err(format!("it is {}, which is not newer", answer.build)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_build_that_reads_the_format_can_continue() {
        let ours = || "2.0.0".parse::<Build>().ok();
        let accepted_build = |output: &str, success| {
            CheckAnswer::accepted_build(output.as_bytes(), success, 2, ours())
                .map_err(|why| why.to_string())
        };
        let newer = r#"{"build":"2.0.1","reads":[1,2]}"#;
        assert_eq!(accepted_build(newer, true), Ok("2.0.1".parse().unwrap()));
        let refused = |output, success, part: &str| {
            let why = accepted_build(output, success).unwrap_err();
            assert!(why.contains(part), "{why}");
        };
        refused(newer, false, "its check failed");
        refused("usage: …", true, "the answer of its check is");
        refused(r#"{"build":"2.0.1","reads":[1]}"#, true, "writes 2");
        refused(r#"{"build":"2.0.0","reads":[2]}"#, true, "not newer");
        refused(r#"{"build":"1.9.9","reads":[2]}"#, true, "not newer");
    }
}
