//! A line of a log as people read it: time, source, text. And where a timeline begins.

use std::time::SystemTime;

use crate::daemon::stamp;
use crate::guard::output::{ESCAPE, KENNEL_PREFIX};
use crate::ps::words::printable;

/// Length of the time at the beginning of every line.
const STAMP: usize = "1970-01-01T00:00:00.000Z".len();

/// The program that writes a log, and how it marks whose lines they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Marks its servers' lines.
    Daemon,
    /// Marks its own lines.
    Guard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogSource {
    Kennel,
    Server,
}

/// A line of a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) at: String,
    pub(crate) by: LogSource,
    pub(crate) words: String,
}

impl LogFormat {
    pub(crate) fn line(self, line: &str) -> LogLine {
        let (at, rest) = match stamp_of(line) {
            Some(at) => (at, line[STAMP..].trim_start_matches(' ')),
            None => ("", line),
        };
        let (by, words) = match self {
            LogFormat::Daemon => match rest.strip_prefix("server says: ") {
                Some(words) => (LogSource::Server, words),
                None => (LogSource::Kennel, rest),
            },
            LogFormat::Guard => match rest.strip_prefix(KENNEL_PREFIX) {
                Some(words) => (LogSource::Kennel, words),
                None => (LogSource::Server, rest.strip_prefix(ESCAPE).unwrap_or(rest)),
            },
        };
        let at = at.to_owned();
        let words = printable(&words.replace('\t', "    "));
        LogLine { at, by, words }
    }
}

impl LogLine {
    pub(crate) fn text(&self, colour: bool) -> String {
        let (by, code) = match self.by {
            LogSource::Kennel => ("kennel", 36),
            LogSource::Server => ("server", 33),
        };
        let LogLine { at, words, .. } = self;
        match colour {
            true => format!("\x1b[2m{at}\x1b[0m \x1b[{code}m{by}\x1b[0m  {words}"),
            false => format!("{at} {by}  {words}"),
        }
    }

    /// The time without the date, for narrow lists.
    pub(crate) fn clock(&self) -> &str {
        self.at.get(11..19).unwrap_or_default()
    }
}

/// Selects the first line that is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirstShown {
    FromStart,
    /// The first line with this time or a later one.
    Stamp(String),
}

impl FirstShown {
    pub(crate) fn at(time: SystemTime) -> FirstShown {
        FirstShown::Stamp(stamp(time))
    }

    /// Whether this line is shown. All lines after the first shown line are.
    pub(crate) fn is_shown(&mut self, line: &str) -> bool {
        if let FirstShown::Stamp(since) = self {
            if stamp_of(line).is_none_or(|at| at < since.as_str()) {
                return false;
            }
            *self = FirstShown::FromStart;
        }
        true
    }
}

/// The time at the beginning of a line, if there is one.
fn stamp_of(line: &str) -> Option<&str> {
    let at = line.get(..STAMP)?;
    (at.ends_with('Z') && at.as_bytes()[10] == b'T').then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "2026-12-31T23:59:59.999Z";

    #[test]
    fn lines_of_kennel_and_of_the_server_are_distinguished_in_both_kinds_of_log() {
        for (format, line, by, words) in [
            (
                LogFormat::Daemon,
                "server 5 runs",
                LogSource::Kennel,
                "server 5 runs",
            ),
            (
                LogFormat::Daemon,
                "server says: oh no",
                LogSource::Server,
                "oh no",
            ),
            (
                LogFormat::Guard,
                "kennel: it ended",
                LogSource::Kennel,
                "it ended",
            ),
            (
                LogFormat::Guard,
                "\\kennel: all is well",
                LogSource::Server,
                "kennel: all is well",
            ),
            (
                LogFormat::Guard,
                "listening 80",
                LogSource::Server,
                "listening 80",
            ),
        ] {
            let log_lines = format.line(&format!("{AT} {line}"));
            assert_eq!((log_lines.at.as_str(), log_lines.by), (AT, by));
            assert_eq!(log_lines.words, words);
            assert_eq!(log_lines.clock(), "23:59:59");
        }
        let odd = LogFormat::Daemon.line("no time, and \x1b[2J");
        assert_eq!(odd.text(false), " kennel  no time, and \\u{1b}[2J");
    }

    #[test]
    fn a_timeline_begins_with_the_first_line_that_is_young_enough() {
        let mut since = FirstShown::Stamp("2026-12-31T23:00:00.000Z".to_owned());
        assert!(!since.is_shown("2026-12-31T22:59:59.999Z a"));
        assert!(!since.is_shown("what has no time belongs to what was before"));
        assert!(since.is_shown("2026-12-31T23:00:00.000Z b"));
        assert!(since.is_shown("what has no time"));
    }
}
